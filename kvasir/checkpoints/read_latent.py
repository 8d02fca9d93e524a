"""Readers of latent attention: its sizes, and the parts of tensors that hold several matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvasir.checkpoints.fields import Fields
from kvasir.formats.mapped import TensorTable
from kvasir.models.spec import MAX_HEAD_DIM, LatentSpec

_KEYS, _VALUES = "attention.key_length", "attention.value_length"

HEAD_PARTS: Mapping[str, Callable[[LatentSpec], tuple[int, int, int]]] = {
    "head_first": lambda x: (0, x.key_dim, x.query_dim),
    "head_last": lambda x: (x.key_dim, x.rope_dim, x.query_dim),
    "head_keys": lambda x: (0, x.key_dim, x.key_dim + x.value_dim),
    "head_values": lambda x: (x.key_dim, x.value_dim, x.key_dim + x.value_dim),
}
"""By step of ``weights.transforms``: first row, rows and all rows of a head: what does not turn of
a query and what does; keys and values."""


def of_latents(fields: Fields) -> bool:
    """Whether the family has latent attention."""
    return fields.has("latent_size")


def read_latent(fields: Fields, tensors: TensorTable) -> LatentSpec | None:
    """None for families of another attention."""
    if not of_latents(fields):
        return None
    rank = fields.integer("latent_size", most=MAX_HEAD_DIM)
    rope_dim = fields.integer("rope_dim", most=MAX_HEAD_DIM)
    if rope_dim % 2:
        raise fields.error("rope_dim", rope_dim, "an even number")
    key_dim, value_dim = _head_sizes(fields, rank, rope_dim)
    no_rank = fields.is_null("query_rank")
    return LatentSpec(
        rank=rank,
        rope_dim=rope_dim,
        key_dim=key_dim,
        value_dim=value_dim,
        query_rank=0 if no_rank else fields.integer("query_rank", least=0),
        norm_eps=fields.number("latent_eps"),
        whole=fields.kind == "gguf" and any(x.endswith(".attn_kv_b.weight") for x in tensors),
    )


def latent_heads(
    fields: Fields, latent: LatentSpec, n_layers: int
) -> tuple[int, tuple[int, ...], int]:
    """Query heads, the one KV head of each layer, numbers that a token keeps."""
    dim = latent.rank + latent.rope_dim
    if dim > MAX_HEAD_DIM:
        expected = f"at most {MAX_HEAD_DIM} with {fields.key('rope_dim')} = {latent.rope_dim}"
        raise fields.error("latent_size", latent.rank, expected)
    return fields.integer("n_heads"), (1,) * n_layers, dim


def _head_sizes(fields: Fields, rank: int, rope_dim: int) -> tuple[int, int]:
    """Of keys, without what turns, and values. Newer GGUF files say those of what is kept beside
    them, older ones in their place."""
    if fields.kind == "hf":
        names = ("key_dim", "value_dim")
        key_dim, value_dim = (fields.integer(name, most=MAX_HEAD_DIM) for name in names)
        return key_dim, value_dim
    keys, said = fields.keys, fields.key("key_dim")
    if not keys.has(said):
        said = _KEYS
        whole, value_dim = (keys.integer(name, most=MAX_HEAD_DIM) for name in (_KEYS, _VALUES))
    else:
        names = ("key_dim", "value_dim")
        whole, value_dim = (fields.integer(name, most=MAX_HEAD_DIM) for name in names)
        # beside scans the second is a size of heads that nothing has
        checked = ((_KEYS, rank + rope_dim), (_VALUES, rank))[: 2 - fields.has("scan_rule")]
        for name, kept in checked:
            if keys.integer(name, kept) != kept:
                raise keys.error(name, keys.raw(name), f"{kept}, what a token keeps")
    if whole <= rope_dim:
        raise keys.error(said, whole, f"more than {fields.key('rope_dim')} = {rope_dim}")
    return whole - rope_dim, value_dim
