"""Which of GGUF's formats each tensor gets: llama.cpp's mixtures, by its names of files.

Q4_K_M and its like give more bits to what hurts most: values, down, and the head.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from kvasir.core.errors import ConfigError
from kvasir.formats.types import SUPER
from kvasir.quantize.choose import Selection
from kvasir.quantize.gguf_rows import BLOCK_FORMATS
from kvasir.quantize.kpacking import K_ENCODERS
from kvasir.weights.source import ModelSource


class Recipe(NamedTuple):
    """Of a file."""

    format: str
    """Of most tensors."""
    file_type: int
    """general.file_type of llama.cpp."""


_PLAIN = {"Q4_0": Recipe("Q4_0", 2), "Q4_1": Recipe("Q4_1", 3), "Q8_0": Recipe("Q8_0", 7)}
_MIXED = {
    "Q2_K": Recipe("Q2_K", 10),
    "Q3_K_S": Recipe("Q3_K", 11),
    "Q3_K_M": Recipe("Q3_K", 12),
    "Q3_K_L": Recipe("Q3_K", 13),
    "Q4_K_S": Recipe("Q4_K", 14),
    "Q4_K_M": Recipe("Q4_K", 15),
    "Q5_K_S": Recipe("Q5_K", 16),
    "Q5_K_M": Recipe("Q5_K", 17),
    "Q6_K": Recipe("Q6_K", 18),
}
RECIPES: Mapping[str, Recipe] = MappingProxyType({**_PLAIN, **_MIXED})
_NARROW = MappingProxyType(
    {"Q2_K": "IQ4_NL", "Q3_K": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
)
"""In place of super-blocks, of rows that are no multiple of 256."""
_HEAD, _EMBEDDINGS = "output.weight", "token_embd.weight"
_ATTENTION = MappingProxyType({"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"})
"""What attention gives."""
_FUSED = MappingProxyType({"Q3_K_M": "Q4_K", "Q3_K_L": "Q4_K", "Q4_K_M": "Q5_K", "Q5_K_M": "Q6_K"})
"""Queries, keys and values in one."""
_BLOCK = re.compile(r"blk\.([0-9]+)\.")


class LayerAt(NamedTuple):
    at: int
    n: int

    @property
    def is_early(self) -> bool:
        return self.at < self.n // 8

    @property
    def takes_more(self) -> bool:
        """The first and the last eighth, and every third between."""
        eighth = self.n // 8
        ends = self.is_early or self.at >= 7 * self.n // 8
        return ends or (self.at - eighth) % 3 == 2


class ModelSizes(NamedTuple):
    """Of a model, as its metadata has them."""

    n_layers: int
    heads_a_value: int
    """Heads of queries that share one of values."""
    n_experts: int


class GgufMethod(msgspec.Struct, frozen=True):
    """A file of one of ``RECIPES``."""

    recipe: str
    overrides: tuple[tuple[str, str], ...] = ()
    """Patterns of names, each with a format: the first that is found in a name counts."""

    @property
    def name(self) -> str:
        return ", ".join((f"gguf:{self.recipe}", *(f"{x}={y}" for x, y in self.overrides)))

    @property
    def is_mixed(self) -> bool:
        """Takes the embeddings and the head, too, and what a text says of inputs."""
        return self.recipe in _MIXED

    @property
    def file_type(self) -> int:
        return RECIPES[self.recipe].file_type

    def formats(self, source: ModelSource, choice: Selection) -> dict[str, str]:
        """Tensor -> format. Raises ConfigError for a pattern that is in no name."""
        names = set(choice.quantized)
        if self.is_mixed:
            names |= {_HEAD, _EMBEDDINGS}
        rows = {x.name: x.shape[-1] for x in source.tensors.listing() if x.name in names}
        sizes = _sizes(source)
        found = {x: self._wide(x, sizes, _HEAD in rows) for x, k in rows.items() if k % 32 == 0}
        for pattern, format in reversed(self.overrides):
            matching = [x for x in found if re.search(pattern, x)]
            if not matching:
                raise ConfigError(f"--tensor-type {pattern}={format}: no tensor is called so")
            found |= dict.fromkeys(matching, format)
        return {x: fitting(format, rows[x]) for x, format in found.items()}

    def _wide(self, name: str, sizes: ModelSizes, has_head: bool) -> str:
        """The recipe's format, of rows of super-blocks."""
        usual, block = RECIPES[self.recipe].format, _BLOCK.match(name)
        if not self.is_mixed:
            return usual
        if block is None:
            return "Q6_K" if name == (_HEAD if has_head else _EMBEDDINGS) else usual
        layer, part = LayerAt(int(block[1]), sizes.n_layers), name[block.end() :]
        if part == "attn_v.weight":
            return self._of_values(layer, sizes) or usual
        if part == "attn_k.weight" and sizes.n_experts == 8:
            return "Q8_0"
        if part == "attn_qkv.weight":
            return _FUSED.get(self.recipe, usual)
        if part == "attn_output.weight":
            of_experts = sizes.n_experts == 8 and self.recipe in _OF_EIGHT
            return "Q5_K" if of_experts else _ATTENTION.get(self.recipe, usual)
        return (self._of_down(layer) if part.startswith("ffn_down") else "") or usual

    def _of_values(self, layer: LayerAt, sizes: ModelSizes) -> str:
        if sizes.n_experts == 8:
            return "Q8_0"
        recipe, found = self.recipe, ""
        if recipe == "Q2_K":
            found = "Q4_K" if sizes.heads_a_value >= 4 else "Q3_K"
        elif recipe == "Q3_K_M":
            found = "Q5_K" if layer.at < 2 else "Q4_K"
        elif recipe == "Q3_K_L" or (recipe == "Q4_K_S" and layer.at < 4):
            found = "Q5_K"
        elif recipe in ("Q4_K_M", "Q5_K_M") and layer.takes_more:
            found = "Q6_K"
        of_70b = sizes.n_layers == 80 and sizes.heads_a_value == 8
        return "Q5_K" if of_70b and (found or RECIPES[recipe].format) in ("Q3_K", "Q4_K") else found

    def _of_down(self, layer: LayerAt) -> str:
        recipe = self.recipe
        if recipe == "Q2_K":
            return "Q3_K"
        if recipe == "Q3_K_M":
            return "Q5_K" if layer.at < layer.n // 16 else "Q4_K"
        if recipe == "Q3_K_L" or (recipe == "Q4_K_S" and layer.is_early):
            return "Q5_K"
        return "Q6_K" if recipe in ("Q4_K_M", "Q5_K_M") and layer.takes_more else ""


