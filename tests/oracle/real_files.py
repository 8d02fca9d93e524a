"""Real weights that some tests ask for: files of a folder that the environment names."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from kvasir.formats.gguf import open_gguf
from tests.gguf_writer import gguf_bytes

FOLDER = "KVASIR_WEIGHTS"


class RealFile(NamedTuple):
    name: str
    sha256: str
    family: str


FILES = {
    "Qwen2.5-Coder-1.5B-Instruct": RealFile(
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "qwen2",
    ),
    "Gemma-3-270M": RealFile(
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "gemma3",
    ),
    "TinyLlama-1.1B-Chat": RealFile(
        "tinyllama-1.1b-chat-iq2_xxs.gguf",
        "9ee11adf737960ff06123d5c4fba24d12c5b05ba460a7afa88950fbf2b61add0",
        "llama",
    ),
    "stories15M": RealFile(
        "stories15M.bin",
        "cd590644d963867a2b6e5a1107f51fad663c41d79c149fbecbbb1f95fa81f49a",
        "llama",
    ),
}
_EPS = 1e-5


def real_file(name: str) -> Path:
    """Skips the test where there is no such file."""
    file = FILES[name]
    path = Path(os.environ.get(FOLDER, "")) / file.name
    if FOLDER not in os.environ or not path.exists():
        pytest.skip(f"{FOLDER}=FOLDER names where {file.name} lies")
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    assert found == file.sha256, f"{path} is another file: {found}"
    return path


def stories(path: Path, vocabulary: Path, to: Path) -> Path:
    """A file of llama2.c as GGUF, with the tokenizer of another: TinyLlama's, which has the same
    ids. Rows of q and k lie as those of GGUF files do."""
    data = path.read_bytes()
    hidden, inner, depth, heads, kv_heads, vocab, length = np.frombuffer(data, "<i4", 7).tolist()
    assert vocab > 0, "the head is that of the embeddings"
    rest = np.frombuffer(data, "<f4", offset=28)
    kv, tensors = hidden // heads * kv_heads, dict[str, tuple[str, np.ndarray]]()
    layer_shapes = {
        **{"attn_norm": (hidden,), "attn_q": (hidden, hidden), "attn_k": (kv, hidden)},
        **{"attn_v": (kv, hidden), "attn_output": (hidden, hidden), "ffn_norm": (hidden,)},
        **{"ffn_gate": (inner, hidden), "ffn_down": (hidden, inner), "ffn_up": (inner, hidden)},
    }
    stacks = {"token_embd": (1, (vocab, hidden))}
    stacks |= {name: (depth, shape) for name, shape in layer_shapes.items()}
    stacks["output_norm"] = (1, (hidden,))
    for name, (n, shape) in stacks.items():
        size = n * int(np.prod(shape))
        for i, one in enumerate(rest[:size].reshape(n, *shape)):
            tensors[f"blk.{i}.{name}.weight" if n == depth else f"{name}.weight"] = "F32", one
        rest = rest[size:]
    found = open_gguf(vocabulary).metadata
    metadata = {key: found[key] for key in found if key.startswith("tokenizer.")}
    metadata |= {"general.architecture": "llama", "llama.context_length": length}
    metadata |= {"llama.embedding_length": hidden, "llama.block_count": depth}
    metadata |= {"llama.feed_forward_length": inner, "llama.attention.head_count": heads}
    metadata |= {"llama.attention.head_count_kv": kv_heads}
    metadata |= {"llama.attention.layer_norm_rms_epsilon": _EPS}
    metadata |= {"llama.rope.dimension_count": hidden // heads, "llama.vocab_size": vocab}
    to.write_bytes(gguf_bytes(metadata, tensors))
    return to
