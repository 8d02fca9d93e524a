"""Heads that draft: a layer over what a target knows of a token, and the token after it.

EAGLE (Li et al., arXiv 2401.15077) reads the target's last rows; EAGLE-3 (arXiv 2503.01840) rows
behind three of its layers, and draws from fewer tokens; MTP (DeepSeek-V3, arXiv 2412.19437) are
layers that a checkpoint has behind its own. Behind a token that was drafted all read their own rows
in the place of the target's.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kvasir.ir.builder import Builder, WeightMaker
from kvasir.ir.bundle import DRAFT
from kvasir.ir.program import FloatArray, Program, Weight
from kvasir.ir.vocabulary import drawing_target_ids
from kvasir.models.decoder import record_blocks, record_reading_block
from kvasir.models.export import After, Export
from kvasir.models.lm_head import last_norm, record_logits
from kvasir.models.parts import record_embed, record_linear, record_norm
from kvasir.models.record_rope import record_ropes
from kvasir.models.spec import ModelConfig

FEATURE = "feature"
"""Of the target: f32 [T, hidden], what a head reads of each token."""
_OF_TARGET = f"{DRAFT}."
"""Before the names of a head's weights that the target's program has."""
_FEATURES = f"{_OF_TARGET}features"


class HeadLayout(msgspec.Struct, frozen=True):
    """How a head is made, and where its tensors lie."""

    tensors: Mapping[str, str]
    """Of weights that belong to no layer, without ".weight"; those that are missing are the
    target's."""
    layer: str
    """Before the names of the tensors of its layer."""
    norms: bool = False
    """Of what it reads of both tokens, before they are joined."""
    reads: bool = False
    """Attention reads both tokens, side by side; else the layer reads what a matrix makes of
    them."""
    bias: bool = False
    """Of that matrix."""
    feature_bias: bool = False


class DraftHead(msgspec.Struct, frozen=True):
    """A head and its target; weights come from nowhere."""

    method: str
    layout: HeadLayout
    config: ModelConfig
    """Of its one layer."""
    target: ModelConfig
    taps: tuple[int, ...] = ()
    """Layers of the target behind which it reads; none: what is normed for the logits."""
    of_target: FloatArray | None = None
    """[own tokens] ids of those that it draws; None: it draws all."""

    @property
    def shared(self) -> tuple[str, ...]:
        """Weights of the target that it has, too."""
        names = ("embed", self.logits)
        return tuple(dict.fromkeys(x for x in names if x not in self.layout.tensors))

    @property
    def logits(self) -> str:
        """The matrix of its logits."""
        is_own = "lm_head" in self.layout.tensors or not self.target.tied
        return "lm_head" if is_own else "embed"

    def weight(self, name: str, shape: tuple[int, ...]) -> Weight:
        """Where a weight of its program lies."""
        return Weight(name, shape)


class HeadExport(Export):
    """What a target gives its head: ``FEATURE``."""

    def __init__(self, head: DraftHead) -> None:
        self._head = head

    def weights(self, own: WeightMaker) -> WeightMaker:
        head = self._head

        def maker(name: str, shape: tuple[int, ...]) -> Weight:
            if not name.startswith(_OF_TARGET):
                return own(name, shape)
            found = head.weight(name.removeprefix(_OF_TARGET), shape)
            return msgspec.structs.replace(found, name=name)

        return maker

    def tapping(self, after: After | None, tapped: dict[int, str]) -> After | None:
        taps = self._head.taps
        if not taps:
            return after

        def tap(layer: int, x: str) -> str:
            if layer in taps:
                tapped[layer] = x
            return x if after is None else after(layer, x)

        return tap

    def record(
        self, builder: Builder, config: ModelConfig, x: str, tapped: dict[int, str]
    ) -> tuple[str, ...]:
        head = self._head
        if not head.taps:
            return (record_norm(builder, config, x, last_norm(config), FEATURE),)
        rows = builder.op("join_columns", tuple(tapped[i] for i in head.taps), "taps")
        n, bias = head.config.hidden_size, head.layout.feature_bias
        return (record_linear(builder, rows, _FEATURES, FEATURE, n, bias),)


def is_of_target(weight: str) -> bool:
    """Whether a weight of a target's program is its head's."""
    return weight.startswith(_OF_TARGET)


def head_program(head: DraftHead, max_positions: int) -> tuple[Program, str]:
    """The raw program, and the output that takes the place of ``FEATURE`` behind drafted tokens.
    ``max_positions``: rows of the rope tables."""
    config, layout = head.config, head.layout
    builder = Builder(head.method, head.weight)
    tokens = builder.input("tokens", ("T",), "i32")
    builder.input("positions", ("T",), "i32")
    logit_rows = builder.input("logit_rows", ("R",), "i32")
    feature = builder.input(FEATURE, ("T", config.hidden_size), "f32")
    record_ropes(builder, config, max_positions)
    shape = head.target.vocab_size, config.hidden_size
    both = [record_embed(builder, tokens, "embed", shape, "x.token"), feature]
    if layout.norms:
        names = ("layers.0.attn_norm" if layout.reads else "token_norm", "feature_norm")
        outs = ("x.token.norm", "x.feature.norm")
        both = [
            record_norm(builder, config, x, name, out)
            for x, name, out in zip(both, names, outs, strict=True)
        ]
    joined = builder.op("join_columns", tuple(both), "x.joined")
    if layout.reads:
        x = record_reading_block(builder, config, feature, joined)
    else:
        x = record_linear(builder, joined, "join", "x", config.hidden_size, layout.bias)
        x = record_blocks(builder, config, x)
    rows = builder.op("gather_rows", (x, logit_rows), "rows")
    if "final_norm" in layout.tensors:
        rows = record_norm(builder, config, rows, "final_norm", "rows.norm")
    ids = head.of_target
    n = head.target.vocab_size if ids is None else len(ids)
    drawn = record_logits(builder, config, rows, head.logits, n)
    program = builder.build((*drawn, x))
    return program if ids is None else drawing_target_ids(program, ids, head.target.vocab_size), x
