"""Tiny random models of each family, the same on every machine: weights come from counters.

Names and shapes are those of Hugging Face checkpoints; GGUF files are made from them as llama.cpp's
converter does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests import gguf_gemma3n, gguf_gemma4, gguf_hybrid, gguf_rope, gguf_scan
from tests.gguf_arch import PERMUTED
from tests.gguf_experts import with_experts
from tests.gguf_latents import with_latents
from tests.gguf_names import gguf_arch, gguf_fields, gguf_name
from tests.gguf_writer import write_gguf, write_safetensors

Array = NDArray[np.float32]
GgufParts = tuple[dict[str, object], dict[str, tuple[str, Array]]]

VOCAB = 320
BOS, EOS = 0, 1
SPECIAL = ("<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>")
_F32: tuple[str, ...] = (
    *("gate_inp.weight", "gate_inp_shexp.weight"),
    *("altup_correct_coef.weight", "altup_predict_coef.weight", ".bias"),
)
"""Ends of names of tensors that a converter never quantizes."""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A config.json and f32 tensors by their Hugging Face names."""

    name: str
    config: Mapping[str, object]
    tensors: Mapping[str, Array]

    def size(self, field: str) -> int:
        value = self.config[field]
        assert isinstance(value, int)
        return value


def uniform(name: str, shape: tuple[int, ...], scale: float, shift: float = 0.0) -> Array:
    """shift + scale * u, u uniform in [-1, 1) from Philox, whose bits NumPy guarantees."""
    key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "little")
    words = np.random.Philox(key=key).random_raw(int(np.prod(shape)))
    unit = (words >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0
    return (shift + scale * unit).astype(np.float32).reshape(shape)


def _matrix(name: str, n: int, k: int, gain: float = 1.0) -> Array:
    """[n, k] with outputs of about ``gain`` times the size of its inputs."""
    return uniform(name, (n, k), gain * (3.0 / k) ** 0.5)


_BASE: dict[str, object] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "torch_dtype": "float32",
}


def _silu(architecture: str, kind: str) -> dict[str, object]:
    return {**_BASE, "architectures": [architecture], "model_type": kind, "hidden_act": "silu"}


def llama(name: str = "tiny-llama", **overrides: object) -> TinyModel:
    """GQA, untied head."""
    config = _silu("LlamaForCausalLM", "llama") | overrides
    tensors = _trunk(name, config)
    for layer in range(_int(config, "num_hidden_layers")):
        tensors |= _mlp(f"{name}/", f"model.layers.{layer}.mlp", config)
    return TinyModel(name, config, tensors)


def mistral(window: int = 8) -> TinyModel:
    """Llama with a sliding window in every layer."""
    names = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    return llama("tiny-mistral", **names, sliding_window=window)


def mixtral(**overrides: object) -> TinyModel:
    """Four experts, two for each token."""
    name, n_experts = "tiny-mixtral", 4
    config = {
        **_silu("MixtralForCausalLM", "mixtral"),
        "num_hidden_layers": 2,
        "num_local_experts": n_experts,
        "num_experts_per_tok": 2,
        "sliding_window": None,
        **overrides,
    }
    tensors = _trunk(name, config)
    hidden, inner = _int(config, "hidden_size"), _int(config, "intermediate_size")
    for layer in range(_int(config, "num_hidden_layers")):
        part = f"model.layers.{layer}.block_sparse_moe"
        shapes: dict[str, tuple[int, int]] = {}
        router = f"{part}.gate.weight"
        # Far apart, so that rounding seldom changes the choice of experts.
        tensors[router] = _matrix(f"{name}/{router}", n_experts, hidden, gain=4.0)
        for expert in range(n_experts):
            shapes[f"{part}.experts.{expert}.w1.weight"] = (inner, hidden)
            shapes[f"{part}.experts.{expert}.w2.weight"] = (hidden, inner)
            shapes[f"{part}.experts.{expert}.w3.weight"] = (inner, hidden)
        tensors |= {key: _matrix(f"{name}/{key}", *shape) for key, shape in shapes.items()}
    return TinyModel(name, config, tensors)


def qwen2(**overrides: object) -> TinyModel:
    """Biases of q, k and v, tied head."""
    name = "tiny-qwen2"
    options = {"tie_word_embeddings": True, "use_sliding_window": False}
    config = _silu("Qwen2ForCausalLM", "qwen2") | options | overrides
    tensors = _trunk(name, {**config, "attention_bias": True})
    for layer in range(_int(config, "num_hidden_layers")):
        del tensors[f"model.layers.{layer}.self_attn.o_proj.bias"]
        tensors |= _mlp(f"{name}/", f"model.layers.{layer}.mlp", config)
    return TinyModel(name, config, tensors)


