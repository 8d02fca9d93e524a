"""What distinguishes one decoder from another, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass

MAX_LAYERS = 1024
MAX_EXPERTS = 1024
MAX_HEAD_DIM = 1024
"""A config that claims more is corrupt: programs are built before any tensor is looked up."""


@dataclass(frozen=True, slots=True)
class BlockSpec:
    """Flags of a block: norm, attention, add, norm, gated MLP or experts, add."""

    act: str = "silu"
    """Of the gated MLP: "silu", "gelu_tanh" or "gelu"."""
    qk_norm: bool = False
    """RMS norm of each query and key head before rope."""
    post_norms: bool = False
    """A norm after attention and after the MLP, before each is added."""
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: angle = position * theta^(-2i / rotary_dim), stretched as ``scaling`` says.

    "none"; "linear": frequencies divided by ``factor``; "llama3": Llama 3.1's smooth split by
    wavelength; "factors": each frequency divided by its own entry of ``factors`` (GGUF's
    rope_freqs).
    """

    theta: float
    scaling: str = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpertConfig:
    n_experts: int
    top_k: int
    normalize: bool = True
    """Routing weights of the chosen experts are divided by their sum."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of one model; ``kind`` is that of its file, "gguf" or "hf"."""

    family: str
    kind: str
    block: BlockSpec
    vocab_size: int
    hidden_size: int
    ffn_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    max_positions: int
    """Longest context the model was made for."""
    norm_eps: float
    attention_scale: float
    rope: RopeConfig
    window_rope: RopeConfig | None = None
    """Rope of windowed layers where it differs."""
    windows: tuple[int, ...] = ()
    """Per layer the sliding window in tokens, 0 for full attention; empty: all full."""
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
    embed_scale: float = 1.0
    tied: bool = False
    """The LM head is the embedding matrix."""
    experts: ExpertConfig | None = None
    classifies: bool = False
    """It gives labels to texts and writes none: there is no LM head, and ``tied`` stands in."""

    def window(self, layer: int) -> int:
        return self.windows[layer] if self.windows else 0
