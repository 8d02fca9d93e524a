"""Readers of rotary embeddings; fields and defaults are those of ``transformers`` and llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from kvasir.checkpoints.fields import Fields
from kvasir.checkpoints.keys import Keys
from kvasir.checkpoints.read_latent import of_latents
from kvasir.formats.decode import values_of
from kvasir.formats.mapped import TensorTable
from kvasir.ir.ops.places import AXES
from kvasir.models.rope import ln, ntk_theta
from kvasir.models.spec import ROPE, ROPE_STILL, ROPE_WINDOW, LayerSpec, RopeAxes, RopeConfig

_FACTORS = "rope_freqs.weight"
_MOST = 1e3
"""Of what cos, sin and queries are multiplied with, and of turns; they stay far from f32's ends."""
_LEAST = 1e-3
_MOST_STEPS = 1 << 16
"""Lengths of original contexts in a model's own: each has a factor of queries."""
_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"


def read_ropes(
    fields: Fields, tensors: TensorTable, layers: tuple[LayerSpec, ...]
) -> dict[str, RopeConfig]:
    """By name; that of windowed layers where the family gives them one of their own."""
    sizes = {bool(layer.window): layer.turned_dim for layer in layers}
    head_dim, is_hf = sizes.get(False, layers[0].turned_dim), fields.kind == "hf"
    rope = _of_folder(fields, head_dim) if is_hf else _of_gguf(fields, tensors, head_dim)
    ropes = {ROPE: rope}
    steps = fields.integer("max_positions") / rope.original_max_positions
    if rope.query_beta and steps > _MOST_STEPS:
        expected = f"at most {_MOST_STEPS} times the original {rope.original_max_positions}"
        raise fields.error("max_positions", fields.integer("max_positions"), expected)
    if fields.has("window_theta"):
        ropes[ROPE_WINDOW] = _of_windows(fields, rope, sizes.get(True, head_dim))
    if fields.has("still_beta") and fields.is_true("grows"):
        ropes[ROPE_STILL] = _growing(fields, _still(layers[0].head_dim))
    elif of_latents(fields) and fields.integer("no_rope_every"):
        ropes[ROPE_STILL] = _still(head_dim)
    return ropes