def qwen3(**overrides: object) -> TinyModel:
    """QK norm, heads wider than hidden / heads."""
    name = "tiny-qwen3"
    config = {
        **_silu("Qwen3ForCausalLM", "qwen3"),
        "head_dim": 32,
        "attention_bias": False,
        **overrides,
    }
    tensors = _trunk(name, config)
    dim = _int(config, "head_dim")
    for layer in range(_int(config, "num_hidden_layers")):
        part = f"model.layers.{layer}"
        tensors |= _mlp(f"{name}/", f"{part}.mlp", config)
        keys = [f"{part}.self_attn.{head}_norm.weight" for head in ("q", "k")]
        tensors |= {key: uniform(f"{name}/{key}", (dim,), 0.3, 1.0) for key in keys}
    return TinyModel(name, config, tensors)


def gemma3(**overrides: object) -> TinyModel:
    """Windows of 8, two ropes, QK norm, both soft caps, post-norms, tied head."""
    name = "tiny-gemma3"
    config = {
        **_BASE,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "num_hidden_layers": 4,
        "head_dim": 32,
        "query_pre_attn_scalar": 24,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window": 8,
        "layer_types": [
            "sliding_attention",
            "sliding_attention",
            "full_attention",
            "sliding_attention",
        ],
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 5.0,
        "tie_word_embeddings": True,
    }
    config |= overrides
    tensors = _trunk(name, config, norm_shift=0.0)
    hidden, dim = _int(config, "hidden_size"), _int(config, "head_dim")
    for layer in range(_int(config, "num_hidden_layers")):
        part = f"model.layers.{layer}"
        tensors |= _mlp(f"{name}/", f"{part}.mlp", config)
        norms = {f"{part}.self_attn.{head}_norm.weight": dim for head in ("q", "k")}
        norms |= {
            f"{part}.{place}_feedforward_layernorm.weight": hidden for place in ("pre", "post")
        }
        tensors |= {key: uniform(f"{name}/{key}", (size,), 0.3) for key, size in norms.items()}
    return TinyModel(name, config, tensors)


def _int(config: Mapping[str, object], field: str) -> int:
    value = config[field]
    assert isinstance(value, int)
    return value


def _trunk(model: str, config: Mapping[str, object], norm_shift: float = 1.0) -> dict[str, Array]:
    """Embedding, head, norms and attention."""
    hidden, dim = _int(config, "hidden_size"), _int(config, "head_dim")
    heads, kv_heads = _int(config, "num_attention_heads"), _int(config, "num_key_value_heads")
    vocab = _int(config, "vocab_size")
    tensors = {"model.embed_tokens.weight": uniform(f"{model}/embed", (vocab, hidden), 1.0)}
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = _matrix(f"{model}/head", vocab, hidden, gain=3.0)
    norms = ["model.norm.weight"]
    for layer in range(_int(config, "num_hidden_layers")):
        part = f"model.layers.{layer}"
        norms += [f"{part}.input_layernorm.weight", f"{part}.post_attention_layernorm.weight"]
        sizes = {
            "q": (heads * dim, hidden),
            "k": (kv_heads * dim, hidden),
            "v": (kv_heads * dim, hidden),
        }
        for letter, (n, k) in {**sizes, "o": (hidden, heads * dim)}.items():
            key = f"{part}.self_attn.{letter}_proj.weight"
            tensors[key] = _matrix(f"{model}/{key}", n, k, gain=1.5)
            if config.get("attention_bias"):
                key = key.replace("weight", "bias")
                tensors[key] = uniform(f"{model}/{key}", (n,), 0.3)
    return tensors | {key: uniform(f"{model}/{key}", (hidden,), 0.3, norm_shift) for key in norms}


def _mlp(prefix: str, part: str, config: Mapping[str, object]) -> dict[str, Array]:
    hidden, inner = _int(config, "hidden_size"), _int(config, "intermediate_size")
    shapes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    tensors: dict[str, Array] = {}
    for letter, (n, k) in shapes.items():
        key = f"{part}.{letter}_proj.weight"
        tensors[key] = _matrix(f"{prefix}{key}", n, k, gain=1.5)
        if config.get("mlp_bias"):
            key = key.replace("weight", "bias")
            tensors[key] = uniform(f"{prefix}{key}", (n,), 0.3)
    return tensors