_OF_EIGHT = ("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M")
"""Recipes that give attention of eight experts Q5_K."""


def fitting(format: str, columns: int) -> str:
    """``format``, or what takes its place where rows have no whole super-blocks."""
    return _NARROW[format] if format in K_ENCODERS and columns % SUPER else format


def read_override(text: str) -> tuple[str, str]:
    """``attn_v=Q6_K``: a regular expression and a format. Raises ConfigError."""
    pattern, _, format = text.rpartition("=")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"--tensor-type {text}: {pattern!r} is no pattern: {error}") from None
    if not pattern or format.upper() not in BLOCK_FORMATS:
        raise ConfigError(
            f"--tensor-type is {text!r}: expected a part of names, '=' and one of "
            f"{', '.join(BLOCK_FORMATS)}, such as attn_v=Q6_K"
        )
    return pattern, format.upper()


def _sizes(source: ModelSource) -> ModelSizes:
    arch = source.config.get("general.architecture")

    def number(key: str) -> int:
        value = source.config.get(f"{arch}.{key}", 0)
        values = value if isinstance(value, tuple) else (value,)
        return max((x for x in values if isinstance(x, int)), default=0)

    heads, of_values = number("attention.head_count"), number("attention.head_count_kv")
    return ModelSizes(
        number("block_count"), heads // (of_values or heads or 1), number("expert_count")
    )