def _still(head_dim: int) -> RopeConfig:
    """It turns by nothing: cos and sin are 1 and 0."""
    return RopeConfig(1.0, scaling="factors", factors=(float("inf"),) * (head_dim // 2))


def _growing(fields: Fields, rope: RopeConfig) -> RopeConfig:
    """With queries that grow at the end of every so many positions."""
    longest = fields.integer("max_positions")
    step = fields.integer("still_step", least=-(-longest // _MOST_STEPS))
    beta = fields.number("still_beta", most=_MOST)
    return replace(rope, query_beta=beta, query_offset=1, original_max_positions=step)


def yarn_attention(factor: float, mscale: float = 1.0, mscale_all: float = 0.0) -> float:
    """What YaRN multiplies cos and sin with: (0.1 mscale ln factor + 1) over the same of
    ``mscale_all``."""
    if factor <= 1.0:
        return 1.0
    return (0.1 * mscale * ln(factor) + 1) / (0.1 * mscale_all * ln(factor) + 1)


def _score_scale(fields: Fields, factor: float, growth: float) -> float:
    """Of latent attention: mscale squared, which other models' files have in cos and sin or not at
    all. GGUF files of such models say ``growth`` itself, and that cos and sin are as they are."""
    grown = of_latents(fields) and growth > 0 and factor > 1
    return (growth * ln(factor) + 1) ** 2 if grown else 1.0


class _RopeTable(msgspec.Struct, frozen=True):
    """``rope_scaling`` with ``rope_theta`` beside it, or the newer ``rope_parameters``."""

    fields: Fields
    keys: Keys
    head_dim: int

    def rope(self, theta: float) -> RopeConfig:
        name = "rope_type" if self.keys.has("rope_type") else "type"
        if self.fields.has("full_head_dim") and self.keys.raw(name) == "proportional":
            return self.proportional(theta)
        base = RopeConfig(
            theta,
            rotary_dim=self._rotary_dim(),
            query_beta=self._query_beta(),
            axes=self._axes(),
        )
        # Gemma 4's class has other ropes where its files say nothing, and they always do.
        default = None if self.fields.has("full_head_dim") else "default"
        kind = self.keys.word(name, _SCALINGS, default)
        if base.query_beta or kind in _OF_ORIGINAL:
            base = replace(base, original_max_positions=self._original())
        return _SCALINGS[kind](self, base)

    def proportional(self, theta: float) -> RopeConfig:
        """Pairs of the whole head, of which the last ones do not turn (Gemma 4)."""
        share = self.keys.number("partial_rotary_factor", 1.0, most=1.0)
        factor, n_pairs = self.keys.number("factor", 1.0, _LEAST), self.head_dim // 2
        turned = int(share * self.head_dim // 2)
        factors = (factor,) * turned + (float("inf"),) * (n_pairs - turned)
        return RopeConfig(theta, scaling="factors", factors=factors)

    def linear(self, base: RopeConfig) -> RopeConfig:
        return replace(base, scaling="linear", factor=self.keys.number("factor", least=1.0))

    def llama3(self, base: RopeConfig) -> RopeConfig:
        low, high = self.keys.number("low_freq_factor"), self.keys.number("high_freq_factor")
        if high <= low:
            expected = f"more than low_freq_factor = {low:g}"
            raise self.keys.error("high_freq_factor", high, expected)
        rope = replace(base, scaling="llama3", factor=self.keys.number("factor", least=1.0))
        return replace(rope, low_freq_factor=low, high_freq_factor=high)

    def yarn(self, base: RopeConfig) -> RopeConfig:
        keys, factor = self.keys, self._factor(base)
        names = ("mscale", "mscale_all_dim")
        mscale, mscale_all = (keys.number(name, 0.0, most=_MOST) for name in names)
        both = mscale > 0 and mscale_all > 0
        attention = yarn_attention(factor, mscale, mscale_all) if both else yarn_attention(factor)
        return replace(
            base,
            scaling="yarn",
            factor=factor,
            attention_factor=keys.number("attention_factor", attention, _LEAST, _MOST),
            beta_fast=keys.number("beta_fast", 32.0, _LEAST, _MOST),
            beta_slow=keys.number("beta_slow", 1.0, _LEAST, _MOST),
            truncate=keys.flag("truncate", self.fields.flag("yarn_truncate")),
            score_scale=_score_scale(self.fields, factor, 0.1 * mscale_all),
        )

    def longrope(self, base: RopeConfig) -> RopeConfig:
        n_pairs, factor = (base.rotary_dim or self.head_dim) // 2, self._factor(base)
        long, short = (self.keys.numbers(f"{kind}_factor", n_pairs) for kind in ("long", "short"))
        attention = 1.0
        if factor > 1.0 and base.original_max_positions > 1:
            attention = (1 + ln(factor) / ln(base.original_max_positions)) ** 0.5
        return replace(
            base,
            scaling="longrope",
            factors=short,
            long_factors=long,
            attention_factor=self.keys.number("attention_factor", attention, _LEAST, _MOST),
        )

    def dynamic(self, base: RopeConfig) -> RopeConfig:
        alpha, turned = self.fields.key("ntk_alpha"), base.rotary_dim or self.head_dim
        if turned < 4:
            raise self.fields.error("head_dim", turned, "4 elements or more that turn")
        if alpha and self.keys.has(alpha):
            grown = self.keys.number(alpha, least=1.0)
            return replace(base, theta=ntk_theta(base.theta, grown, turned))
        factor = self.keys.number("factor", least=1.0)
        original = self.fields.integer("max_positions")
        return replace(base, scaling="dynamic", factor=factor, original_max_positions=original)

    def _factor(self, base: RopeConfig) -> float:
        ratio = self.fields.integer("max_positions") / base.original_max_positions
        return self.keys.number("factor", ratio, 1.0) if self.keys.has("factor") else ratio

    def _original(self) -> int:
        name = "original_max_position_embeddings"
        longest = self.fields.integer("max_positions")
        return self.fields.keys.integer(name, self.keys.integer(name, longest))

    def _query_beta(self) -> float:
        if not self.fields.has("query_beta"):
            self.keys.refuse("llama_4_scaling_beta")
            return 0.0
        return self.keys.number(self.fields.key("query_beta"), 0.0, most=_MOST)

    def _axes(self) -> RopeAxes | None:
        """None where a model reads text alone: then all axes have one position."""
        name, own = "mrope_section", self.fields.family.rope_axes
        if own is None:
            return None
        said = self.keys.integers(name, AXES, least=0) if self.keys.has(name) else ()
        n_pairs = (self._rotary_dim() or self.head_dim) // 2
        return _axes_of(own, self.keys, name, said, n_pairs)

    def _rotary_dim(self) -> int:
        """0: the whole head."""
        name, share = "partial_rotary_factor", self._rotary_share()
        dim = self.fields.integer("rotary_dim", least=0) or int(self.head_dim * share)
        if dim % 2 or not 0 < dim <= self.head_dim:
            expected = f"an even part of the head size {self.head_dim}"
            raise self.fields.keys.error(name, share, expected)
        return 0 if dim == self.head_dim else dim

    def _rotary_share(self) -> float:
        name = "partial_rotary_factor"
        share, known = self.fields.number("rotary_share"), self.fields.has("rotary_share")
        own = self.fields.key("rotary_share") or name
        for keys, key in ((self.fields.keys, own), (self.keys, name)):
            share = keys.number(key, share)
            if share != 1.0 and not known:
                raise keys.error(key, share, "1.0")
        return share


def _axes_of(own: RopeAxes, keys: Keys, name: str, said: Sequence[int], n_pairs: int) -> RopeAxes:
    """Of M-RoPE, with the family's sections where a file says none; whether they are woven is the
    family's to say."""
    found = said or own.sections
    if sum(found) != n_pairs:
        raise keys.error(name, list(found), f"three sizes that add up to {n_pairs} pairs")
    time, height, width = found
    return replace(own, sections=(time, height, width))


def gguf_axes(own: RopeAxes, keys: Keys, n_pairs: int) -> RopeAxes:
    """As a GGUF file says them. Raises ModelError."""
    is_said = keys.has(_SECTIONS)
    *said, extra = keys.integers(_SECTIONS, AXES + 1, least=0) if is_said else (0,)
    if extra:
        raise keys.error(_SECTIONS, [*said, extra], "0 as the fourth")
    return _axes_of(own, keys, _SECTIONS, said, n_pairs)


_SECTIONS = "rope.dimension_sections"
"""In GGUF, with a fourth that is 0."""


_OF_ORIGINAL = ("llama3", "yarn", "longrope", "su")
"""Scalings that know the context before they were applied."""
_SCALINGS: Mapping[str, Callable[[_RopeTable, RopeConfig], RopeConfig]] = {
    "default": lambda table, base: base,
    "linear": _RopeTable.linear,
    "llama3": _RopeTable.llama3,
    "yarn": _RopeTable.yarn,
    "longrope": _RopeTable.longrope,
    "su": _RopeTable.longrope,
    "mrope": lambda table, base: base,
    "dynamic": _RopeTable.dynamic,
}


def _of_folder(fields: Fields, head_dim: int) -> RopeConfig:
    older, newer = fields.keys.table("rope_scaling"), fields.keys.table("rope_parameters")
    table = newer or older or Keys({}, "config.json: rope_parameters")
    table = table.table("full_attention") or table
    own = table.number("rope_theta", 0.0)
    return _RopeTable(fields, table, head_dim).rope(own or fields.number("theta", least=1.0))


def _of_windows(fields: Fields, rope: RopeConfig, head_dim: int) -> RopeConfig:
    """Without scaling, unless a folder says so; 0: the theta of the others."""
    theta = fields.number("window_theta") or rope.theta
    per_type = fields.keys.table("rope_parameters") if fields.kind == "hf" else None
    nested = per_type.table("sliding_attention") if per_type is not None else None
    if nested is not None:
        theta = nested.number("rope_theta", 1e4, least=1.0)
        return _RopeTable(fields, nested, head_dim).rope(theta)
    if fields.kind == "gguf" and fields.has("full_head_dim"):
        fields.keys.integer("rope.dimension_count_swa", head_dim, head_dim, head_dim)
    return RopeConfig(theta, rotary_dim=rope.rotary_dim)


def _of_gguf(fields: Fields, tensors: TensorTable, head_dim: int) -> RopeConfig:
    keys, rotary_dim = fields.keys, _gguf_rotary_dim(fields, head_dim)
    n_pairs, longest = rotary_dim // 2, fields.integer("max_positions")
    own = fields.family.rope_axes
    base = RopeConfig(
        fields.number("theta", least=1.0),
        rotary_dim=0 if rotary_dim == head_dim else rotary_dim,
        query_beta=fields.number("query_beta", most=_MOST),
        axes=None if own is None else gguf_axes(own, keys, n_pairs),
    )
    scaling = keys.word("rope.scaling.type", ("none", "linear", "yarn", "longrope"), "none")
    if base.query_beta or scaling in _OF_ORIGINAL or _LONG in tensors:
        original = keys.integer("rope.scaling.original_context_length", longest)
        base = replace(base, original_max_positions=original)
    if _FACTORS in tensors:
        if scaling != "none":
            raise keys.error("rope.scaling.type", scaling, f"none beside tensor {_FACTORS}")
        return replace(base, scaling="factors", factors=_factors(keys, tensors, _FACTORS, n_pairs))
    attention = keys.number("rope.scaling.attn_factor", 1.0, _LEAST, _MOST)
    if scaling == "longrope" or _LONG in tensors:
        long, short = (_factors(keys, tensors, name, n_pairs) for name in (_LONG, _SHORT))
        rope = replace(base, scaling="longrope", attention_factor=attention)
        return replace(rope, factors=short, long_factors=long)
    if scaling == "none":
        return base
    factor = keys.number("rope.scaling.factor", least=1.0)
    if scaling == "linear":
        return replace(base, scaling="linear", factor=factor)
    mscale_all = keys.number("rope.scaling.yarn_log_multiplier", 0.0, most=_MOST)
    grown = 1.0 if of_latents(fields) else yarn_attention(factor, 1.0, mscale_all)
    return replace(
        base,
        scaling="yarn",
        factor=factor,
        score_scale=_score_scale(fields, factor, mscale_all),
        attention_factor=attention
        * keys.number("rope.scaling.yarn_attn_factor", grown, most=_MOST),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0, _LEAST, _MOST),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0, _LEAST, _MOST),
        truncate=fields.flag("yarn_truncate"),
    )


def _gguf_rotary_dim(fields: Fields, head_dim: int) -> int:
    """Of a head; families whose heads turn as a whole have no other. Where none turns, files say
    anything."""
    if fields.integer("no_rope_every") == 1:
        return head_dim
    dim = fields.keys.integer("rope.dimension_count", head_dim)
    whole = not fields.has("rotary_share")
    if (whole and dim != head_dim) or dim > head_dim or dim % 2:
        expected = f"{'' if whole else 'an even part of '}the head size {head_dim}"
        raise fields.keys.error("rope.dimension_count", dim, expected)
    return dim


def _factors(keys: Keys, tensors: TensorTable, name: str, n_pairs: int) -> tuple[float, ...]:
    found = tensors.get(name)
    if found is None or found.shape != (n_pairs,):
        shape = None if found is None else found.shape
        raise keys.error(name, shape, f"{n_pairs} factors, one for each pair")
    values = tuple(float(f) for f in values_of(found))
    if not all(0 < value < float("inf") for value in values):
        raise keys.error(name, values, "positive factors")
    return values
