"""Readers of what layers that keep everything have apart from those that slide, and of layers that
read the keys and values of others."""

from __future__ import annotations

from msgspec.structs import replace

from kvasir.checkpoints.fields import Fields
from kvasir.checkpoints.keys import Keys
from kvasir.checkpoints.tensors import tensor_name
from kvasir.formats.mapped import TensorTable
from kvasir.models.spec import MAX_HEAD_DIM, LayerSpec

_OWN = "per_layer_config"
"""Of folders that ``transformers`` saved: by layer."""


def with_kv(
    fields: Fields, tensors: TensorTable, layers: tuple[LayerSpec, ...]
) -> tuple[LayerSpec, ...]:
    """The layers with their own heads, and where their keys and values are."""
    if not fields.has("shared_layers"):
        return layers
    own = list(layers)
    if fields.has("full_head_dim"):
        if layers[-1].window:
            raise fields.error("layer_types", "a window in the last layer", "none there")
        own = [_full(fields, tensors, i, x) if not x.window else x for i, x in enumerate(layers)]
    first = len(layers) - fields.integer("shared_layers", least=0, most=len(layers) - 1)
    return (*own[:first], *(_shared(fields, own[:first], layer) for layer in own[first:]))


def _full(fields: Fields, tensors: TensorTable, index: int, layer: LayerSpec) -> LayerSpec:
    dim = fields.integer("full_head_dim", least=2, most=MAX_HEAD_DIM)
    if fields.kind == "gguf":
        fields.keys.integer("attention.value_length", dim, dim, dim)
        _check_even(fields, dim)
        value = tensor_name(fields.family, "gguf", f"layers.{index}.v")
        return replace(layer, head_dim=dim, keys_are_values=value not in tensors)
    own, same = _own_config(fields, index), fields.flag("keys_are_values")
    heads = (fields.integer("full_kv_heads") if same else 0) or layer.n_kv_heads
    if own is not None:
        dim = own.integer("head_dim", layer.head_dim, least=2, most=MAX_HEAD_DIM)
        heads = own.integer("num_key_value_heads", layer.n_kv_heads)
    _check_even(fields, dim)
    if layer.n_heads % heads:
        expected = f"a divisor of {fields.key('n_heads')} = {layer.n_heads}"
        raise fields.error("full_kv_heads", heads, expected)
    return replace(layer, head_dim=dim, n_kv_heads=heads, keys_are_values=same)


def _check_even(fields: Fields, dim: int) -> None:
    """Rope turns pairs."""
    if dim % 2:
        raise fields.error("full_head_dim", dim, "an even number")


def _own_config(fields: Fields, index: int) -> Keys | None:
    """What a folder that ``transformers`` saved says of this layer, if it is one; of layers that
    keep everything alone."""
    table, said = fields.keys.table(_OWN), fields.keys.raw(_OWN)
    if table is None:
        return None
    name = next((x for x in said if str(x).isdecimal() and int(x) == index), "")
    own = table.table(name)
    if own is None or own.unread(("head_dim", "num_key_value_heads")):
        raise fields.keys.error(_OWN, said, f"head_dim, num_key_value_heads of layer {index}")
    return own


def _shared(fields: Fields, writers: list[LayerSpec], layer: LayerSpec) -> LayerSpec:
    """It reads the last layer that writes and sees as much."""
    alike = [i for i, other in enumerate(writers) if other.window == layer.window]
    if not alike:
        expected = "fewer: each kind of layers needs one that writes"
        raise fields.error("shared_layers", fields.integer("shared_layers"), expected)
    layer = replace(layer, source=alike[-1], keys_are_values=False)
    return _widened(layer) if fields.flag("wide_shared") else layer


def _widened(layer: LayerSpec) -> LayerSpec:
    """With an MLP of twice its inner size."""
    if layer.experts is None:
        return replace(layer, ffn_size=2 * layer.ffn_size)
    experts = replace(layer.experts, shared_size=2 * layer.experts.shared_size)
    return replace(layer, experts=experts)
