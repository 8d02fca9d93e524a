"""Lowers a fused, placed program to native records. All decisions are made here; the replay makes
none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

import msgspec
from msgspec.structs import replace

from kvasir.exec.cpu.codes import (
    GROUP_SCORE_CODES,
    QK_NORM_CODES,
    SCAN_RULE_CODES,
    SCORE_CODES,
)
from kvasir.exec.cpu.op_numbers import OF_STREAMS, epilogue, floats, integers
from kvasir.exec.cpu.records import Buffer, Record
from kvasir.ir.bundle import Bundle, as_bundle
from kvasir.ir.memory import MemoryPlan, aligned, plan_memory
from kvasir.ir.phases import phases
from kvasir.ir.program import Op, Program

_PLAIN = (
    *("cast", "add", "gate_rows", "gather_rows", "sample", "pool"),
    *("merge_embeds", "add_embeds", "join_columns"),
)
"""Kinds of ops that are all said by their operands."""


class WeightUse(msgspec.Struct, frozen=True):
    """A packed weight of the native table, made of one or more weights of the program.

    "matrix": one weight; "gated": gate and up, tiles interleaved (experts when 3-D); "vector":
    f32, concatenated (those of each expert when 2-D).
    """

    kind: str
    names: tuple[str, ...]


class Lowered(msgspec.Struct, frozen=True):
    """What the native program is built from."""

    records: tuple[Record, ...]
    buffers: tuple[Buffer, ...]
    weights: tuple[WeightUse, ...]
    tables: tuple[str, ...]
    """Rope constants by table id."""
    arena_bytes: int
    """Of this program and those before it in a bundle."""
    top_k: int
    """Experts per token, 1 without experts."""
    op_of_record: tuple[int, ...]
    """Index of the program's op that each record belongs to."""
    values: Mapping[str, int]
    """Buffer id of each value."""
    kept_columns: int = 0
    """Numbers that layers with a state keep of a drafted token."""
    states: tuple[tuple[int, int], ...] = ()
    """Of each such layer the numbers of a token's result, and of the state that an item changes."""
    takes_drafts: bool = True
    """What a scan reads of a drafted token is made again, by the convolution in front of it."""

    def draft_floats(self, n_drafts: int) -> int:
        """Numbers that a thread needs while a row of so many drafted tokens is computed."""
        each = [out + n_drafts * state for out, state in self.states]
        return max(each, default=0) if n_drafts else 0


def lower(
    programs: Program | Bundle, *, max_tokens: int, logits_tile: int
) -> Mapping[str, Lowered]:
    """Every program by its name, over one arena. ``max_tokens``: rows of a step; ``logits_tile``:
    logit rows computed at a time."""
    bundle = as_bundle(programs)
    maxima = {"T": max_tokens, "R": logits_tile, "P": max_tokens * bundle.top_k}
    memory = plan_memory(bundle, maxima)
    n_bytes = aligned(memory.size)
    lowered: dict[str, Lowered] = {}
    for name, program in bundle.programs.items():
        lowering = _Lowering(program, maxima, arena_bytes=n_bytes)
        lowered[name] = lowering.run(memory, program.top_k)
        n_bytes = lowered[name].arena_bytes
    return lowered


