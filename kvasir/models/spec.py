"""What distinguishes one decoder from another, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kvasir.ir.ops.scan import scan_columns
from kvasir.ir.ops.state import conv_size
from kvasir.ir.program import STATE_ITEM_BYTES
from kvasir.models.multiplier_spec import Multipliers
from kvasir.models.stream_spec import StreamSpec

MAX_LAYERS = MAX_HEAD_DIM = 1024
MAX_POSITIONS = 1 << 24
"""A config that claims more is corrupt: programs are built before any tensor is looked up."""

ROPE, ROPE_WINDOW, NO_ROPE, ROPE_STILL = "rope", "rope_window", "rope_none", "rope_still"
"""Names of ropes: of layers, of those with a window where these have one of their own, of those
that have none, and of those that have none but entries with a part for it, or queries that grow."""


class BlockSpec(msgspec.Struct, frozen=True):
    """How a block differs from: norm, attention, add, norm, gated MLP or experts, add."""

    act: str = "silu"
    """Of the MLP: a name of ``ir.ops.rows.ACTIVATIONS``, or "quick_gelu"."""
    gated: bool = True
    """The MLP multiplies the activation by a second projection."""
    norm: str = "rms"
    """Of rows: "rms", "layer" or "layer_bias"."""
    parallel: bool = False
    """Attention and MLP read the same rows, and both are added to them."""
    one_norm: bool = False
    """Of a parallel block: the MLP reads the norm that attention reads."""
    interleaved_rope: bool = False
    """Rope turns neighbours, not each half with the other."""
    qk_norm: str = "none"
    """RMS norm of queries and keys: "heads", of each head; "width", of all heads as one row, as the
    block's other norms are;
    "turned", of each head after rope; "bare", the same without a weight, in layers with rope;
    "all", of each head and, without a weight, of each value."""
    pre_norms: bool = True
    """A norm before attention and before the MLP."""
    post_norms: bool = False
    """A norm after attention and after the MLP, before each is added."""
    sum_norms: bool = False
    """A norm of the embeddings, and of each sum of a block, in place of those before its parts."""
    sums_twice: bool = False
    """What attention adds is added to once more, and normed again."""
    embed_norm: bool = False
    """A norm of the embeddings, in place of that before the first attention."""
    both_ways: bool = False
    """A token sees those that follow it, too."""
    spans: bool = False
    """Tokens of a tile see each other, in all layers."""
    near_spans: bool = False
    """In those with a window alone."""
    chunked: bool = False
    """Windows are of runs of so many positions, of which a token sees its own."""
    alibi: bool = False
    """Scores of attention lean: the farther a key, the lower (Press et al. 2022)."""
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    down_bias: bool = False
    """Of the MLP's last matrix, where the others have none."""
    sinks: bool = False
    """A logit of each query head joins the softmax of attention."""
    expert_bias: bool = False
    """Of the router and of the experts' matrices."""
    weighs_input: bool = False
    """Routing weights are of what experts read, not of what they give."""
    shared_gate: bool = False
    """Shared experts are weighed by the sigmoid of a gate."""
    output_gate: bool = False
    """What attention gives is multiplied by the sigmoid of a projection of its rows."""
    head_bias: bool = False
    """Of the LM head."""
    beside: bool = False
    """Experts and MLP read the block's rows side by side, each with norms of its own; the router
    norms them, too, and each expert has a factor."""
    layer_scale: bool = False
    """What a block gives has a factor."""
    part_scales: bool = False
    """What attention and the MLP give has a factor of each column."""

    @property
    def sees_ahead(self) -> bool:
        """Some tokens see others that follow them."""
        return self.both_ways or self.spans


class RopeAxes(msgspec.Struct, frozen=True):
    """M-RoPE: pairs turn by positions on three axes, time, height and width (op ``angles``)."""

    sections: tuple[int, int, int]
    """Pairs of each."""
    woven: bool = False
    """Not one section behind the other."""


class RopeConfig(msgspec.Struct, frozen=True):
    """Rotary embedding: angle = position * theta^(-2i / rotary_dim), stretched as ``scaling`` says.

    "none"; "linear": frequencies divided by ``factor``; "llama3": Llama 3.1's smooth split by
    wavelength; "yarn" (Peng et al. 2023): another, by turns within the original context; "factors":
    each frequency divided by its own entry of ``factors`` (GGUF's rope_freqs). Two depend on the
    longest request: "longrope" divides by ``long_factors`` where that is longer than the original
    context, else by ``factors``; "dynamic" raises theta, so that a context grown by ``factor``
    turns the last pair ``factor`` times as slowly.
    """

    theta: float
    scaling: str = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    beta_fast: float = 32.0
    """Turns within the original context from which YaRN leaves a frequency as it is."""
    beta_slow: float = 1.0
    """Turns up to which it divides one by all of ``factor``."""
    truncate: bool = True
    """The pairs where these begin are whole."""
    attention_factor: float = 1.0
    """Of cos and sin."""
    rotary_dim: int = 0
    """Elements of a head that turn, from its first on; 0: all."""
    query_beta: float = 0.0
    """Queries at position p are multiplied by 1 + beta ln(1 + floor(p / original context))."""
    query_offset: int = 0
    """Of p in that."""
    score_scale: float = 1.0
    """Of scores, beside the model's own: YaRN's in latent attention."""
    axes: RopeAxes | None = None
    """None: of the index of a token alone."""

    def stretched(self, positions: int) -> int:
        """The longest context of a model for ``positions`` that this rope makes longer."""
        if self.scaling == "yarn":
            longer = int(self.factor * self.original_max_positions)
        else:
            longer = int(self.factor * positions) if self.scaling == "dynamic" else positions
        return min(max(positions, longer), MAX_POSITIONS)


