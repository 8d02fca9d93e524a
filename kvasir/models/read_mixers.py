"""What stands in place of attention: which layers have a convolution, and of how many taps."""

from __future__ import annotations

from kvasir.ir.ops.state import MAX_TAPS
from kvasir.models.fields import Fields
from kvasir.models.spec import MAX_LAYERS

_KINDS = ("full_attention", "conv")


def read_taps(fields: Fields, n_layers: int) -> tuple[int, ...]:
    """Of each layer's short convolution; 0 where there is attention."""
    if not fields.has("n_taps"):
        return (0,) * n_layers
    n_taps = fields.integer("n_taps", least=2, most=MAX_TAPS)
    return tuple(0 if attends else n_taps for attends in _attends(fields, n_layers))


def read_kv_heads(fields: Fields, n_layers: int) -> tuple[int, ...]:
    """Of each layer; one that has a convolution is said to have as many as the others."""
    if not fields.has("n_taps"):
        return fields.integers("n_kv_heads", n_layers)
    return (_kv_heads(fields),) * n_layers


def _kv_heads(fields: Fields) -> int:
    """Of the layers that have any: GGUF files list them for each, none where a convolution is."""
    key = fields.key("n_kv_heads")
    listed = fields.keys.raw(key) if key else None
    if not isinstance(listed, list | tuple):
        return fields.integer("n_kv_heads")
    counts = {count for count in listed if count != 0}
    if len(counts) != 1 or not all(type(count) is int and count > 0 for count in counts):
        raise fields.error("n_kv_heads", listed, "one number of KV heads, and 0 of convolutions")
    return int(counts.pop())


def _attends(fields: Fields, n_layers: int) -> list[bool]:
    """As said for each layer, or by a list of those that do; else all."""
    if fields.kind == "gguf":
        return [count != 0 for count in _listed_heads(fields, n_layers)]
    kinds, listed = fields.key("mixers"), fields.keys.raw(fields.key("attention_layers"))
    if fields.keys.has(kinds):
        return [kind == _KINDS[0] for kind in fields.keys.items(kinds, _KINDS, n_layers)]
    if listed is None:
        return [True] * n_layers
    is_list = isinstance(listed, list)
    if not is_list or not all(type(i) is int and 0 <= i < MAX_LAYERS for i in listed):
        raise fields.error("attention_layers", listed, "a list of layers")
    return [i in listed for i in range(n_layers)]


def _listed_heads(fields: Fields, n_layers: int) -> tuple[int, ...]:
    """One number stands for all layers."""
    key, count = fields.key("n_kv_heads"), _kv_heads(fields)
    if not isinstance(fields.keys.raw(key), list | tuple):
        return (count,) * n_layers
    return fields.keys.items(key, (0, count), n_layers)
