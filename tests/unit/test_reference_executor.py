"""The reference executor: the same logits however a request is cut, paged and mixed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from kvasir.core.params import TokenParams
from kvasir.core.plan import Move, SlotOpen
from kvasir.exec.reference import ReferenceExecutor
from kvasir.ir.ops import Rows
from kvasir.ir.program import FloatArray, Op
from tests import tiny
from tests.loading import BLOCK, GREEDY, Loaded, load, reference, reference_logits
from tests.planned import Placed, placed, step_plan

PROMPT = tuple((23 * i + 5) % tiny.VOCAB for i in range(37))
CLOSE = {"rtol": 1e-5, "atol": 2e-5}
"""BLAS may sum in another order for another number of rows."""

MODELS = {
    "llama": tiny.llama,
    "mistral": tiny.mistral,
    "mixtral": tiny.mixtral,
    "gemma3": tiny.gemma3,
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(tiny.write_hf(MODELS[request.param](), tmp_path_factory.mktemp("model")), "float32")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(tiny.write_hf(tiny.llama(), tmp_path_factory.mktemp("llama")), "float32")


def logits_of(model: Loaded, values: dict[str, Rows]) -> FloatArray:
    found = values[model.program.outputs[0]]
    assert isinstance(found, np.ndarray)
    return found


def opened(slot: int, prompt: Sequence[int] = PROMPT) -> SlotOpen:
    return SlotOpen(slot, GREEDY, tuple(prompt))


def row(slot: int, start: int, tokens: Sequence[int], blocks: tuple[int, ...]) -> Placed:
    """All tokens yield logits."""
    n = -(-(start + len(tokens)) // BLOCK)
    return placed(slot, start, tuple(tokens), (blocks[:n],), n_logits=len(tokens))


@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_chunks_and_scattered_blocks(model: Loaded, chunk: int) -> None:
    executor, parts = reference(model), []
    for step, start in enumerate(range(0, len(PROMPT), chunk)):
        tokens = PROMPT[start : start + chunk]
        opens = () if step else (opened(0),)
        plan = step_plan(step, (row(0, start, tokens, (9, 2, 5)),), opens)
        parts.append(logits_of(model, executor.trace(plan)))
    assert_allclose(np.concatenate(parts), reference_logits(model, PROMPT), **CLOSE)


def test_rows_of_a_step_do_not_see_each_other(model: Loaded) -> None:
    other = tuple(reversed(PROMPT))
    rows = (row(0, 0, PROMPT, (0, 1, 2)), row(1, 0, other, (3, 4, 5)))
    plan = step_plan(0, rows, (opened(0), opened(1, other)))
    found = logits_of(model, reference(model).trace(plan))
    assert_allclose(found[: len(PROMPT)], reference_logits(model, PROMPT), **CLOSE)
    assert_allclose(found[len(PROMPT) :], reference_logits(model, other), **CLOSE)


def prefilled(model: Loaded) -> ReferenceExecutor:
    executor = reference(model)
    executor.run(step_plan(0, (row(0, 0, PROMPT, (0, 1, 2)),), (opened(0),)))
    return executor


TREE = (11, 50, 60, 51, 61)
PARENTS = (-1, 0, 0, 1, 2)
"""11 followed by 50 51, or by 60 61."""


def test_each_path_of_a_tree_is_a_chain(model: Loaded) -> None:
    start = len(PROMPT)
    tree = placed(0, start, TREE, ((0, 1, 2),), n_logits=len(TREE), parents=PARENTS)
    found = logits_of(model, prefilled(model).trace(step_plan(1, (tree,))))
    for path in ((0, 1, 3), (0, 2, 4)):
        chain = (*PROMPT, *(TREE[i] for i in path))
        assert_allclose(found[list(path)], reference_logits(model, chain)[start:], **CLOSE)


def test_an_accepted_branch_moves_to_its_place(model: Loaded) -> None:
    start, blocks = len(PROMPT), ((0, 1, 2),)
    tree = placed(0, start, TREE, blocks, n_logits=len(TREE), parents=PARENTS)
    executor = prefilled(model)
    executor.run(step_plan(1, (tree,)))
    moves = (Move(0, start + 2, start + 1), Move(0, start + 4, start + 2))
    plan = step_plan(2, (row(0, start + 3, (99,), blocks[0]),), moves=moves)
    expected = reference_logits(model, (*PROMPT, 11, 60, 61, 99))[-1:]
    assert_allclose(logits_of(model, executor.trace(plan)), expected, **CLOSE)


def test_tokens_refer_to_the_previous_draw(llama: Loaded) -> None:
    executor = reference(llama)
    first = executor.run(step_plan(0, (placed(0, 0, PROMPT, ((0, 1, 2),)),), (opened(0),)))
    drawn = first.outputs[0].token
    plan = step_plan(1, (placed(0, len(PROMPT), (-1,), ((0, 1, 2),), out_index=1),))
    expected = reference_logits(llama, (*PROMPT, drawn))[-1]
    assert drawn == reference_logits(llama, PROMPT)[-1].argmax()
    assert executor.run(plan).outputs[0].token == expected.argmax()


def test_penalties_count_commits(llama: Loaded) -> None:
    """A token that was emitted and is forbidden by its penalty is not drawn again."""
    params = TokenParams(seed=0, max_tokens=4, temperature=0.0, frequency_penalty=1000.0)
    executor = reference(llama)
    opens = (SlotOpen(0, params, ()),)
    first = (
        executor.run(step_plan(0, (placed(0, 0, PROMPT, ((0, 1, 2),)),), opens)).outputs[0].token
    )
    again = placed(0, len(PROMPT) - 1, PROMPT[-1:], ((0, 1, 2),), out_index=1)
    second = executor.run(step_plan(1, (again,), commits=((0, first),))).outputs[0].token
    runner_up = np.argsort(reference_logits(llama, PROMPT)[-1])[-2]
    assert (first, second) == (reference_logits(llama, PROMPT)[-1].argmax(), runner_up)


def test_targets_are_scored(llama: Loaded) -> None:
    targets = PROMPT[1:5]
    plan = step_plan(
        0, (placed(0, 0, PROMPT[:5], ((0,),), n_logits=5, targets=(*targets, -1)),), (opened(0),)
    )
    outputs = reference(llama).run(plan).outputs
    logits = reference_logits(llama, PROMPT[:5]).astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = [logprobs[i, target] for i, target in enumerate(targets)]
    assert tuple(output.token for output in outputs[:4]) == targets
    assert_allclose([output.logprob for output in outputs[:4]], expected, rtol=1e-5)
    assert outputs[4].token == logits[4].argmax()


def test_until_and_observe(llama: Loaded) -> None:
    seen: list[str] = []

    def observe(op: Op, outs: tuple[Rows, ...]) -> None:
        assert len(outs) == len(op.outs)
        seen.append(op.kind)

    plan = step_plan(0, (row(0, 0, PROMPT, (0, 1, 2)),), (opened(0),))
    values = reference(llama).trace(plan, until="l1.attn", observe=observe)
    assert seen[-1] == "attention"
    assert seen.count("attention") == 2
    assert "l1.attn" in values
    assert "l1.x.attn" not in values
    with pytest.raises(KeyError, match=r"no op of llama makes l7\.attn"):
        reference(llama).trace(plan, until="l7.attn")


def test_int8_activations_stay_near_float32(tmp_path: Path) -> None:
    path = tiny.write_gguf_model(tiny.llama(), tmp_path / "m.gguf", "Q4_1")
    exact = reference_logits(load(path), PROMPT)
    rounded = reference_logits(load(path, "auto"), PROMPT)
    error = np.abs(rounded - exact).max() / np.abs(exact).max()
    assert 1e-4 < error < 0.1
