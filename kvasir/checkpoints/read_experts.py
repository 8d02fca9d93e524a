"""Readers of mixtures of experts: which layers have them, and how tokens are routed."""

from __future__ import annotations

from msgspec.structs import replace

from kvasir.checkpoints.fields import Fields
from kvasir.checkpoints.read_parts import EXPERTS, MLP, read_parts
from kvasir.ir.ops.moe import MAX_EXPERTS, SCORES
from kvasir.models.spec import ExpertConfig


def read_mlps(fields: Fields, n_layers: int) -> list[tuple[int, ExpertConfig | None]]:
    """Of each layer: the inner size of its MLP, by default four times its width, or of an expert,
    and the experts if it has any. A family without sizes has neither."""
    if not fields.has("ffn_size"):
        return [(0, None)] * n_layers
    if parts := read_parts(fields):
        return [_of_part(fields, part) for part in parts]
    sizes = _sizes(fields, n_layers)
    experts = _experts(fields)
    if experts is None:
        return [(size, None) for size in sizes]
    sparse = _sparse_layers(fields, n_layers)
    inner = _expert_size(fields)
    return [
        (inner or size, _beside(fields, experts, size)) if i in sparse else (size, None)
        for i, size in enumerate(sizes)
    ]


def _of_part(fields: Fields, part: str) -> tuple[int, ExpertConfig | None]:
    """Of a layer that has nothing else."""
    if part == EXPERTS:
        return fields.integer("expert_size"), _experts(fields)
    return (fields.of_some("ffn_size") if part == MLP else 0), None


def _beside(fields: Fields, experts: ExpertConfig, size: int) -> ExpertConfig:
    """Where the family has experts beside its MLP, that sees every token."""
    return replace(experts, shared_size=size) if fields.family.block.beside else experts


def _sizes(fields: Fields, n_layers: int) -> list[int]:
    """Inner sizes of MLPs, by default four times the width."""
    other = fields.integer("other_ffn_size", least=0)
    said = (other,) * n_layers if other else fields.integers("ffn_size", n_layers)
    return [_adjusted(fields, size) or 4 * fields.integer("hidden_size") for size in said]


def _adjusted(fields: Fields, size: int) -> int:
    """By some files two thirds of what they say, times a factor, rounded up."""
    if not fields.flag("ffn_adjusts"):
        return size
    size = int(2 * size / 3)
    if fields.is_null("ffn_factor"):
        return size
    size, multiple = int(fields.number("ffn_factor") * size), fields.integer("ffn_multiple")
    return -(-size // multiple) * multiple


def _experts(fields: Fields) -> ExpertConfig | None:
    least = 0 if "down" in fields.family.tensors else 1
    n_experts = fields.integer("n_experts", least, MAX_EXPERTS)
    if not n_experts or not fields.flag("has_experts"):
        return None
    groups, top_groups = _groups(fields, n_experts)
    kept, top_k = n_experts // groups * top_groups, fields.of_some("top_k")
    if top_k > kept:
        of_groups = f" in {top_groups} of {groups} groups" if groups > 1 else ""
        expected = f"at most {fields.key('n_experts')} = {n_experts}{of_groups}"
        raise fields.error("top_k", top_k, expected)
    return ExpertConfig(
        n_experts,
        top_k,
        fields.flag("normalize"),
        score=fields.word("expert_score", SCORES),
        has_bias=fields.flag("choice_bias"),
        n_groups=groups,
        top_groups=top_groups,
        scale=fields.number("expert_scale"),
        shared_size=_shared_size(fields),
        width=fields.integer("expert_width", least=0),
    )


def _groups(fields: Fields, n_experts: int) -> tuple[int, int]:
    """Groups of experts, and how many of them a token may choose from."""
    if fields.word("group_rule", ("greedy", "group_limited_greedy")) == "greedy":
        return 1, 1
    groups, top = fields.integer("n_groups"), fields.integer("top_groups")
    if n_experts % groups or (groups > 1 and n_experts == groups):
        expected = f"groups of two or more of {fields.key('n_experts')} = {n_experts}"
        raise fields.error("n_groups", groups, expected)
    if top > groups:
        raise fields.error("top_groups", top, f"at most {fields.key('n_groups')} = {groups}")
    return groups, top


def _shared_size(fields: Fields) -> int:
    """As said, or so many experts wide."""
    size, n_shared = fields.integer("shared_size", least=0), fields.integer("n_shared", least=0)
    return size or n_shared * (_expert_size(fields) or fields.integer("ffn_size"))


def _expert_size(fields: Fields) -> int:
    """As said, of all layers or of each; 0: that of an MLP."""
    is_listed = isinstance(fields.raw("expert_size"), list | tuple)
    return fields.of_some("expert_size") if is_listed else fields.integer("expert_size", least=0)


def _sparse_layers(fields: Fields, n_layers: int) -> set[int]:
    """As said of each, or every so many-th layer from the first to the last that may have experts,
    but those that are said to have none."""
    if fields.says("mlp_types"):
        said = fields.items("mlp_types", ("dense", "sparse"), n_layers)
        return {i for i, kind in enumerate(said) if kind == "sparse"}
    listed = fields.layers("sparse_layers")
    if listed is not None:
        return set(listed)
    first, every = fields.integer("first_sparse", least=0), fields.integer("sparse_every")
    last = fields.integer("last_sparse", least=-1)
    last = n_layers - 1 if last < 0 else min(last, n_layers - 1)
    sparse = {i for i in range(first, last + 1) if (i + 1) % every == 0}
    return sparse.difference(fields.layers("dense_layers") or ())
