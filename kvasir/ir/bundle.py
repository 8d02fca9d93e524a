"""Several programs as one value: a target and what runs beside it, over one table of weights and
one KV memory.

Every name stands for one thing in all programs: a value is made in one place, a weight is one
tensor, a KV layer belongs to one program. So one arena, one packed table and one pair of block
tables serve all, and a block holds the entries of every program for the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kvasir.core.tiles import TileSpec
from kvasir.ir.program import (
    CONSTANT_ATTRS,
    Attr,
    FloatArray,
    KVSpec,
    Op,
    Program,
    Value,
    Weight,
    freeze,
)
from kvasir.ir.verify import ProgramError

T = TypeVar("T")

TARGET, DRAFT, POOL = "target", "draft", "pool"
ROPE_POSITIONS = "rope_positions"
"""i32 [T, 3], of ropes that turn by time, height and width."""
STEP_INPUTS = (
    *("tokens", "positions", "ends", "types", "logit_rows", "pool_rows"),
    ROPE_POSITIONS,
)
"""What every program may read of a step; any other input is an export."""
MEDIA, IS_MEDIA, PATCHES = "media", "is_media", "patches"
CORNERS, SHARES = "corners", "shares"
MAX_DEEP = 8
"""Layers of a target behind which rows of a tower are added."""


def draft_name(i: int) -> str:
    """Of the program that drafts the ``i``-th token of a chain, where each has one of its own."""
    return f"{DRAFT}{i}" if i else DRAFT


def deep_media(i: int) -> str:
    """Rows that are added behind layer ``i``."""
    return f"{MEDIA}.{i}"


def deep_patches(i: int) -> str:
    """What they are made of."""
    return f"{PATCHES}.{i}"


def media_inputs(program: Program) -> list[str]:
    """All rows of a tower that a program reads, in the order in which they lie side by side."""
    return [x for x in program.inputs if x == MEDIA or x.startswith(f"{MEDIA}.")]


GIVEN_INPUTS = (
    *(MEDIA, IS_MEDIA, PATCHES, CORNERS, SHARES),
    *(name(i) for i in range(MAX_DEEP) for name in (deep_media, deep_patches)),
)
"""Rows that an executor writes into the arena before a program runs: f32 in place of embeddings,
i32 where they stand, f32 of the patches of an image, and where these are in a table of positions,
i32 and f32 (op ``between``)."""


class Tower(msgspec.Struct, frozen=True):
    """Programs of images, over the weights of a bundle and a memory of their own. They run for one
    tile at a time, whoever needs it: its rows depend on its pixels alone."""

    encoder: Program
    """From ``PATCHES`` to rows of them, in the order of ``ir.tiles``; all outputs are such rows."""
    connector: Program
    """Its inputs are the outputs of the encoder, in their order, with rows side by side: from
    ``PATCHES`` to rows that stand in place of embeddings, from others to ``deep_media``."""
    tile: TileSpec
    positions: NDArray[np.int32]
    """[n_encoded]: of each row its place in the table of positions; of tiles of one size."""
    side: int = 0
    """Positions of a side of the table, between which patches are; of tiles of any size."""
    window: int = 0
    """Tokens of a side of the windows of patches; 0: there are none."""
    stages: tuple[Program, ...] = ()
    """Further layers, each over the rows of the program before it. Where there are windows, patches
    see those of theirs in the encoder, all of the image in the first stage, and so on in turns."""
    newline: Program | None = None
    """From ``types`` to the row behind each line of a canvas."""
    axis: int = 0
    """Positions of a table of columns and of one of lines behind it, of which each patch has the
    sum; 0: there are none."""

    @property
    def name(self) -> str:
        return self.encoder.name

    @property
    def encoders(self) -> tuple[Program, ...]:
        """Of patches."""
        return self.encoder, *self.stages

    @property
    def programs(self) -> tuple[Program, ...]:
        newline = () if self.newline is None else (self.newline,)
        return *self.encoders, self.connector, *newline

    @property
    def weights(self) -> Mapping[str, Weight]:
        return _merged(program.weights for program in self.programs)

    def map(self, change: Callable[[Program], Program]) -> Tower:
        stages = tuple(map(change, self.stages))
        ends = {"encoder": change(self.encoder), "connector": change(self.connector)}
        newline = None if self.newline is None else change(self.newline)
        return replace(self, **ends, stages=stages, newline=newline)


class Bundle(msgspec.Struct, frozen=True):
    """Programs by name, in the order in which a step runs them; the first is the target."""

    programs: Mapping[str, Program]
    tower: Tower | None = None
    """Of a model that sees images; it runs apart, before a step that needs its rows."""
    carried: str = ""
    """Of a draft program that is a head: its output [T, n] that stands in place of the one export
    that it reads, for the token behind. Its entries are of a token's export and the token after
    it. Empty: it drafts behind the tokens that it reads."""

    @property
    def target(self) -> Program:
        return next(iter(self.programs.values()))

    @property
    def draft(self) -> Program | None:
        """Of the tokens that the executor drafts."""
        return self.programs.get(DRAFT)

    @property
    def drafts(self) -> tuple[Program, ...]:
        """The first drafts the first token of a chain, and so on; the last one all others."""
        names = map(draft_name, range(len(self.programs)))
        return tuple(self.programs[name] for name in names if name in self.programs)

    @property
    def pool(self) -> Program | None:
        """Of the vectors of prompts: ``ir.pool`` makes it."""
        return self.programs.get(POOL)

    @property
    def all_programs(self) -> tuple[Program, ...]:
        """The tower's as well."""
        return (*self.programs.values(), *(self.tower.programs if self.tower else ()))

    @property
    def exports(self) -> tuple[str, ...]:
        """Outputs of one program that a later one reads as inputs."""
        inputs = {name for program in self.programs.values() for name in program.inputs}
        return tuple(x for p in self.programs.values() for x in p.outputs if x in inputs)

    def read_by(self, name: str) -> tuple[str, ...]:
        """The exports among the inputs of a program."""
        return tuple(x for x in self.exports if x in self.programs[name].inputs)

    @property
    def kv(self) -> tuple[KVSpec, ...]:
        return tuple(spec for program in self.programs.values() for spec in program.kv)

    @property
    def weights(self) -> Mapping[str, Weight]:
        return _merged(program.weights for program in self.all_programs)

    @property
    def constants(self) -> Mapping[str, FloatArray]:
        return _merged(program.constants for program in self.programs.values())

    @property
    def top_k(self) -> int:
        return max(program.top_k for program in self.programs.values())

    def map(self, change: Callable[[Program], Program]) -> Bundle:
        """The bundle with every program changed: what a pass makes of it."""
        changed = of_programs({name: change(program) for name, program in self.programs.items()})
        tower = None if self.tower is None else self.tower.map(change)
        return replace(changed, tower=tower, carried=self.carried)