class ExpertConfig(msgspec.Struct, frozen=True):
    """The rules are those of the op ``route``."""

    n_experts: int
    top_k: int
    normalize: bool = True
    """Routing weights of the chosen experts are divided by their sum."""
    score: str = "softmax"
    """Or "sigmoid" or "late_sigmoid"."""
    has_bias: bool = False
    """A bias of each expert counts where experts are chosen, not where they are weighed."""
    n_groups: int = 1
    top_groups: int = 1
    """Experts are chosen from so many groups."""
    scale: float = 1.0
    """Of the routing weights."""
    shared_size: int = 0
    """Inner size of an MLP that sees every token; 0: none."""
    width: int = 0
    """Of the rows that experts read and give, which two more matrices make; 0: the model's."""


class LatentSpec(msgspec.Struct, frozen=True):
    """Sizes of latent attention (MLA): a token keeps ``rank`` numbers that stand for its keys and
    values in all heads, and one key of ``rope_dim`` that turns."""

    rank: int
    rope_dim: int
    key_dim: int
    """Of a head's key, the part that does not turn."""
    value_dim: int
    query_rank: int
    """Of what queries are made from; 0: from the rows themselves."""
    norm_eps: float
    """Of the norms of both."""
    whole: bool
    """A GGUF file has the matrices of keys and values in one tensor."""

    @property
    def query_dim(self) -> int:
        """Of a head."""
        return self.key_dim + self.rope_dim


class ScanSpec(msgspec.Struct, frozen=True):
    """Sizes of a linear scan (op ``linear_scan``), and of the convolution in front of it."""

    rule: str
    """"ssd", "delta" or "kda"."""
    n_heads: int
    head_dim: int
    """Columns of a head's state."""
    n_groups: int
    state_dim: int
    """Rows of a head's state."""
    n_taps: int
    conv_bias: bool = False
    least: float = 0.0
    most: float = float("inf")
    """Bounds of the time step."""
    tiled: bool = False
    """Heads of a group are n_groups apart."""
    norm: str = "gated"
    """Of the rule "ssd", in groups: "gated", of what the gate gives; "plain", of what it reads; or
    "none"."""
    low_rank: int = 0
    """Columns that gate and steps are made from, each from its own; 0: from the rows themselves."""
    apart: bool = False
    """What it reads of q, k and v is made by three matrices."""

    @property
    def steps(self) -> int:
        """Columns of the steps: one of each head, or of each row of its state."""
        return self.n_heads * (self.state_dim if self.rule == "kda" else 1)

    @property
    def read_columns(self) -> int:
        """Of all that the recurrence reads of a token: rows, steps, shares."""
        shares = 0 if self.rule == "ssd" else self.n_heads
        return self.columns + self.steps + shares

    @property
    def inner(self) -> int:
        """Columns of the result."""
        return self.n_heads * self.head_dim

    @property
    def vectors(self) -> int:
        """Columns of one vector of all groups."""
        return self.n_groups * self.state_dim

    @property
    def columns(self) -> int:
        """Of the rows that convolution and scan read."""
        return scan_columns(self.n_heads, self.head_dim, self.n_groups, self.state_dim)

    @property
    def state_sizes(self) -> tuple[int, int]:
        """Numbers that the convolution and the scan keep of a sequence."""
        return conv_size(self.columns, self.n_taps), self.inner * self.state_dim


