"""Fusion: the few big ops that executors run, found by structure in what the builder recorded."""

from __future__ import annotations

from kvasir.ir.ops import ShapeError
from kvasir.ir.ops.moe import n_matrices
from kvasir.ir.ops.rows import APART
from kvasir.ir.program import Op, Program, freeze
from kvasir.ir.rewrite import Edit, Graph, graph


def fuse(program: Program) -> Program:
    """Raw program -> the same computation in the lowered op set, before layouts are chosen."""
    for step in (fold_embed_scale, fuse_qkv, expand_experts, fuse_gated, fuse_act, fuse_residual):
        program = step(program)
    return program


def fold_embed_scale(program: Program) -> Program:
    """embed, scale -> embed with a scale."""
    links, edit = graph(program), Edit(program)
    for index, op in enumerate(program.ops):
        user = links.single_user(op.outs[0]) if op.kind == "embed" else None
        scale = None if user is None else program.ops[user]
        if user is None or scale is None or scale.kind != "scale" or scale.number("softcap") > 0:
            continue
        factor = op.number("scale") * scale.number("factor")
        edit.drop.add(user)
        edit.replace(index, Op("embed", op.ins, scale.outs, op.weights, freeze({"scale": factor})))
    return edit.apply()


_NORMS = {"head_norm": "heads", "norm": "width"}
"""What stands before rope, and what ``rope_write`` calls it."""


class _HeadPath:
    """A head's way back from attention or cache to its linear: rope and a norm of either side of
    it, or none."""

    rope: Op | None = None
    norm: Op | None = None
    norm_kind = "none"

    def __init__(self, program: Program, links: Graph, value: str) -> None:
        self.indices: list[int] = []
        op = self._maker(program, links, value)
        if op.kind == "head_norm":
            self.norm, self.norm_kind = op, "turned"
            op = self._maker(program, links, op.ins[0])
        if op.kind == "rope":
            self.rope, op = op, self._maker(program, links, op.ins[0])
        if op.kind in _NORMS and self.norm is None:
            self.norm, self.norm_kind = op, _NORMS[op.kind]
            op = self._maker(program, links, op.ins[0])
        if op.kind not in ("linear", "layer_norm"):
            raise ShapeError(f"{value}: expected a linear below rope and norms, found {op.kind}")
        self.linear = op

    def _maker(self, program: Program, links: Graph, value: str) -> Op:
        index = links.makers[value]
        users = {program.ops[user].kind for user in links.users[value]}
        # Keys that are values, too, are normed apart.
        shared = program.ops[index].kind == "linear" and users == {"head_norm"}
        if links.single_user(value) is None and (not shared or value in links.outputs):
            raise ShapeError(f"{value}: needed by more than one op, cannot be fused")
        self.indices.append(index)
        return program.ops[index]


def fuse_qkv(program: Program) -> Program:
    """Three linears, head norms, ropes and kv_write -> linear with three segments, rope_write, or,
    where layer norms stand between, three linears, these, join_columns, rope_write; of a
    layer that writes nothing: head norm, rope -> rope_heads."""
    links, edit = graph(program), Edit(program)
    writes = {
        op.integer("layer"): index for index, op in enumerate(program.ops) if op.kind == "kv_write"
    }
    for op in program.ops:
        if op.kind != "attention":
            continue
        write = writes.pop(op.integer("layer"), None)
        q = _HeadPath(program, links, op.ins[0])
        if write is None:
            edit.drop.update(q.indices[:-1])
            edit.before.setdefault(q.indices[0], []).append(_rope_heads(op, q))
            continue
        k, v = (_HeadPath(program, links, name) for name in program.ops[write].ins)
        parts = [q.linear, k.linear, *([v.linear] if v.linear is not k.linear else [])]
        gone = [*q.indices, *k.indices, *v.indices, write]
        if any(part.kind != "linear" for part in parts):
            linear = _joined(parts)
            gone = [*q.indices[:-1], *k.indices[:-1], *v.indices[:-1], write]
        else:
            linear = _merge_linears(parts)
        edit.drop.update(gone)
        edit.before.setdefault(max(gone), []).extend([linear, _rope_write(op, q, k, v, linear)])
    return edit.apply()


def _joined(parts: list[Op]) -> Op:
    """What they give side by side: each has something of its own behind its linear."""
    first = parts[0].outs[0]
    return Op("join_columns", tuple(part.outs[0] for part in parts), (f"{first}kv",))


def _rope_heads(attention: Op, q: _HeadPath) -> Op:
    if q.rope is None or q.norm_kind not in ("none", "heads"):
        raise ShapeError(f"{attention.outs[0]}: expected rope, and a norm of heads or none")
    names = ("n_heads", "head_dim", "rotary_dim", "style", "table")
    attrs = {name: q.rope.attrs[name] for name in names} | {"qk_norm": q.norm_kind}
    attrs |= {"eps": q.norm.number("eps") if q.norm is not None else 0.0}
    weights = q.norm.weights if q.norm is not None else ()
    ins = (q.linear.outs[0], q.rope.ins[1])
    return Op("rope_heads", ins, attention.ins[:1], weights, freeze(attrs))


