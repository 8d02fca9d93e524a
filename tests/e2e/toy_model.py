"""A model folder of 256 byte tokens: real tokenizer files, and the weights of a tiny llama, which
the fake executor does not read."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers.pre_tokenizers import ByteLevel

from tests import tiny
from tests.gguf_writer import write_safetensors

START, END = 250, 251
"""Ids of <|im_start|> and <|im_end|>: bytes that UTF-8 never has."""
NAMES = {START: "<|im_start|>", END: "<|im_end|>"}
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_toy_model(
    folder: Path, faults: dict[str, object] | None = None, template: str = TEMPLATE
) -> Path:
    """``faults`` are read by ``fault_engine``."""
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny.llama("toy", vocab_size=256, eos_token_id=END, max_position_embeddings=4096)
    _write(folder / "config.json", dict(model.config))
    _write(folder / "tokenizer.json", _tokenizer())
    _write(
        folder / "tokenizer_config.json",
        {"chat_template": template, "eos_token": NAMES[END], "tokenizer_class": "GPT2Tokenizer"},
    )
    _write(folder / "generation_config.json", {"eos_token_id": END})
    _write(folder / "faults.json", faults or {})
    write_safetensors(folder / "model.safetensors", model.tensors, "F32")
    return folder


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def _tokenizer() -> dict[str, object]:
    vocab = {NAMES.get(byte, char): byte for byte, char in enumerate(_byte_names())}
    added = [
        {
            "id": token,
            "content": name,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token, name in NAMES.items()
    ]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": [],
        },
    }


def _byte_names() -> list[str]:
    """The character of each byte: its own where that is printable, else the next one above 255."""
    alphabet = ByteLevel.alphabet()
    others = iter(sorted(char for char in alphabet if ord(char) > 255))
    return [chr(byte) if chr(byte) in alphabet else next(others) for byte in range(256)]