@dataclass(slots=True)
class _Lowering:
    program: Program
    maxima: Mapping[str, int]
    buffers: list[Buffer] = field(default_factory=list)
    values: dict[str, int] = field(default_factory=dict)
    weights: dict[WeightUse, int] = field(default_factory=dict)
    tables: dict[str, int] = field(default_factory=dict)
    groups: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    arena_bytes: int = 0
    kept_columns: int = 0
    states: list[tuple[int, int]] = field(default_factory=list)
    scans: dict[str, int] = field(default_factory=dict)

    def run(self, memory: MemoryPlan, top_k: int) -> Lowered:
        for name, offset in memory.offsets.items():
            if name in self.program.values:
                self._add_value(name, offset)
        tail = self._tail()
        rows: list[tuple[Record, int]] = []
        for index, (op, phase) in enumerate(
            zip(self.program.ops, phases(self.program), strict=True)
        ):
            # odd phases are free for the grouping that follows a route
            records = self._op(op, 2 * phase, index in tail)
            rows.extend((record, index) for record in records)
        rows.sort(key=lambda row: row[0].phase)
        return Lowered(
            records=tuple(record for record, _ in rows),
            buffers=tuple(self.buffers),
            weights=tuple(self.weights),
            tables=tuple(self.tables),
            arena_bytes=self.arena_bytes,
            top_k=top_k,
            op_of_record=tuple(index for _, index in rows),
            values=self.values,
            kept_columns=self.kept_columns,
            states=tuple(self.states),
            takes_drafts={x.ins[0] for x in self._ops("linear_scan")}
            <= {x.outs[0] for x in self._ops("short_conv")},
        )

    def _ops(self, kind: str) -> list[Op]:
        return [op for op in self.program.ops if op.kind == kind]

    def _add_value(self, name: str, offset: int) -> None:
        value = self.program.values[name]
        rows = self.maxima[value.shape[0]] if isinstance(value.shape[0], str) else value.shape[0]
        columns = prod(dim for dim in value.shape[1:] if isinstance(dim, int))
        self.values[name] = len(self.buffers)
        self.buffers.append(Buffer(offset, value.dtype, columns, value.block, rows))

    def _tail(self) -> set[int]:
        """Indices of the ops that run once per tile of logit rows."""
        made: set[str] = set()
        tail: set[int] = set()
        for index, op in enumerate(self.program.ops):
            if op.kind == "gather_rows" or made & set(op.ins):
                tail.add(index)
                made |= set(op.outs)
        return tail

    def _op(self, op: Op, phase: int, tail: bool) -> list[Record]:
        rows_of = str(self.program.values[op.outs[0]].shape[0])
        outs = self._ids(op.outs) if op.kind not in ("sample", "pool") else ()
        base = Record(op.kind, phase, rows_of, tail, self._ids(op.ins), outs)
        makers: dict[str, Callable[[Op, Record], list[Record]]] = {
            "embed": self._embed,
            "norm": self._norm,
            "layer_norm": self._norm,
            "scale": self._scale,
            "linear": self._linear,
            "lm_head": self._lm_head,
            "rope_write": self._rope_write,
            "attention": self._attention,
            "short_conv": self._short_conv,
            "linear_scan": self._linear_scan,
            "head_linear": self._head_linear,
            "latent_write": self._latent_write,
            "latent_attention": self._latent_attention,
            "route": self._route,
            "expert_linear": self._expert_linear,
            **dict.fromkeys(("spread", "gather_pairs"), self._pairs),
            "combine": self._combine,
            "mul_columns": lambda op, base: [replace(base, numbers=integers(op, "column"))],
            "act": self._act,
            "weigh": lambda op, base: [self._weighed(op, base)],
            "gather_columns": lambda op, base: [self._weighed(op, base)],
            "weigh_experts": self._weigh_experts,
            "head_norm": self._head_norm,
            "rope_heads": self._rope_heads,
            "angles": self._angles,
            "between": lambda op, base: [self._weighed(op, base)],
            "rename_tokens": self._of_ids,
            "place_logits": self._of_ids,
        }
        if op.kind in makers:
            return makers[op.kind](op, base)
        if op.kind in OF_STREAMS:
            return [replace(base, numbers=OF_STREAMS[op.kind](op))]
        if op.kind in _PLAIN:
            return [base]
        raise ValueError(f"op {op.kind} has no native record")

    def _embed(self, op: Op, base: Record) -> list[Record]:
        weight = self._weight("matrix", op.weights[0])
        ids = op.ins[0]
        kind = f"embed_{ids}" if ids in ("positions", "types") else "embed"
        kind = "embed_ids" if ids in self.values else kind
        return [replace(base, kind=kind, weights=(weight,), numbers=floats(op, "scale"))]

    def _of_ids(self, op: Op, base: Record) -> list[Record]:
        table = self.tables.setdefault(op.word("ids"), len(self.tables))
        return [replace(base, numbers={"table": table})]

    def _norm(self, op: Op, base: Record) -> list[Record]:
        weights = tuple(self._weight("vector", name) for name in op.weights)
        return [replace(base, weights=weights, numbers=floats(op, "eps"))]

    def _act(self, op: Op, base: Record) -> list[Record]:
        if op.word("act") != "relu2":
            raise ValueError(f"{op.outs[0]}: act {op.word('act')} has no native record of its own")
        return [replace(base, kind="relu2")]

    def _scale(self, op: Op, base: Record) -> list[Record]:
        numbers = {"scale": op.number("factor"), "softcap": op.number("softcap")}
        return [replace(base, numbers=numbers)]

    def _lm_head(self, op: Op, base: Record) -> list[Record]:
        weight, *bias = op.weights
        weights = (self._weight("matrix", weight), *(self._weight("vector", x) for x in bias))
        return [replace(base, kind="linear", weights=weights)]

    def _attention(self, op: Op, base: Record) -> list[Record]:
        numbers = integers(op, "layer", "n_heads", "window") | floats(op, "scale", "softcap")
        numbers |= {"has_ends": int(len(op.ins) > 1), "chunked": int(op.flag("chunked"))}
        if "slopes" in op.attrs:
            table = self.tables.setdefault(op.word("slopes"), len(self.tables))
            numbers |= {"leans": 1, "table": table}
        sinks = tuple(self._weight("vector", name) for name in op.weights)
        return [replace(base, weights=sinks, numbers=numbers)]

    def _short_conv(self, op: Op, base: Record) -> list[Record]:
        numbers = integers(op, "layer", "n_taps") | {"gated": int(op.flag("gated"))}
        columns = self._columns(op.outs[0])
        self.states.append((columns, (op.integer("n_taps") - 1) * columns))
        scans = [x for x in self._ops("linear_scan") if x.ins[0] == op.outs[0]]
        numbers |= {"kept": self._keep(columns), "kept_out": self._scan(scans[0]) if scans else -1}
        return [replace(self._weighed(op, base), numbers=numbers)]

    def _linear_scan(self, op: Op, base: Record) -> list[Record]:
        numbers = {
            **integers(op, "layer", "n_heads", "n_groups", "state_dim"),
            **floats(op, "least", "most", "eps"),
            "rule": SCAN_RULE_CODES[op.word("rule")],
            "tiled": int(op.flag("tiled")),
        }
        n_state = op.integer("state_dim") * op.integer("head_dim")
        self.states.append((self._columns(op.outs[0]), n_state))
        return [replace(self._weighed(op, base), numbers=numbers | {"kept": self._scan(op)})]

    def _scan(self, op: Op) -> int:
        """Room for the inputs of a drafted token: its row, which the convolution in front makes
        again of its own inputs when the token is accepted, steps and shares."""
        if op.outs[0] not in self.scans:
            self.scans[op.outs[0]] = self._keep(sum(map(self._columns, op.ins)))
        return self.scans[op.outs[0]]

    def _keep(self, n_columns: int) -> int:
        self.kept_columns += n_columns
        return self.kept_columns - n_columns

    def _columns(self, value: str) -> int:
        return self.buffers[self.values[value]].columns

    def _head_linear(self, op: Op, base: Record) -> list[Record]:
        weight = self._weight("matrix", op.weights[0])
        return [replace(base, weights=(weight,), numbers=integers(op, "n_heads"))]

    def _latent_write(self, op: Op, base: Record) -> list[Record]:
        numbers = {
            **integers(op, "layer", "n_heads", "rotary_dim"),
            **floats(op, "eps"),
            "neox": int(op.word("style") == "neox"),
            "table": self.tables.setdefault(op.word("table"), len(self.tables)),
        }
        return [replace(base, weights=(self._weight("vector", op.weights[0]),), numbers=numbers)]

    def _latent_attention(self, op: Op, base: Record) -> list[Record]:
        return [replace(base, numbers=integers(op, "layer", "n_heads") | floats(op, "scale"))]

    def _ids(self, names: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(self.values[name] for name in names if name in self.values)

    def _weight(self, kind: str, *names: str) -> int:
        return self.weights.setdefault(WeightUse(kind, names), len(self.weights))

    def _linear(self, op: Op, base: Record) -> list[Record]:
        n = op.integer("n_segments")
        matrices, biases = op.weights[:n], op.weights[n:]
        if op.word("epilogue") == "gated":
            bias = (self._weight("vector", *biases),) if biases else ()
            weights = (self._weight("gated", *matrices), *bias)
            return [replace(base, weights=weights, numbers=epilogue(op))]
        records, column = [], 0
        for index, name in enumerate(matrices):
            bias = (self._weight("vector", biases[index]),) if biases else ()
            weights = (self._weight("matrix", name), *bias)
            numbers = {**epilogue(op), "column": column}
            records.append(replace(base, weights=weights, numbers=numbers))
            column += self.program.weights[name].shape[0]
        return records

    def _rope_write(self, op: Op, base: Record) -> list[Record]:
        norms = tuple(self._weight("vector", name) for name in op.weights)
        table, q_table = (
            self.tables.setdefault(op.word(name), len(self.tables)) for name in ("table", "q_table")
        )
        numbers = {
            **integers(op, "layer", "n_heads", "rotary_dim"),
            **floats(op, "eps"),
            "neox": int(op.word("style") == "neox"),
            "table": table,
            "q_table": q_table,
            "qk_norm": QK_NORM_CODES[op.word("qk_norm")],
        }
        return [replace(base, weights=norms, numbers=numbers)]

    def _rope_heads(self, op: Op, base: Record) -> list[Record]:
        numbers = {
            **integers(op, "n_heads", "rotary_dim"),
            **floats(op, "eps"),
            "neox": int(op.word("style") == "neox"),
            "table": self.tables.setdefault(op.word("table"), len(self.tables)),
            "qk_norm": QK_NORM_CODES[op.word("qk_norm")],
        }
        return [replace(self._weighed(op, base), numbers=numbers)]

    def _angles(self, op: Op, base: Record) -> list[Record]:
        sections = op.attrs["sections"]
        assert isinstance(sections, tuple)
        names = ("time_pairs", "height_pairs", "width_pairs")
        numbers = {
            **integers(op, "rotary_dim"),
            **dict(zip(names, sections, strict=True)),
            "woven": int(op.flag("woven")),
            "table": self.tables.setdefault(op.word("table"), len(self.tables)),
        }
        return [replace(base, numbers=numbers)]

    def _head_norm(self, op: Op, base: Record) -> list[Record]:
        numbers = integers(op, "n_heads") | floats(op, "eps")
        return [replace(self._weighed(op, base), numbers=numbers)]

    def _weigh_experts(self, op: Op, base: Record) -> list[Record]:
        self.groups[op.outs[0]] = self.groups[op.ins[1]]
        return [self._weighed(op, base)]

    def _weighed(self, op: Op, base: Record) -> Record:
        """With its vectors."""
        return replace(base, weights=tuple(self._weight("vector", name) for name in op.weights))

    def _route(self, op: Op, base: Record) -> list[Record]:
        experts, pairs = op.integer("n_experts"), self.maxima["P"]
        numbers = {
            **integers(op, "n_experts", "top_k", "n_groups", "top_groups"),
            **floats(op, "scale"),
            "normalize": int(op.flag("normalize")),
            "score": SCORE_CODES[op.word("score")],
            "group_score": GROUP_SCORE_CODES[op.word("group_score")],
        }
        bias = tuple(self._weight("vector", name) for name in op.weights)
        groups = (self._extra(pairs), self._extra(pairs), self._extra(experts + 1))
        ids, weights = op.outs
        self.groups[ids] = self.groups[weights] = groups
        group = Record(
            "group_pairs", base.phase + 1, "T", base.tail, self._ids((ids,)), groups, (), numbers
        )
        return [replace(base, weights=bias, numbers=numbers), group]

    def _extra(self, n: int) -> int:
        """A buffer of ``n`` int32 behind the planned values."""
        self.buffers.append(Buffer(self.arena_bytes, "i32", 1, 0, n))
        self.arena_bytes += aligned(4 * n)
        return len(self.buffers) - 1

    def _expert_linear(self, op: Op, base: Record) -> list[Record]:
        token, _, offsets = self.groups[op.ins[1]]
        gated = op.word("epilogue") == "gated"
        n = 1 + gated
        weights = [self._weight("gated" if gated else "matrix", *op.weights[:n])]
        if op.flag("bias"):
            weights.append(self._weight("vector", *op.weights[n:]))
        numbers = {
            **epilogue(op),
            "per_pair": int(op.flag("per_pair")),
            "n_experts": self.program.weights[op.weights[0]].shape[0],
        }
        ins = (base.ins[0], token, offsets)
        return [replace(base, ins=ins, weights=tuple(weights), numbers=numbers)]

    def _pairs(self, op: Op, base: Record) -> list[Record]:
        n = max((self.program.weights[name].shape[0] for name in op.weights), default=0)
        ins, numbers = (*base.ins, self.groups[op.ins[1]][1]), integers(op, "top_k")
        return [replace(self._weighed(op, base), ins=ins, numbers={**numbers, "n_experts": n})]

    def _combine(self, op: Op, base: Record) -> list[Record]:
        rows, last = base.ins
        place, is_weighed = self.groups[op.ins[1]][1], self.program.values[op.ins[1]].dtype == "f32"
        ins = (rows, last if is_weighed else -1, place)
        return [replace(base, ins=ins, numbers=integers(op, "top_k"))]
