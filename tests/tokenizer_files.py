"""Writes small tokenizers as files of SentencePiece, Mistral and tiktoken."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kvasir.tokenizer.load import load_tokenizer
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.weights.source import open_model
from tests.gguf_writer import write_safetensors

PATTERN = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"
RANKED = [bytes([byte]) for byte in range(256)] + list(
    dict.fromkeys(
        part
        for word in (b"the", b" the", b" quick", b" dog", "é".encode())
        for part in (word[:n] for n in range(2, len(word) + 1))
    )
)
"""Tokens by rank: every byte, and beginnings of words."""


def varint(value: int) -> bytes:
    data = b""
    value &= (1 << 64) - 1
    while value > 0x7F:
        data += bytes([value & 0x7F | 0x80])
        value >>= 7
    return data + bytes([value])


def message(fields: Iterable[tuple[int, int | bytes | str | float]]) -> bytes:
    """Protocol buffers of ``fields``: integers as varints, floats in 32 bits, the rest as bytes."""
    data = b""
    for number, value in fields:
        if isinstance(value, float):
            data += varint(number << 3 | 5) + struct.pack("<f", value)
        elif isinstance(value, int):
            data += varint(number << 3) + varint(value)
        else:
            value = value.encode() if isinstance(value, str) else value
            data += varint(number << 3 | 2) + varint(len(value)) + value
    return data


def sentence_pieces(
    metadata: Mapping[str, object], trainer: Mapping[int, int], normalizer: Mapping[int, int]
) -> bytes:
    """tokenizer.model with the tokens of ``metadata``; fields of its specs by their numbers."""
    columns = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores", "token_type"))
    pieces = [
        (1, message([(1, token), (2, float(score)), (3, kind)]))
        for token, score, kind in zip(*columns, strict=True)
    ]
    return message([*pieces, (2, message(trainer.items())), (3, message(normalizer.items()))])


def tekken(ranked: Sequence[bytes] = RANKED, **extra: object) -> dict[str, object]:
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    return {
        "config": {
            "pattern": PATTERN,
            "num_vocab_tokens": len(ranked),
            "default_vocab_size": 8 + len(ranked),
            "default_num_special_tokens": 8,
            "version": "v11",
        },
        "vocab": [
            {"rank": i, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
            for i, token in enumerate(ranked)
        ],
        "special_tokens": [
            {"rank": i, "token_str": name, "is_control": True} for i, name in enumerate(special)
        ],
        **extra,
    }


def tiktoken(ranked: Sequence[bytes] = RANKED) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(ranked))


ADDED = {
    str(len(RANKED) + i): {"content": name, "special": True}
    for i, name in enumerate(("[BOS]", "[EOS]", "<|im_end|>"))
}


def write_folder(folder: Path, files: Mapping[str, bytes | Mapping[str, object]]) -> Path:
    """A folder of a model with these files and no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in {"config.json": {}, **files}.items():
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        (folder / name).write_bytes(data)
    write_safetensors(folder / "model.safetensors", {})
    return folder


def load_folder(folder: Path, files: Mapping[str, bytes | Mapping[str, object]]) -> Tokenizer:
    return load_tokenizer(open_model(write_folder(folder, files)))
