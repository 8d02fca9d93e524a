"""What a family of models is: a value. ``models/families`` has a file for each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from kvasir.models.spec import BlockSpec, RopeAxes

Default = bool | int | float | str | None
_PLAIN = BlockSpec()


class ModelField(NamedTuple):
    """What config.json and GGUF metadata (there after the architecture's name) call something, and
    what it is in a file that does not say it; None: it has to.

    Files of a kind whose key is empty never say it. A bias or a tied head without a GGUF key is
    there when its tensors are."""

    hf: str
    gguf: str = ""
    default: Default = None
    gguf_default: Default = None


def always(value: Default) -> ModelField:
    """Of a family in which something is the same for all models."""
    return ModelField("", "", value, value)


class TensorNames(NamedTuple):
    """The tensors of a weight, or of a weight of each layer, without prefix and ".weight"; {e} is
    an expert, {qkv} each of q, k and v, whose tensors lie one below the other. To a name that ends
    in a point nothing is added. Steps are names of ``weights.transforms`` between tensor and
    weight, spaces between them."""

    hf: str
    gguf: str
    hf_step: str = ""
    gguf_step: str = ""


_NOTHING: tuple[tuple[Default, str], ...] = (
    (
        0,
        """window first_window full_every no_rope_every rotary_dim n_types n_experts
        full_head_dim full_kv_heads shared_layers layer_embed layer_vocab active_stream
        laurel_rank expert_size shared_size expert_width n_shared first_sparse draft_layers
        other_ffn_size scan_inner scan_rank first_layer""",
    ),
    (True, "use_windows yarn_truncate has_experts normalize scan_normed"),
    (
        False,
        """full_first learned_positions multi_query grouped_query parallel head_bias
        keys_are_values wide_shared scaled_stream choice_bias ffn_adjusts qkv_bias o_bias
        mlp_bias conv_bias tiled_heads scan_beside scan_norm_first""",
    ),
    (
        0.0,
        """attention_scale query_scalar query_beta rms_eps attention_softcap final_softcap
        residual_depth logit_base scan_expand""",
    ),
    (
        1.0,
        """rotary_share embed_scale residual_scale logit_scale logit_divisor expert_scale
        key_scale attention_in attention_out scan_in_scale scan_out_scale""",
    ),
    (-1, "padding_id last_sparse"),
    (1, "n_streams n_groups top_groups sparse_every"),
    ("", "positions_by"),
    ("silu", "scan_act act"),
    (None, "sparsity"),
    ("softmax", "expert_score"),
    ("group_limited_greedy", "group_rule"),
)
NEUTRAL: Mapping[str, Default] = MappingProxyType(
    {name: value for value, names in _NOTHING for name in names.split()}
)
"""What a family has that leaves a field out: as if it were not there."""


class EncoderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What distinguishes the tower of a family that sees images."""

    encoders: tuple[str, ...]
    """Begin names of tensors of its encoder, as one file or another spells them."""
    connectors: tuple[str, ...] = ()
    """The same, in the same order, of what makes its rows those of the language model, where that
    is not a part of it."""
    block: BlockSpec
    """Flags of the encoder."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Begin names of tensors."""
        return self.encoders + self.connectors


class NamedEncoderSpec(EncoderSpec, frozen=True, kw_only=True):
    names: Mapping[str, str]
    """Of weights, behind that: of the whole, of a layer, of a merger; {} is a number. To a name
    that ends in a point nothing is added."""
    sizes: Mapping[str, int]
    """In a ``vision_config`` that does not say them."""


class TowerSpec(EncoderSpec, frozen=True, kw_only=True):
    """Of tiles of one size (``checkpoints.tower``)."""

    fields: Mapping[str, ModelField]
    """Of ``vision_config``."""
    tensors: Mapping[str, TensorNames]
    """Weights of the encoder, those of layers behind ``layers`` and a number."""
    connector: Mapping[str, TensorNames]
    """Weights of the connector."""
    image: ModelField
    """The token that stands for a row, in config.json."""
    layers: str = "encoder.layers"
    cuts: str = "grid"
    """How an image becomes tiles: "grid", cut into whole tiles of a fixed longer side, and one of
    the whole behind them; "shape", the same of as many as come near its shape; "whole", that one
    alone, whose rows are means of patches, not patches side by side; "paved", cut in its shape into
    the tiles of a size that is listed, and one of the whole before them."""
    newlines: tuple[str, ...] = ()
    """The tensor of the row behind each line of an image, as one file or another spells it."""
    unused: tuple[str, ...] = ("head.",)
    """Begin names of tensors of the encoder that no row of a patch is made of."""
    harmless: Mapping[str, tuple[object, ...]] = MappingProxyType({})
    """Of ``vision_config``, as in ``Family``."""
    above: Mapping[str, tuple[object, ...]] = MappingProxyType({})
    """Of config.json itself."""
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    """Of channels, in processors that do not say it."""
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    @property
    def prefixes(self) -> tuple[str, ...]:
        return self.encoders + self.connectors + self.newlines


class QwenTowerSpec(NamedEncoderSpec, frozen=True, kw_only=True):
    """Of a family of Qwen (``checkpoints.qwen_tower``)."""

    keys: Mapping[str, str] = MappingProxyType({})
    """What ``vision_config`` calls sizes, where that is another name."""
    patch_bias: bool = True
    of_gguf: bool = False
    """The kernel of a patch is a tensor for each frame, and mergers of early rows have the numbers
    of their layers."""
    taps: tuple[int, ...] = ()
    """Layers whose rows are merged beside the last ones, in a file that does not say it."""
    full: tuple[int, ...] = ()
    """Layers that see the whole image, in a file that does not say it, where others see windows."""


class PixtralTowerSpec(QwenTowerSpec, frozen=True, kw_only=True):
    """The same of Pixtral and Mistral 3 (``checkpoints.pixtral_tower``): lines turn by every other
    frequency of a head, columns by those between; behind each line of an image is a token."""

    image: tuple[str, ...]
    """What config.json calls the token that stands for a row."""
    fold: tuple[str, int]
    """Patches of a side of a row: what config.json calls it, and where it says none."""
    merger_bias: bool
    """Of the merger's matrices, in a file that does not say it."""
    above: Mapping[str, tuple[object, object]]
    """Of config.json, what runs, and what holds in a file that does not say it."""
    permuted: bool = False
    """Rows of queries and keys are reordered, as in GGUF files of llama."""


class PooledTowerSpec(NamedEncoderSpec, frozen=True, kw_only=True):
    """Of Gemma 4 (``checkpoints.pooled_tower``): images of any shape, places in a table of columns
    and one of lines, rows that are means of neighbours."""

    tokens: tuple[tuple[str, int], ...]
    """What stands for a row, before an image and behind it: what config.json calls each, and what
    it is where it does not say it."""


AnyTowerSpec = TowerSpec | QwenTowerSpec | PooledTowerSpec


class Family(msgspec.Struct, frozen=True):
    """Relatives are made with ``msgspec.structs.replace``."""

    name: str
    architectures: tuple[str, ...]
    """In config.json."""
    gguf: str
    """The architecture of its GGUF files; empty: they are those of another family. There may be
    several, spaces between them."""
    fields: Mapping[str, ModelField]
    tensors: Mapping[str, TensorNames]
    harmless: Mapping[str, tuple[object, ...] | None]
    """Keys of either kind of file that no field reads, with the values that change nothing: any
    other is refused. None: no value changes anything."""
    hf_layers: str = "model.layers"
    """Before the number of a layer, in names of tensors of folders."""
    block: BlockSpec = _PLAIN
    """Flags that all members share."""
    sqrt_embed: bool = False
    """Embeddings are multiplied by the root of their width."""
    full_without_rope: bool = False
    """Where the file has a window, layers that do not slide have no rope."""
    rope_axes: RopeAxes | None = None
    """Of M-RoPE, in a file that does not say its sections."""
    text_key: str = ""
    """Where config.json of a model that sees images has the fields of its language model."""
    text_ties: bool = False
    """There, too, may stand that the head is tied, if not beside it."""
    text_beside: bool = False
    """Files without that have them beside those of the tower."""
    tower: AnyTowerSpec | None = None
    """Of a family that sees images."""
    text_alone: bool = False
    """Of such a model the language model alone runs, and its own folders have no other part."""
    unnormed_experts: int = 0
    """A GGUF file of so many experts norms no queries and keys: these norms have no tensors."""
    nested: Mapping[str, str] = MappingProxyType({})
    """Fields that config.json may have in tables, "table.field", and what they are read as."""
    told_from: str = ""
    """The family of the same name in files that has all of its tensors but some."""
    unread_tower: tuple[str, ...] = ()
    """Begin names of tensors of a tower that is not computed."""
    wide_scale_layers: int = 0
    """A GGUF file of so many layers scales attention by the width of a token over its heads."""

    @property
    def tower_tensors(self) -> tuple[str, ...]:
        """Begin names of tensors of the tower."""
        return self.unread_tower + (() if self.tower is None else self.tower.prefixes)