def _merge_linears(parts: list[Op]) -> Op:
    """Linears of one input side by side."""
    first = parts[0]
    if any(part.ins != first.ins or part.flag("bias") != first.flag("bias") for part in parts):
        raise ShapeError(
            f"{first.outs[0]}: q, k and v must read the same input, all with or all without bias"
        )
    weights = [part.weights[0] for part in parts]
    if first.flag("bias"):
        weights += [part.weights[1] for part in parts]
    attrs = freeze({**first.attrs, "n_segments": len(parts)})
    return Op("linear", first.ins, (f"{first.outs[0]}kv",), tuple(weights), attrs)


def _rope_write(attention: Op, q: _HeadPath, k: _HeadPath, v: _HeadPath, linear: Op) -> Op:
    if q.rope is None or k.rope is None or q.norm_kind != k.norm_kind:
        raise ShapeError(
            f"{attention.outs[0]}: q and k must both have rope, and the same kind of norm or none"
        )
    kind = q.norm_kind
    if v.norm is not None:
        if kind != "heads" or v.norm.weights:
            raise ShapeError(f"{attention.outs[0]}: a norm of values, without one of q and k")
        kind = "all"
    norms = (*q.norm.weights, *k.norm.weights) if q.norm is not None and k.norm is not None else ()
    attrs = {name: attention.attrs[name] for name in ("layer", "n_heads", "n_kv_heads", "head_dim")}
    attrs |= {name: k.rope.attrs[name] for name in ("rotary_dim", "style", "table")}
    attrs |= {"q_table": q.rope.word("table"), "qk_norm": kind}
    attrs |= {"eps": q.norm.number("eps") if q.norm is not None else 0.0}
    ins = (linear.outs[0], q.rope.ins[1])
    return Op("rope_write", ins, attention.ins[:1], norms, freeze(attrs))


_NO_EPILOGUE = {"epilogue": "none", "act": "none"}


def expand_experts(program: Program) -> Program:
    """experts -> two expert_linears and combine; without a gate an activation between them."""
    edit = Edit(program)
    for index, op in enumerate(program.ops):
        if op.kind != "experts":
            continue
        x, ids, *shares = op.ins
        k, n = op.integer("top_k"), n_matrices(len(op.weights))
        matrices, biases = op.weights[:n], op.weights[n:]
        inner, outer = matrices[:-1] + biases[:-1], matrices[-1:] + biases[-1:]
        hidden, pairs = f"{op.outs[0]}.hidden", f"{op.outs[0]}.pairs"
        both, act, is_gated = {"top_k": k, "bias": bool(biases)}, op.word("act"), n == 3
        made = hidden if is_gated else f"{op.outs[0]}.up"
        epilogue = {"epilogue": "gated", "act": act} if is_gated else _NO_EPILOGUE
        per_pair = program.values[x].shape[0] == "P"
        first = freeze({**both, **epilogue, "per_pair": per_pair})
        second = freeze({**both, **_NO_EPILOGUE, "per_pair": True})
        edit.replace(
            index,
            Op("expert_linear", (x, ids), (made,), inner, first),
            *([] if is_gated else [Op("act", (made,), (hidden,), (), freeze({"act": act}))]),
            Op("expert_linear", (hidden, ids), (pairs,), outer, second),
            Op("combine", (pairs, *(shares or (ids,))), op.outs, (), freeze({"top_k": k})),
        )
    return edit.apply()


def fuse_gated(program: Program) -> Program:
    """Two linears of one input and gated_act -> one linear with a gated epilogue."""
    links, edit = graph(program), Edit(program)
    for index, op in enumerate(program.ops):
        if op.kind != "gated_act":
            continue
        makers = [links.makers[name] for name in op.ins]
        gate, up = (program.ops[maker] for maker in makers)
        alone = all(links.single_user(name) == index for name in op.ins)
        if not alone or gate.kind != "linear" or up.kind != "linear" or gate.ins != up.ins:
            continue
        merged = _merge_linears([gate, up])
        attrs = freeze({**merged.attrs, "epilogue": "gated", "act": op.word("act")})
        edit.drop.update(makers)
        edit.replace(index, Op("linear", gate.ins, op.outs, merged.weights, attrs))
    return edit.apply()


def fuse_act(program: Program) -> Program:
    """linear, act -> linear with that activation, where there is such a linear."""
    links, edit = graph(program), Edit(program)
    for index, op in enumerate(program.ops):
        if op.kind != "act" or op.word("act") in APART:
            continue
        maker = links.makers[op.ins[0]]
        linear = program.ops[maker]
        if links.single_user(op.ins[0]) != index or not _plain(linear):
            continue
        attrs = freeze({**linear.attrs, "epilogue": "act", "act": op.word("act")})
        edit.drop.add(maker)
        edit.replace(index, Op("linear", linear.ins, op.outs, linear.weights, attrs))
    return edit.apply()


def fuse_residual(program: Program) -> Program:
    """linear, add -> linear with the other operand as residual."""
    links, edit = graph(program), Edit(program)
    for index, op in enumerate(program.ops):
        if op.kind != "add":
            continue
        for value, other in (op.ins, op.ins[::-1]):
            maker = links.makers.get(value)
            if maker is None or links.single_user(value) != index or not _plain(program.ops[maker]):
                continue
            linear = program.ops[maker]
            attrs = freeze({**linear.attrs, "epilogue": "add"})
            edit.drop.add(maker)
            edit.replace(index, Op("linear", (*linear.ins, other), op.outs, linear.weights, attrs))
            break
    return edit.apply()


def _plain(op: Op) -> bool:
    return op.kind == "linear" and op.word("epilogue") == "none" and op.integer("n_segments") == 1