def of_programs(programs: Mapping[str, Program]) -> Bundle:
    return Bundle(MappingProxyType(dict(programs)))


def as_bundle(program: Program | Bundle) -> Bundle:
    """A program alone is the target of a bundle without others."""
    return program if isinstance(program, Bundle) else of_programs({TARGET: program})


def bundle(target: Program, *, shared: Collection[str] = (), **others: Program) -> Bundle:
    """Programs that were recorded alone, joined.

    Names of all but the target get that of their program in front, and their KV layers go on
    counting; but weights in ``shared`` are the target's, and an input that an earlier program has
    as output is its export.
    """
    programs = {TARGET: target}
    for name, program in others.items():
        n_layers = sum(len(known.kv) for known in programs.values())
        given = {*STEP_INPUTS, *(x for known in programs.values() for x in known.outputs)}
        kept = {*shared, *(x for x in program.inputs if x in given)}
        programs[name] = _Renaming(f"{name}.", n_layers, kept).of(program)
    return of_programs(programs)


def with_draft(
    beside: Bundle, draft: Program, shared: Collection[str] = (), carried: str = ""
) -> Bundle:
    """``beside`` and a draft program with names and KV layers of its own, all behind the target:
    what a draft leaves of the arena nobody reads. ``shared``: weights that are the target's;
    ``carried``: as in ``Bundle``, by its name in ``draft``."""
    joined = with_drafts(beside, (draft,), shared)
    return replace(joined, carried=f"{DRAFT}.{carried}" if carried else "")


