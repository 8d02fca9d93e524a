"""Which part stands in each layer of a model whose layers have one each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kvasir.checkpoints.fields import Fields
from kvasir.models.spec import MAX_LAYERS

SCAN, ATTENTION, MLP, EXPERTS = "scan", "attention", "mlp", "experts"
MIXERS = (SCAN, ATTENTION)
_WORDS: Mapping[object, str] = MappingProxyType(
    {
        "linear_attention": SCAN,
        "mamba": SCAN,
        "full_attention": ATTENTION,
        "attention": ATTENTION,
        "mlp": MLP,
        "moe": EXPERTS,
    }
)
_LETTERS: Mapping[object, str] = MappingProxyType(
    {"M": SCAN, "*": ATTENTION, "-": MLP, "E": EXPERTS}
)
"""Of config.json, in a list or in one word."""


def read_parts(fields: Fields) -> tuple[str, ...]:
    """Of each layer; empty in a family of layers with a mixer and an MLP."""
    if not fields.has("parts"):
        return ()
    if fields.kind == "gguf":
        return _by_sizes(fields)
    name = "parts" if fields.keys.has(fields.key("parts")) else "pattern"
    said, known = fields.raw(name), _WORDS if name == "parts" else _LETTERS
    is_listed = isinstance(said, list if name == "parts" else str)
    if not is_listed or not 0 < len(said) <= MAX_LAYERS or not all(x in known for x in said):
        expected = f"1 to {MAX_LAYERS} layers, each one of {', '.join(map(str, known))}"
        raise fields.error(name, said, expected)
    return tuple(known[x] for x in said)


def _by_sizes(fields: Fields) -> tuple[str, ...]:
    """A layer of an inner size is an MLP, or experts in a model that has any; one with KV heads
    attends. Layers that guess further tokens are listed, too."""
    n, drafts = fields.integer("n_layers", most=MAX_LAYERS), fields.integer("draft_layers", least=0)
    kv, inner = fields.key("n_kv_heads"), fields.key("ffn_size")
    kv_heads = fields.keys.integers(kv, n, least=0)
    sizes = fields.keys.integers(inner, n, least=0)
    own = EXPERTS if fields.integer("n_experts", least=0) else MLP
    both = zip(kv_heads[: n - drafts], sizes, strict=False)
    return tuple(own if size else ATTENTION if heads else SCAN for heads, size in both)
