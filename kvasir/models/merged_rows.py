"""Rows of a tower among those of tokens."""

from __future__ import annotations

from kvasir.ir.builder import Builder
from kvasir.ir.bundle import IS_MEDIA, MEDIA, deep_media
from kvasir.models.export import After
from kvasir.models.spec import ModelConfig


def merged_rows(builder: Builder, config: ModelConfig, x: str) -> tuple[str, After]:
    """``x`` with rows of the tower where the step has some, and what adds others of them to the
    rows of early layers (DeepStack, Meng et al. 2024)."""
    shape = ("T", config.hidden_size)
    media = builder.input(MEDIA, shape, "f32")
    is_media = builder.input(IS_MEDIA, ("T",), "i32")
    deep = [builder.input(deep_media(i), shape, "f32") for i in range(config.deep_layers)]

    def after(layer: int, x: str) -> str:
        if layer >= len(deep):
            return x
        return builder.op("add_embeds", (x, deep[layer], is_media), f"l{layer}.x.deep")

    return builder.op("merge_embeds", (x, media, is_media), "x.merged"), after