def with_drafts(beside: Bundle, drafts: Sequence[Program], shared: Collection[str] = ()) -> Bundle:
    """``beside`` and a program for each token of a chain, as ``with_draft`` does."""
    named = {draft_name(i): program for i, program in enumerate(drafts)}
    joined = bundle(beside.target, shared=shared, **named)
    programs = {**beside.programs, **{name: joined.programs[name] for name in named}}
    return replace(beside, programs=MappingProxyType(programs))


def verify_joined(bundle: Bundle) -> None:
    """Raises ProgramError on the first broken rule between programs that were verified alone."""
    made: set[str] = set()
    exported: dict[str, Value] = {}
    for name, program in bundle.programs.items():
        for given in program.inputs:
            if given not in (*STEP_INPUTS, *GIVEN_INPUTS):
                _check_export(name, program.values[given], exported)
        for value in (value for op in program.ops for value in op.outs):
            if value in made:
                raise ProgramError(f"{name}: {value} is made by another program as well")
            made.add(value)
        exported |= {value: program.values[value] for value in program.outputs}
    _check_carried(bundle)
    _check_shared(bundle)
    layers = [spec.layer for spec in bundle.kv]
    if len(bundle.programs) > 1 and layers != list(range(len(layers))):
        raise ProgramError(f"KV layers {layers} are not those of one memory, in its order")


def _check_export(name: str, value: Value, exported: Mapping[str, Value]) -> None:
    found = exported.get(value.name)
    if found is None:
        raise ProgramError(f"{name}: input {value.name} is an output of no program before")
    if found.type != value.type:
        raise ProgramError(f"{name}: input {value.name} is {value.type}, exported as {found.type}")
    if value.dtype != "f32" or value.shape[0] != "T":
        raise ProgramError(f"{name}: {value.name} is {value.type}; exports are f32 rows of tokens")


def _check_carried(bundle: Bundle) -> None:
    """A head goes on with what it gives itself."""
    if not bundle.carried:
        return
    draft, read = bundle.draft, bundle.read_by(DRAFT)
    if draft is None or bundle.carried not in draft.outputs or len(read) != 1:
        raise ProgramError(f"{bundle.carried} is no output of a draft that reads one export")
    given, made = draft.values[read[0]], draft.values[bundle.carried]
    if given.type != made.type:
        raise ProgramError(f"{made.name} is {made.type}, {given.name} {given.type}")


def _check_shared(bundle: Bundle) -> None:
    weights, constants = bundle.weights, bundle.constants
    for name, program in bundle.programs.items():
        for weight in program.weights.values():
            if weights[weight.name] != weight:
                raise ProgramError(f"{name}: {weights[weight.name]} is {weight} here")
        for constant, array in program.constants.items():
            if constants[constant] is not array:
                raise ProgramError(f"{name}: constant {constant} is another's")


def _merged(tables: Iterable[Mapping[str, T]]) -> Mapping[str, T]:
    """The first of equal names."""
    merged: dict[str, T] = {}
    for table in tables:
        merged = {**table, **merged} if merged else dict(table)
    return MappingProxyType(merged)


class _Renaming(msgspec.Struct, frozen=True):
    prefix: str
    first_layer: int
    kept: Collection[str]

    def of(self, program: Program) -> Program:
        values = [replace(x, name=self._name(x.name)) for x in program.values.values()]
        weights = [replace(x, name=self._name(x.name)) for x in program.weights.values()]
        constants = {self._name(name): array for name, array in program.constants.items()}
        return replace(
            program,
            ops=tuple(map(self._op, program.ops)),
            values=MappingProxyType({x.name: x for x in values}),
            weights=MappingProxyType({x.name: x for x in weights}),
            kv=tuple(replace(x, layer=x.layer + self.first_layer) for x in program.kv),
            constants=MappingProxyType(constants),
            inputs=self._names(program.inputs),
            outputs=self._names(program.outputs),
        )

    def _op(self, op: Op) -> Op:
        attrs: dict[str, Attr] = dict(op.attrs)
        if "layer" in attrs:
            attrs["layer"] = op.integer("layer") + self.first_layer
        for table in CONSTANT_ATTRS:
            if table in attrs:
                attrs[table] = self._name(op.word(table))
        ins, outs, weights = map(self._names, (op.ins, op.outs, op.weights))
        return Op(op.kind, ins, outs, weights, freeze(attrs))

    def _names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(self._name, names))

    def _name(self, name: str) -> str:
        return name if name in self.kept else self.prefix + name