def pieces() -> tuple[list[str], list[tuple[str, str]]]:
    """Vocabulary and merges of a byte-level BPE: special tokens, 256 bytes, pairs of letters."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    common = "etaoinshrdlu"
    pairs = [(a, b) for a in common for b in common][: VOCAB - len(SPECIAL) - len(letters)]
    return [*SPECIAL, *letters, *(a + b for a, b in pairs)], pairs


def tokenizer(*more: tuple[str, str]) -> Tokenizer:
    """The tokenizer of every tiny model; ``more``: pairs that are tokens of their own, too."""
    vocab, merges = pieces()
    vocab, merges = [*vocab, *map("".join, more)], [*merges, *more]
    made = Tokenizer(models.BPE({piece: i for i, piece in enumerate(vocab)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL))
    return made


def write_hf(model: TinyModel, folder: Path, dtype: str = "F32") -> Path:
    """A Hugging Face folder: config, weights in ``dtype``, tokenizer with chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model.config, indent=1))
    write_safetensors(folder / "model.safetensors", model.tensors, dtype)
    tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"bos_token": SPECIAL[BOS], "eos_token": SPECIAL[EOS]}
    settings |= {"chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def write_gguf_model(model: TinyModel, path: Path, format: str = "F32") -> Path:
    """A GGUF file with matrices in ``format``; norms, router and biases stay F32."""
    write_gguf(path, *gguf_parts(model, format))
    return path


def gguf_parts(model: TinyModel, format: str) -> GgufParts:
    """What ``write_gguf_model`` writes."""
    arch = gguf_arch(model.config)
    factors = gguf_rope.factors(model.config) | gguf_gemma4.factors(model.config)
    plain = {name: ("F32", values) for name, values in factors.items()}
    model = fused(model, "self_attn", "qkv") if arch == "chatglm" else model
    own = gguf_scan.with_parts(with_latents(model.tensors), model.config)
    own = gguf_gemma3n.stacked(gguf_hybrid.multiplied(own, model.config))
    for name, values in with_experts(own).items():
        if name.startswith("pooler."):
            continue
        target = gguf_name(name, arch)
        is_f32 = values.ndim == 1 or target.endswith(_F32)
        if arch in PERMUTED and ".attn_q." in target:
            values = permute(values, model.size("num_attention_heads"))
        if arch in PERMUTED and ".attn_k." in target:
            values = permute(values, model.size("num_key_value_heads"))
        if "attn_qkv" in target and arch in ("gptneox", "falcon"):
            values = _rows_of_qkv(model, values)
        if arch == "gpt2" and values.ndim == 2 and ("c_" in name):
            values = np.ascontiguousarray(values.T)
        if arch.startswith("gemma") and arch not in ("gemma3n", "gemma4") and "norm" in target:
            values = values + np.float32(1.0)
        if target == "position_embd.weight" and model.config["model_type"] == "xlm-roberta":
            values = values[model.size("pad_token_id") + 1 :]
        values, is_scan = gguf_scan.stored(target, values, model.config)
        if "shortconv.conv" in target:
            values, is_scan = values[:, 0], True
        if "gate_inp_shexp" in target or "exp_probs_b" in target:
            values = values.reshape(-1)
        plain[target] = ("F32" if is_f32 or is_scan else format, values)
    return _gguf_metadata(model, arch), plain


def fused(model: TinyModel, part: str, letters: str) -> TinyModel:
    """q, k and v ("qkv") of "self_attn", or gate and up ("gate_up") of "mlp", in one tensor."""
    names = [f"{x}_proj" for x in (letters.split("_") if "_" in letters else letters)]
    kept = {
        key: x for key, x in model.tensors.items() if not any(f"{part}.{n}." in key for n in names)
    }
    for key in model.tensors:
        if f"{part}.{names[0]}." in key:
            parts = [model.tensors[key.replace(names[0], name)] for name in names]
            kept[key.replace(names[0], f"{letters}_proj")] = np.concatenate(parts)
    return replace(model, tensors=kept)


def permute(tensor: Array, n_heads: int) -> Array:
    """The row order of llama.cpp's converter for llama's q and k."""
    n = tensor.shape[0]
    split = tensor.reshape(n_heads, 2, n // n_heads // 2, *tensor.shape[1:])
    return split.swapaxes(1, 2).reshape(tensor.shape)


def _rows_of_qkv(model: TinyModel, tensor: Array) -> Array:
    """Queries, keys and values one after the other, from groups of a key."""
    heads = model.size("num_attention_heads")
    dim = model.size("hidden_size") // heads
    groups = tensor.reshape((len(tensor) // dim - heads) // 2, -1, dim, *tensor.shape[1:])
    parts = (groups[:, :-2], groups[:, -2], groups[:, -1])
    return np.concatenate([part.reshape(-1, *tensor.shape[1:]) for part in parts])


def _gguf_metadata(model: TinyModel, arch: str) -> dict[str, object]:
    vocab, merges = pieces()
    return {
        "general.architecture": arch,
        "general.name": model.name,
        **{f"{arch}.{name}": value for name, value in gguf_fields(model.config).items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": vocab,
        "tokenizer.ggml.token_type": [3 if piece in SPECIAL else 1 for piece in vocab],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": BOS,
        "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
