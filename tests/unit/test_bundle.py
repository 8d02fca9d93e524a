"""Bundles: names, layers and weights that mean one thing in all programs, and one arena."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

import pytest
from msgspec.structs import replace

from kvasir.config.options import EngineOptions
from kvasir.engine.build import build_engine
from kvasir.exec import backend
from kvasir.ir.bundle import DRAFT, TARGET, Bundle, as_bundle, bundle, of_programs, verify_joined
from kvasir.ir.memory import plan_memory, value_bytes
from kvasir.ir.printer import render
from kvasir.ir.program import Program
from kvasir.ir.verify import ProgramError
from tests import tiny
from tests.toy_bundle import HIDDEN, make_toy, reading

MAXIMA = {"T": 32, "R": 8, "P": 32}


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return reading(tmp_path_factory.mktemp("toy"))[1]


def test_names_and_layers_of_the_draft_are_its_own_but_for_what_is_shared(joined: Bundle) -> None:
    verify_joined(joined)
    draft = joined.programs[DRAFT]
    assert [spec.layer for spec in joined.kv] == [0, 1, 2, 3]
    assert joined.exports == (HIDDEN,)
    assert HIDDEN in draft.inputs
    assert {"embed", "final_norm", "lm_head", "draft.layers.0.q"} <= draft.weights.keys()
    assert {op.integer("layer") for op in draft.ops if "layer" in op.attrs} == {3}
    assert draft.outputs == ("draft.logits", "draft.drawn")


def test_its_text(joined: Bundle) -> None:
    lines = render(joined.programs[DRAFT]).splitlines()
    assert lines[:2] == [
        "program llama",
        "inputs tokens: i32[T], positions: i32[T], logit_rows: i32[R], l2.x.mlp: f32[T, 64]",
    ]
    assert "draft.x.read: f32[T, 64] = add(draft.x, l2.x.mlp)" in lines


def with_draft(joined: Bundle, change: Callable[[Program], Program]) -> Bundle:
    return of_programs({**joined.programs, DRAFT: change(joined.programs[DRAFT])})


def test_what_breaks_a_rule_between_programs_is_refused(joined: Bundle) -> None:
    target, draft = joined.programs[TARGET], joined.programs[DRAFT]
    weight = replace(draft.weights["embed"], sources=("another",))
    wrong = MappingProxyType({**draft.weights, "embed": weight})
    unexported = replace(target, outputs=target.outputs[:2])
    layers = tuple(replace(spec, layer=0) for spec in draft.kv)
    one = Bundle(MappingProxyType({TARGET: target, "other": target}))
    narrow = MappingProxyType(
        {**target.values, HIDDEN: replace(target.values[HIDDEN], dtype="bf16")}
    )
    for made, message in (
        (of_programs({TARGET: unexported, DRAFT: draft}), f"{HIDDEN} is an output of no program"),
        (with_draft(joined, lambda x: replace(x, weights=wrong)), "embed"),
        (with_draft(joined, lambda x: replace(x, kv=layers)), "layer"),
        (one, "is made by another program as well"),
        (of_programs({TARGET: replace(target, values=narrow), DRAFT: draft}), "bf16"),
    ):
        with pytest.raises(ProgramError, match=message):
            verify_joined(made)


def test_no_engine_is_built_of_such_a_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.write_hf(tiny.llama(), tmp_path)
    options = EngineOptions(model=str(tmp_path), executor="reference", max_model_len=64)
    build_engine(options).engine.close()
    monkeypatch.setattr(backend, "with_pool", lambda x: of_programs({TARGET: x, "other": x}))
    with pytest.raises(ProgramError, match="is made by another program as well"):
        build_engine(options)


def test_layers_have_one_order(joined: Bundle) -> None:
    target = joined.programs[TARGET]
    twice = bundle(target, draft=joined.programs[DRAFT])
    assert [spec.layer for spec in twice.kv] == [0, 1, 2, 6]
    with pytest.raises(ProgramError, match="not those of one memory"):
        verify_joined(twice)


def test_what_is_exported_is_kept_and_the_rest_overlaps(tmp_path: Path) -> None:
    toy = make_toy("reading", tmp_path).bundle
    plan = plan_memory(toy, MAXIMA)
    places = {}
    for program in toy.programs.values():
        for op in program.ops:
            for name in op.outs:
                size = value_bytes(program.values[name], MAXIMA)
                places[name] = range(plan.offsets[name], plan.offsets[name] + size)
    export = places[HIDDEN]
    later = [name for name in places if name.startswith("draft.")]
    assert not [x for x in later if set(places[x]) & set(export)]
    earlier = [name for name in places if name not in later and name != HIDDEN]
    assert any(set(places[a]) & set(places[b]) for a in earlier for b in later)
    alone = [plan_memory(program, MAXIMA).size for program in toy.programs.values()]
    assert plan.size <= alone[0] + len(export)
    assert plan.size < sum(alone)


def test_a_program_alone_lies_where_it_lay(joined: Bundle) -> None:
    target = joined.target
    assert plan_memory(target, MAXIMA) == plan_memory(as_bundle(target), MAXIMA)
    assert as_bundle(target).exports == ()