class LayerSpec(msgspec.Struct, frozen=True):
    """What one layer computes: attention, a short convolution or a scan, if it ``mixes`` tokens;
    then an MLP of ``ffn_size``, experts of it, or where that is 0 nothing. With latents there is
    one KV head, of the size of what a token keeps."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_size: int
    window: int = 0
    """Tokens that a token sees, itself included, on either side where it sees both; 0: all."""
    rope: str = ROPE
    """Of ``ModelConfig.ropes``, or ``NO_ROPE``."""
    experts: ExpertConfig | None = None
    n_taps: int = 0
    """Of the short convolution that stands in place of attention, the newest token included; 0:
    there is none."""
    scan: ScanSpec | None = None
    """It stands in place of attention."""
    scan_beside: bool = False
    """Attention stands, too: both read the same rows, and are added."""
    mixes: bool = True
    source: int | None = None
    """The layer whose keys and values it reads; None: it writes its own."""
    keys_are_values: bool = False
    """Before norms and rope."""
    latent: LatentSpec | None = None
    deviations: float | None = None
    """Of the gate of its MLP only what is so many standard deviations above the mean counts."""

    @property
    def attends(self) -> bool:
        return self.mixes and not self.n_taps and (self.scan is None or self.scan_beside)

    @property
    def n_kept(self) -> int:
        """Of its own in the KV memory: keys and values, then states."""
        own = int(self.source is None and (self.attends or self.n_taps > 0))
        return own + (0 if self.scan is None else len(self.scan.state_sizes))

    @property
    def turned_dim(self) -> int:
        """Of a head that rope turns as a whole."""
        return self.head_dim if self.latent is None else self.latent.rope_dim

    @property
    def kv_vectors(self) -> int:
        """That a token keeps: a key and a value for each KV head, or its latent."""
        return 2 * self.n_kv_heads if self.latent is None else 1


class ModelConfig(msgspec.Struct, frozen=True):
    """Sizes and constants of one model; ``kind`` is that of its file, "gguf" or "hf"."""

    family: str
    kind: str
    block: BlockSpec
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    max_positions: int
    """Longest context the model was made for."""
    norm_eps: float
    attention_scale: float
    ropes: Mapping[str, RopeConfig]
    """Those that layers use, by name."""
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    """Of what attention and MLP add."""
    head_share: float = 1.0
    """Of a head's numbers: the others are padding, and its norms count them. So normed values are
    too large by its root; of queries and keys ``attention_scale`` is that much smaller."""
    multipliers: Multipliers = Multipliers()
    logit_scale: float = 1.0
    """Before the soft cap."""
    tied: bool = False
    """The LM head is the embedding matrix."""
    token_types: int = 0
    """Vectors of types of tokens: the first is added to all."""
    learned_positions: bool = False
    """A vector for each position is added to its token's; there are ``max_positions``."""
    first_position: int = 0
    """Row of that table in a folder that belongs to the first token."""
    layer_embed: int = 0
    """Width of the embeddings of tokens that each layer has of its own; 0: none."""
    layer_vocab: int = 0
    """Their tokens; those behind them have the first one's."""
    streams: StreamSpec | None = None
    headless: bool = False
    """It gives vectors or labels: there is no LM head, and ``tied`` stands in."""
    base: str = ""
    """Before names of a folder's tensors, in place of what the family has there."""
    fused_qkv: bool | None = None
    """A GGUF file has q, k and v in one tensor, or in three, whatever others of the family do."""
    draft_layers: int = 0
    """Behind ``layers``: they guess further tokens, and nothing runs them."""
    sees: bool = False
    """Rows of a tower may stand in place of embeddings."""
    deep_layers: int = 0
    """Early ones, behind each of which others of the tower's rows are added."""
    unread: tuple[str, ...] = ()
    """Fields of config.json that nothing here knows."""

    @property
    def writes(self) -> bool:
        """It gives tokens, not only vectors and labels."""
        return not (self.headless or self.block.both_ways)

    @property
    def kv_layers(self) -> tuple[LayerSpec, ...]:
        """Those that write keys and values."""
        return tuple(x for x in self.layers if x.source is None and x.attends)

    @property
    def windows(self) -> tuple[int, ...]:
        """Of keys and values that each layer keeps; empty: all keep everything, as do encoders."""
        windows = tuple(layer.window for layer in self.kv_layers)
        return windows if any(windows) and not self.block.both_ways else ()

    @property
    def state_bytes(self) -> tuple[int, ...]:
        """Of a sequence: each state that a layer keeps in place of keys and values."""
        sizes: list[int] = []
        for layer in self.layers:
            sizes += [conv_size(self.hidden_size, layer.n_taps)] if layer.n_taps else []
            sizes += layer.scan.state_sizes if layer.scan is not None else ()
        return tuple(STATE_ITEM_BYTES * size for size in sizes)

    @property
    def kept_bytes(self) -> int:
        """Of a drafted token: what layers with a state keep until it is known whether it is right:
        inputs of convolutions; rows, steps and shares of scans."""
        n = sum(self.hidden_size for layer in self.layers if layer.n_taps)
        for scan in [layer.scan for layer in self.layers if layer.scan is not None]:
            n += scan.columns + scan.read_columns
        return STATE_ITEM_BYTES * n

    def kept_at(self, layer: int) -> int:
        """Where in the KV memory that begins which a layer keeps: so many are kept before it."""
        return sum(each.n_kept for each in self.layers[:layer])
