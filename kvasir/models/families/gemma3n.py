"""Gemma 3n (text): rows of several streams, of which a layer computes one; low-rank matrices beside
attention, gates of which a share counts; the last layers read the keys and values of others, and
each layer has embeddings of its own."""

from msgspec.structs import replace

from kvasir.models.families.gemma3 import GEMMA3
from kvasir.models.families.gemma4 import GEMMA4
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

_GONE = ("attention_softcap", "query_scalar", "first_window")
_OWN = ("layer_embed", "layer_proj", "layer_proj_norm", "own_gate", "own_proj", "own_post_norm")
_STREAMS = (
    ("in", "altup_projections", "altup_proj"),
    ("out", "altup_unembed_projections", "altup_unembd_proj"),
)
_SIZES = {
    "vocab_size": 262400,
    "hidden_size": 2048,
    "n_layers": 35,
    "n_heads": 8,
    "n_kv_heads": 2,
    "ffn_size": 16384,
    "max_positions": 32768,
    "window": 512,
}
"""Of files that do not say them."""

GEMMA3N = replace(
    GEMMA3,
    name="gemma3n",
    architectures=("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"),
    gguf="gemma3n",
    text_key="text_config",
    text_alone=True,
    unread_tower=(
        *("model.vision_tower.", "model.audio_tower.", "model.embed_vision.", "model.embed_audio."),
    ),
    block=BlockSpec(qk_norm="all", post_norms=True),
    fields={
        **{name: GEMMA3.fields[name] for name in GEMMA3.fields.keys() - {*_GONE}},
        **{name: GEMMA3.fields[name]._replace(default=n) for name, n in _SIZES.items()},
        "full_every": always(5),
        "layer_types": ModelField("layer_types", "attention.sliding_window_pattern"),
        "final_softcap": ModelField(
            "final_logit_softcapping", "final_logit_softcapping", 30.0, 30.0
        ),
        "attention_scale": always(1.0),
        "shared_layers": ModelField("num_kv_shared_layers", "attention.shared_kv_layers", 15),
        "layer_embed": ModelField(
            "hidden_size_per_layer_input", "embedding_length_per_layer_input", 256
        ),
        "layer_vocab": ModelField("vocab_size_per_layer_input", "", 262144, 0),
        "n_streams": ModelField("altup_num_inputs", "altup.num_inputs", 4),
        "active_stream": ModelField("altup_active_idx", "altup.active_idx", 0),
        "scaled_stream": ModelField("altup_correct_scale", "", True, True),
        "laurel_rank": ModelField("laurel_rank", "", 64),
        "sparsity": ModelField("activation_sparsity_pattern", "activation_sparsity_scale"),
    },
    tensors={
        **{name: each._replace(hf_step="") for name, each in GEMMA3.tensors.items()},
        **{name: GEMMA4.tensors[name] for name in _OWN},
        **{
            f"stream_{way}{i + 1}": TensorNames(f"model.{hf}.{i}", gguf, gguf_step=step)
            for way, hf, gguf in _STREAMS
            for i, step in enumerate(("first_matrix", "second_matrix", "third_matrix"))
        },
        "stream_router": TensorNames("altup.modality_router", "altup_router"),
        "stream_router_norm": TensorNames("altup.router_norm", "altup_router_norm"),
        "stream_predict": TensorNames("altup.prediction_coefs", "altup_predict_coef"),
        "stream_correct": TensorNames("altup.correction_coefs", "altup_correct_coef"),
        "stream_scale": TensorNames("altup.correct_output_scale.", "altup_correct_scale"),
        "laurel_down": TensorNames("laurel.linear_left", "laurel_l"),
        "laurel_up": TensorNames("laurel.linear_right", "laurel_r"),
        "laurel_norm": TensorNames("laurel.post_laurel_norm", "laurel_post_norm"),
    },
    harmless={
        **GEMMA3.harmless,
        "altup_coef_clip": None,
        "altup_lr_multiplier": None,
        "query_pre_attn_scalar": None,
    },
    wide_scale_layers=0,
)
