"""The table of families: no entry can be altered unnoticed, and what is in no entry is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import eq
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as with_fields
from numpy.testing import assert_allclose

from kvasir.core.errors import ModelError
from kvasir.ir.ops.attention import QK_NORMS
from kvasir.ir.printer import render
from kvasir.models import build_program, choose, config_from, tensors
from kvasir.models.families import FAMILIES
from kvasir.models.family import Family, always
from kvasir.weights.source import ModelSource, open_model
from kvasir.weights.transforms import TRANSFORMS
from tests import (
    tiny,
    tiny_encoders,
    tiny_gemma,
    tiny_hybrid,
    tiny_kimi,
    tiny_kin,
    tiny_latent,
    tiny_layer_norms,
    tiny_llama4,
    tiny_moe,
    tiny_rope,
    tiny_scan,
    tiny_state,
    tiny_vision,
)
from tests.forms import IS_LONG
from tests.gguf_latents import as_older
from tests.gguf_writer import write_gguf
from tests.loading import load
from tests.tiny import TinyModel, gguf_parts

_TYPES = ["full_attention", "full_attention", "sliding_attention"]
_WINDOWS = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
_DELTA: dict[str, Any] = {
    "full_attention_interval": 3,
    "mtp_num_hidden_layers": 1,
    "rope_parameters": None,
    "rope_theta": 3000.0,
    "partial_rotary_factor": 0.5,
}
MODELS: Mapping[str, Callable[[], TinyModel]] = {
    "llama": lambda: tiny.llama(attention_bias=True, mlp_bias=True),
    "mistral": tiny.mistral,
    "mixtral": lambda: tiny.mixtral(sliding_window=8),
    "qwen2": lambda: tiny.qwen2(layer_types=_TYPES, **_WINDOWS),
    "qwen3": lambda: tiny.qwen3(attention_bias=True, layer_types=_TYPES, **_WINDOWS),
    "gemma3": lambda: tiny.gemma3(attention_bias=True, sliding_window_pattern=3),
    "seed_oss": lambda: tiny_kin.seed_oss(mlp_bias=False),
    "granite": lambda: tiny_kin.granite(attention_bias=True, mlp_bias=True),
    "smollm3": lambda: tiny_kin.smollm3(
        attention_bias=True,
        mlp_bias=True,
        no_rope_layer_interval=3,
        layer_types=["full_attention"] * 5,
        max_window_layers=2,
    ),
    "ernie4_5": tiny_kin.ernie45,
    "ministral": tiny_kin.ministral,
    "exaone4": lambda: tiny_kin.exaone4(sliding_window_pattern="LLLG"),
    "qwen3_moe": lambda: tiny_kin.qwen3_moe(
        attention_bias=True, use_sliding_window=True, sliding_window=8
    ),
    "qwen2_moe": lambda: tiny_moe.qwen2_moe(
        num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[3], qkv_bias=False
    ),
    "granite_moe": lambda: tiny_moe.granite_moe_shared(attention_bias=True),
    "ernie4_5_moe": lambda: tiny_moe.ernie45_moe(use_bias=True, moe_layer_end_index=2),
    "gpt_oss": lambda: tiny_moe.gpt_oss(attention_bias=False, rope_parameters=None),
    "olmoe": lambda: tiny_moe.olmoe(norm_topk_prob=True, attention_bias=True),
    "minimax_m2": lambda: tiny_moe.minimax_m2(partial_rotary_factor=0.75),
    "glm4_moe": lambda: tiny_moe.glm4_moe(
        first_k_dense_replace=2,
        norm_topk_prob=False,
        partial_rotary_factor=0.25,
        num_nextn_predict_layers=1,
    ),
    "exaone_moe": lambda: tiny_moe.exaone_moe(
        norm_topk_prob=False,
        num_nextn_predict_layers=1,
        sliding_window_pattern="LLLG",
        first_k_dense_replace=2,
        mlp_layer_types=["dense", "dense", "sparse", "sparse"],
    ),
    "hunyuan_v1_moe": lambda: tiny_moe.hunyuan_moe(tie_word_embeddings=True),
    "deepseek_v2": tiny_latent.deepseek_v2,
    "deepseek_v3": lambda: tiny_latent.deepseek_v3(
        norm_topk_prob=False, num_nextn_predict_layers=1
    ),
    "glm4_moe_lite": lambda: tiny_latent.glm4_moe_lite(
        norm_topk_prob=False,
        num_nextn_predict_layers=1,
        mlp_layer_types=["dense", "dense", "sparse"],
    ),
    "gemma": lambda: tiny_kin.gemma(attention_bias=True),
    "gemma2": lambda: tiny_kin.gemma2(attention_bias=True),
    "gemma4": lambda: tiny_gemma.gemma4_moe(
        attention_bias=True, num_hidden_layers=4, layer_types=tiny_gemma.TYPES[:4]
    ),
    "olmo2": lambda: tiny_rope.olmo2(attention_bias=True),
    "olmo3": lambda: tiny_rope.olmo3(attention_bias=True),
    "ministral3": tiny_rope.ministral3,
    "hunyuan_v1_dense": lambda: tiny_rope.hunyuan_dense(use_qk_norm=True),
    "minicpm": lambda: tiny_rope.minicpm(attention_bias=True),
    "phi3": tiny_rope.phi3,
    "glm": tiny_rope.glm,
    "glm4": tiny_rope.glm4,
    "starcoder2": lambda: tiny_layer_norms.starcoder2(sliding_window=8, use_bias=False),
    "cohere": lambda: tiny_layer_norms.cohere(attention_bias=True),
    "cohere2": lambda: tiny_layer_norms.cohere2(attention_bias=True, sliding_window_pattern=4),
    "phi": tiny_layer_norms.phi,
    "stablelm": tiny_layer_norms.stablelm,
    "gpt_neox": lambda: tiny_layer_norms.gpt_neox(attention_bias=False),
    "falcon": lambda: tiny_layer_norms.falcon(multi_query=False, num_kv_heads=4, bias=True),
    "falcon_two_norms": tiny_layer_norms.falcon_two_norms,
    "gptj": tiny_layer_norms.gptj,
    "gpt2": tiny_layer_norms.gpt2,
    "lfm2": lambda: tiny_state.lfm2(block_ff_dim=131),
    "lfm2_moe": lambda: tiny_state.lfm2_moe(norm_topk_prob=False),
    "mamba2": lambda: tiny_scan.mamba2(time_step_limit=[0.1, 0.6], tie_word_embeddings=True),
    "qwen3_next": lambda: tiny_scan.qwen3_next(**_DELTA, mlp_only_layers=[3]),
    "qwen3_5": lambda: tiny_scan.qwen3_5(**_DELTA),
    "qwen3_5_moe": lambda: tiny_scan.qwen3_5_moe(**_DELTA),
    "llama4": lambda: tiny_llama4.llama4(attention_bias=True, no_rope_layer_interval=3),
    "kimi_linear": lambda: tiny_kimi.kimi_linear(
        q_lora_rank=32,
        num_expert_group=4,
        topk_group=2,
        moe_renormalize=False,
        num_nextn_predict_layers=1,
        layer_types=["linear_attention", "full_attention", *2 * ["linear_attention"]],
        mlp_layer_types=["dense", "dense", "sparse", "sparse"],
    ),
    "granite_hybrid": lambda: tiny_scan.granite_hybrid(
        position_embedding_type="rope", head_dim=16, time_step_limit=[0.1, 0.6], attention_bias=True
    ),
    "falcon_h1": lambda: tiny_hybrid.falcon_h1(time_step_limit=[0.1, 0.6]),
    "nemotron_h": lambda: tiny_hybrid.nemotron_h_moe(
        layers_block_type=["mamba", "mlp", "attention", "moe"],
        hybrid_override_pattern="M-*E",
        moe_latent_size=48,
        num_nextn_predict_layers=1,
        norm_topk_prob=False,
        tie_word_embeddings=True,
        time_step_limit=[0.1, 0.6],
    ),
    "smolvlm": lambda: tiny_vision.smolvlm(attention_bias=True, mlp_bias=True),
    "bert": tiny_encoders.bert,
    "nomic_bert": tiny_encoders.nomic_bert,
    "roberta": tiny_encoders.roberta,
    "modern_bert": lambda: tiny_encoders.modern_bert(
        attention_bias=True, layer_types=["full_attention", *2 * ["sliding_attention"]]
    ),
    "gemma_embedding": lambda: tiny_encoders.gemma_embedding(
        attention_bias=True, sliding_window_pattern=3
    ),
}
"""One of each family, whose config.json has every field."""
GGUF_MODELS: Mapping[str, Callable[[], TinyModel]] = {
    **MODELS,
    "llama": lambda: tiny.llama(attention_bias=True, mlp_bias=True, sliding_window=8),
    "qwen2": tiny.qwen2,
    "qwen3": lambda: tiny.qwen3(attention_bias=True),
    "qwen3_moe": lambda: tiny_kin.qwen3_moe(attention_bias=True),
    "qwen2_moe": tiny_moe.qwen2_moe,
    "ernie4_5_moe": tiny_moe.ernie45_moe,
    "gpt_oss": tiny_moe.gpt_oss,
    "lfm2_moe": tiny_state.lfm2_moe,
    "qwen3_next": lambda: tiny_scan.qwen3_next(**_DELTA),
    "deepseek_v2": lambda: tiny_latent.deepseek_v2(q_lora_rank=32),
    "llama4": lambda: tiny_llama4.llama4_long(interleave_moe_layer_step=2),
    "kimi_linear": lambda: tiny_kimi.kimi_linear(q_lora_rank=32),
    "nemotron_h": lambda: tiny_hybrid.nemotron_h_moe(
        moe_latent_size=48, num_nextn_predict_layers=1, norm_topk_prob=False
    ),
    "olmo2": lambda: tiny_rope.olmo3(attention_bias=True),
    "minimax_m2": tiny_moe.minimax_m2,
    "glm4_moe": lambda: tiny_moe.glm4_moe(num_nextn_predict_layers=1),
}
_LACKING = {
    ("qwen2_moe", "gguf"): ("gate", "up", "down"),
    ("qwen3_next", "gguf"): ("gate", "up", "down", "key of ffn_size"),
    ("granite_hybrid", "hf"): ("gate", "up", "down", "key of ffn_size"),
    ("granite_hybrid", "gguf"): ("gate", "up", "down", "key of ffn_size"),
    ("nemotron_h", "gguf"): ("up", "down", "key of ffn_size"),
    ("deepseek_v2", "hf"): ("q_a", "q_a_norm", "q_b_plain", "q_b_turned"),
    ("deepseek_v2", "gguf"): ("q_plain", "q_turned"),
    ("glm4_moe_lite", "hf"): ("q_plain", "q_turned"),
    ("kimi_linear", "hf"): ("q_plain", "q_turned"),
    ("kimi_linear", "gguf"): ("q_plain", "q_turned"),
    ("deepseek_v3", "hf"): ("q_plain", "q_turned"),
    ("deepseek_v3", "gguf"): ("q_plain", "q_turned"),
}
"""Weights of dense layers, of which these files cannot speak; those of the other way to queries."""
WRITERS: Mapping[str, Callable[[TinyModel, Path], Path]] = {
    "hf": tiny.write_hf,
    "gguf": lambda model, folder: tiny.write_gguf_model(model, folder / "m.gguf"),
}


def seen(source: ModelSource) -> Iterator[str]:
    """All that a test could notice of how a file is understood, what costs least first."""
    try:
        config = config_from(source)
        yield f"{config.unread}"
        yield render(build_program(config, max_positions=4))
    except (ModelError, KeyError) as error:
        yield f"refused: {error}"


def altered(family: Family, kind: str) -> Iterator[tuple[str, Family]]:
    """The family with one entry changed, for each; to all transforms in the long form, to every
    eighth in the short one."""
    at = ("hf", "gguf").index(kind)
    unused = {"yarn_truncate"}  # the models have no YaRN
    unused |= {"full_first"} if kind == "hf" else set()  # the model says it of each layer
    unused |= {"tiled_heads"} if kind == "gguf" else set()  # these files always have them so
    is_sparse, attends = "n_experts" in family.fields, "n_heads" in family.fields
    unused |= {"mlp_bias", "gated"} if is_sparse or "ffn_size" not in family.fields else set()
    for name, field in family.fields.items():
        if field[at]:
            other = field._replace(**{kind: f"{field[at]}_other"})
            yield f"key of {name}", with_fields(family, fields={**family.fields, name: other})
        elif not any(field[:2]) and isinstance(field.default, bool) and name not in unused:
            opposite = {name: always(not field.default)}
            yield f"value of {name}", with_fields(family, fields={**family.fields, **opposite})
    for i, (name, names) in enumerate(family.tensors.items()):
        step = f"{kind}_step"
        steps = sorted({"", *TRANSFORMS} - {getattr(names, step)})
        steps = steps if IS_LONG else steps[i % 8 :: 8]
        for key, value in ((kind, f"{names[at]}_other"), *((step, other) for other in steps)):
            changed = {**family.tensors, name: names._replace(**{key: value})}
            yield f"{name}: {key} {value}", with_fields(family, tensors=changed)
    for name in family.fields.keys() & {"expert_score"}:
        field = family.fields[name]
        if field == always("sigmoid"):
            fields = {**family.fields, name: always("softmax")}
            yield f"always {name}", with_fields(family, fields=fields)
    has_keys = "latent_size" not in family.fields and attends
    for norm in (set(QK_NORMS) - {family.block.qk_norm}) if has_keys else ():
        yield f"qk_norm {norm}", with_fields(family, block=with_fields(family.block, qk_norm=norm))
    flags = ["one_norm"] if "parallel" in family.fields else ["pre_norms", "post_norms"]
    flags = ["sum_norms", "both_ways"] if family.block.both_ways else flags
    flags += ["expert_bias"] * ("router" in family.tensors)
    flags += ["shared_gate"] * ("shared_gate" in family.tensors)
    flags += [x for x in ("chunked", "weighs_input") if getattr(family.block, x)]
    flags += ["sinks"] * has_keys
    flags += ["interleaved_rope"] * attends
    for flag in (*flags, *({"gated"} - unused)):
        change: dict[str, Any] = {flag: not getattr(family.block, flag)}
        block = with_fields(family.block, **change)
        yield flag, with_fields(family, block=block)
    for norm in {"rms", "layer", "layer_bias"} - {family.block.norm}:
        yield f"norm {norm}", with_fields(family, block=with_fields(family.block, norm=norm))
    if family.full_without_rope:
        yield "full_without_rope", with_fields(family, full_without_rope=False)
    yield "name of files", with_fields(family, architectures=("Other",), gguf="other")
    yield "sqrt_embed", with_fields(family, sqrt_embed=not family.sqrt_embed)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_no_entry_is_altered_unnoticed(
    family: Family, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the name of a weight that the model lacks: the head that is its embedding, and what
    files of a kind never have."""
    if kind == "gguf" and not family.gguf:
        pytest.skip("its GGUF files are those of another family")
    models = MODELS if kind == "hf" else GGUF_MODELS
    source = open_model(WRITERS[kind](models[family.name](), tmp_path))
    expected, quiet = [*seen(source)], []
    assert len(expected) == 2 and not expected[1].startswith("refused")
    assert config_from(source).unread == ()
    for what, changed in altered(family, kind):
        table = tuple(changed if each is family else each for each in FAMILIES)
        monkeypatch.setattr(choose, "FAMILIES", table)
        monkeypatch.setattr(tensors, "FAMILIES", table)
        if all(map(eq, seen(source), expected)):
            quiet.append(what)
    lacking = {"lm_head", *_LACKING.get((family.name, kind), ())}
    assert [what for what in quiet if what.split(":")[0] not in lacking] == []


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("name", ["falcon", "falcon_two_norms"])
def test_of_families_of_one_name_the_tensors_choose(name: str, kind: str, tmp_path: Path) -> None:
    assert config_from(open_model(WRITERS[kind](MODELS[name](), tmp_path))).family == name


@pytest.mark.parametrize("make", [tiny_latent.deepseek_v2, tiny_latent.deepseek_v3])
@pytest.mark.parametrize("format", ["F32", "Q8_0"])
def test_latents_of_older_gguf_files(
    make: Callable[[], TinyModel], format: str, tmp_path: Path
) -> None:
    """Matrices of keys and values in one tensor are those of two: the same numbers and program."""
    write_gguf(tmp_path / "older.gguf", *as_older(*gguf_parts(make(), format)))
    write_gguf(tmp_path / "new.gguf", *gguf_parts(make(), "F32"))
    found = [load(tmp_path / f"{name}.gguf") for name in ("older", "new")]
    assert found[0].config.family == found[1].config.family == make().config["model_type"]
    assert found[0].program.ops == found[1].program.ops
    step = {"F32": 0.0, "Q8_0": 0.02}[format]
    for name in ("layers.1.k_up", "layers.1.v_up"):
        older_values, values = (each.binding[name].dequantize() for each in found)
        assert_allclose(older_values, values, rtol=0, atol=step * float(np.abs(values).max()))
