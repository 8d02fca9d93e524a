"""GGUF files that have q, k and v in one tensor, or apart, where others of their family do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvasir.checkpoints.qkv import is_fused
from tests import tiny, tiny_rope
from tests.gguf_writer import write_gguf
from tests.loading import load, reference_logits
from tests.tiny import Array, TinyModel, gguf_parts, write_gguf_model

TOKENS = (7, 300, 41, 41, 98)
Tensors = dict[str, tuple[str, Array]]


def joined(plain: Tensors) -> Tensors:
    kept = {
        name: x for name, x in plain.items() if name.split(".")[-2][-2:] not in ("_q", "_k", "_v")
    }
    for name in plain:
        if ".attn_q." in name:
            parts = [plain[name.replace("attn_q", f"attn_{x}")][1] for x in "qkv"]
            kept[name.replace("attn_q", "attn_qkv")] = ("F32", np.concatenate(parts))
    return kept


def parted(plain: Tensors) -> Tensors:
    kept = {name: x for name, x in plain.items() if ".attn_qkv." not in name}
    for name, (_, whole) in plain.items():
        if ".attn_qkv." in name:
            for letter, part in zip("qkv", np.split(whole, (64, 96)), strict=True):
                kept[name.replace("attn_qkv", f"attn_{letter}")] = ("F32", part)
    return kept


@pytest.mark.parametrize(
    ("model", "change"),
    [
        (tiny.llama(attention_bias=True), joined),
        (tiny.qwen2(), joined),
        (tiny_rope.glm(), parted),
    ],
    ids=["llama", "qwen2", "glm"],
)
def test_either_way(tmp_path: Path, model: TinyModel, change: Callable[[Tensors], Tensors]) -> None:
    usual = write_gguf_model(model, tmp_path / "usual.gguf")
    metadata, plain = gguf_parts(model, "F32")
    changed = change(plain)
    assert changed.keys() != plain.keys()
    write_gguf(tmp_path / "other.gguf", metadata, changed)
    expected = reference_logits(load(usual), TOKENS)
    assert np.array_equal(reference_logits(load(tmp_path / "other.gguf"), TOKENS), expected)


def test_a_file_of_both_kinds_is_read_as_its_family_does() -> None:
    """Neither way is told by it; what is left over is refused by name when weights are found."""
    apart, fused = "blk.0.attn_q.weight", "blk.0.attn_qkv.weight"
    assert [is_fused(x) for x in ([apart], [fused], [apart, fused], ["a.b"])] == [
        False,
        True,
        None,
        None,
    ]
