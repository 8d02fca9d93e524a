"""SmolLM2 away from the 4-bit grid that its file lies on.

Exact rescaling leaves what the model says as it is, within rounding: norm * a and columns / a of
what reads it, rows of v * c and columns of o / c, rows of up * u and columns of down / u; a, c and
u drawn from 0.7 to 1.4.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvasir.formats.decode import values_of
from kvasir.weights.source import ModelSource, open_model

Floats = NDArray[np.float32]
_LOW, _HIGH = 0.7, 1.4
_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}


def write_moved(file: Path, folder: Path, seed: int = 1) -> None:
    """A Hugging Face folder of f32 weights of the llama in a GGUF ``file`` with tied embeddings."""
    source = open_model(file)
    config = {name: source.config[f"llama.{key}"] for name, key in _KEYS.items()}
    tensors = _moved(source, config, np.random.default_rng(seed))
    config |= {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(tensors["model.embed_tokens.weight"]),
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    _write(folder / "model.safetensors", tensors)


def _moved(
    source: ModelSource, config: dict[str, object], rng: np.random.Generator
) -> dict[str, Floats]:
    def drawn(n: int) -> Floats:
        return rng.uniform(_LOW, _HIGH, n).astype(np.float32)

    def tensor(name: str) -> Floats:
        return values_of(source.tensors[f"{name}.weight"])

    heads, kv_heads = (_count(config, f"num_{x}_heads") for x in ("attention", "key_value"))
    found = {
        "model.embed_tokens.weight": tensor("token_embd"),
        "model.norm.weight": tensor("output_norm"),
    }
    for i in range(_count(config, "num_hidden_layers")):
        b, p = f"blk.{i}.", f"model.layers.{i}."
        v, o = tensor(b + "attn_v"), tensor(b + "attn_output")
        up, down = tensor(b + "ffn_up"), tensor(b + "ffn_down")
        of_attn, of_mlp = drawn(o.shape[0]), drawn(o.shape[0])
        of_v, of_up = drawn(len(v)), drawn(len(up))
        of_o = np.repeat(of_v.reshape(kv_heads, -1), heads // kv_heads, axis=0).reshape(-1)
        found |= {
            f"{p}input_layernorm.weight": tensor(b + "attn_norm") * of_attn,
            f"{p}post_attention_layernorm.weight": tensor(b + "ffn_norm") * of_mlp,
            f"{p}self_attn.q_proj.weight": _halves(tensor(b + "attn_q"), heads) / of_attn,
            f"{p}self_attn.k_proj.weight": _halves(tensor(b + "attn_k"), kv_heads) / of_attn,
            f"{p}self_attn.v_proj.weight": v / of_attn * of_v[:, None],
            f"{p}self_attn.o_proj.weight": o / of_o,
            f"{p}mlp.gate_proj.weight": tensor(b + "ffn_gate") / of_mlp,
            f"{p}mlp.up_proj.weight": up / of_mlp * of_up[:, None],
            f"{p}mlp.down_proj.weight": down / of_up,
        }
    return found


def _count(config: dict[str, object], name: str) -> int:
    value = config[name]
    assert isinstance(value, int)
    return value


def _halves(w: Floats, heads: int) -> Floats:
    """Rows of each head from pairs of neighbours to halves, as folders have them."""
    return w.reshape(heads, len(w) // heads // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)


def _write(path: Path, tensors: dict[str, Floats]) -> None:
    header, at = dict[str, object](), 0
    for name, w in sorted(tensors.items()):
        span = [at, at + w.nbytes]
        header[name] = {"dtype": "F32", "shape": list(w.shape), "data_offsets": span}
        at += w.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for _, w in sorted(tensors.items()):
            stream.write(np.ascontiguousarray(w, "<f4").tobytes())
