"""Masks that the threads of a step make for it."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest

from kvasir import _native
from kvasir.core.request import EngineRequest
from kvasir.engine import masking
from kvasir.engine.engine import Engine
from kvasir.engine.looks import Followed
from kvasir.exec.base import Fills
from kvasir.exec.fake import FakeExecutor
from kvasir.exec.masks import COMING, HERE, MADE, NONE, REFUSED, WAITING, NativeMasks, PlainMasks
from kvasir.grammar.masks import GrammarMasks
from kvasir.sampling.masks import Bits, NativeFill
from kvasir.sched.scheduler import Scheduler
from tests import exactness
from tests.byte_grammar import byte_tokens
from tests.drafting import Drafts
from tests.exactness import Answer, Variant, baseline, run
from tests.sizes import config_of
from tests.unit.test_grammar_rows import SIZES, requests

N_WORDS = 2
REFUSED_TOKEN = 9


class Toy:
    """A library whose masks allow the sum of the tokens that a matcher was told, and the matcher
    itself unless that is 0; matcher 7 works until it is cancelled."""

    def __init__(self) -> None:
        self.sums: dict[int, int] = {}
        self.cancelled = threading.Event()
        number, word = ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint32)
        consume = ctypes.CFUNCTYPE(ctypes.c_int32, number, ctypes.c_uint32)
        mask = ctypes.CFUNCTYPE(ctypes.c_int32, number, word, ctypes.c_size_t)
        cancel = ctypes.CFUNCTYPE(None, number)
        self._kept = consume(self._consume), mask(self._mask), cancel(self._cancel)
        found = [ctypes.cast(one, ctypes.c_void_p).value or 0 for one in self._kept]
        self.calls = found[0], found[1], found[2]

    def _consume(self, matcher: int | None, token: int) -> int:
        self.sums[matcher or 0] = self.sums.get(matcher or 0, 0) + token
        return -(token == REFUSED_TOKEN)

    def _mask(self, matcher: int | None, bits: ctypes._Pointer[ctypes.c_uint32], n: int) -> int:
        assert n == 4 * N_WORDS
        bits[0] |= 1 << self.sums[matcher or 0]
        bits[1] |= matcher or 0
        while matcher == 7 and not self.cancelled.is_set():
            pass
        return -(matcher == 7)

    def _cancel(self, handle: int | None) -> None:
        assert handle == 77
        self.cancelled.set()

    def fill(self, matcher: int, *tokens: int) -> NativeFill:
        return NativeFill(self.calls, matcher, 77, tokens)


def step(*rows: int) -> _native.Fills:
    """Of a step with 4 logit rows, of which ``rows`` wait."""
    return _native.Fills(4, rows, N_WORDS)


def flags(fills: _native.Fills) -> list[int]:
    return [fills.flag(row) for row in range(4)]


def test_masks_are_made_where_their_rows_wait() -> None:
    library = Toy()
    fills = step(0, 2, 3)
    assert not fills.help()
    asked = [
        (2, library.fill(0, 3, 1)),
        (0, library.fill(1, 2)),
        (3, library.fill(0, REFUSED_TOKEN)),
    ]
    fills.put(asked)
    assert [fills.help() for _ in range(4)] == [True, True, True, False]
    found = fills.wait(1.0, 1.0)
    assert [fills.mask(row) for row in (0, 2, 3)] == [[4, 1], [16, 0], [0, 0]]
    assert flags(fills) == [HERE, NONE, HERE, HERE]
    assert [one[:3] for one in found] == [(MADE, False, 4), (MADE, False, -1), (REFUSED, False, -1)]
    assert all(0 <= one[4] <= one[3] + 0.01 < 1 for one in found)


def test_nobody_begins_what_was_given_up() -> None:
    library = Toy()
    fills = step(0, 1)
    fills.put([(0, library.fill(0, 1)), (1, library.fill(0, 1))])
    assert fills.help()
    found = fills.wait(0.0, 1.0)
    assert [one[0] for one in found] == [MADE, WAITING]
    assert not fills.help()
    assert flags(fills) == [HERE, COMING, NONE, NONE]
    assert fills.bring(1, np.array([3, 4], np.uint32)) and fills.mask(1) == [3, 4]


def test_one_that_is_slow_is_cancelled_and_its_row_goes_on() -> None:
    library = Toy()
    fills = step(1)
    fills.put([(1, library.fill(7, 1))])
    helping = threading.Thread(target=fills.help)
    helping.start()
    ((state, is_cancelled, only, seconds, cpu),) = fills.wait(30.0, 0.02)
    helping.join()
    assert (state, is_cancelled, only) == (REFUSED, True, -1)
    assert 0.02 <= cpu <= seconds + 0.01
    assert (fills.flag(1), fills.mask(1)) == (HERE, [0, 0])


def test_masks_are_brought_to_rows_that_wait_or_let_go() -> None:
    fills, mask = step(1, 2), np.array([3, 4], np.uint32)
    assert [fills.bring(row, mask) for row in (-1, 0, 1, 1, 4)] == [
        False,
        False,
        True,
        False,
        False,
    ]
    fills.abandon()
    assert [fills.mask(row) for row in (1, 2)] == [[3, 4], [0, 0]]
    with pytest.raises(ValueError, match="has no mask"):
        fills.mask(0)
    with pytest.raises(ValueError, match="words of a row"):
        fills.bring(1, mask[:1])
    for row in (-1, 4):
        with pytest.raises(IndexError, match="no such logit row"):
            fills.flag(row)
        with pytest.raises(IndexError, match="no such logit row"):
            step(row)


def test_what_cannot_be_called_is_refused() -> None:
    library = Toy()
    fills = step(0)
    with pytest.raises(IndexError, match="no such logit row"):
        fills.put([(4, library.fill(0))])
    with pytest.raises(ValueError, match="no address"):
        fills.put([(0, NativeFill((library.calls[0], 0, library.calls[2]), 0, 0, ()))])
    fills.put([(0, library.fill(0, 1))])
    with pytest.raises(ValueError, match="have been asked for"):
        fills.put([])


class HelpingMasks(PlainMasks):
    """Whoever waits makes what waits, as a step's threads do."""

    n_made = 0

    def __init__(self, n_logits: int, rows: Sequence[int], vocab_size: int) -> None:
        super().__init__(n_logits, rows, vocab_size)
        self._native = NativeMasks(n_logits, rows, vocab_size)

    @property
    def fills(self) -> Fills | None:
        return self._native.fills

    def wait(self, row: int) -> Bits | None:
        native = self._native.native
        while self.ready[row] == COMING and native.flag(row) == COMING:
            if native.help():
                HelpingMasks.n_made += 1
            else:
                time.sleep(1e-4)
        is_made = native.flag(row) == HERE
        return np.array(native.mask(row), np.uint32) if is_made else super().wait(row)


class HelpingExecutor(FakeExecutor):
    new_masks = HelpingMasks


VARIANTS = (
    Variant("overlapped", n_seqs=32, overlap=True),
    Variant("overlapped, chunks of 7", overlap=True, chunk=7, order=1),
    Variant("forks, overlapped, preempted", forks=True, overlap=True, n_spare_blocks=0, order=3),
    Variant("tree drafts, overlapped", drafts=Drafts(6, 1), overlap=True),
    Variant("replayed", replay_after=110, overlap=True),
    Variant("without jumping", jump_ahead=False, overlap=True),
)


@pytest.fixture(scope="module")
def alone() -> dict[int, Answer]:
    """Masks of threads beside the steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exactness, "Ring", lambda n_ids: GrammarMasks(byte_tokens))
        return baseline(FakeExecutor, requests(), SIZES).answers


@pytest.fixture
def reopened(monkeypatch: pytest.MonkeyPatch) -> list[Followed]:
    """Answers whose masks gave up."""
    monkeypatch.setattr(exactness, "Ring", lambda n_ids: GrammarMasks(byte_tokens))
    monkeypatch.setattr(HelpingMasks, "n_made", 0)
    found: list[Followed] = []
    reopen = masking.reopen

    def noted(one: Followed) -> None:
        found.append(one)
        reopen(one)

    monkeypatch.setattr(masking, "reopen", noted)
    return found


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_who_makes_a_mask_changes_no_answer(
    variant: Variant, alone: dict[int, Answer], reopened: Sequence[Followed]
) -> None:
    assert run(HelpingExecutor, requests(), SIZES, variant, alone).answers == alone
    assert HelpingMasks.n_made


def test_masks_that_are_slow_for_a_step_change_no_answer(
    alone: dict[int, Answer], reopened: Sequence[Followed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those seen under way are cancelled, and what nobody has begun is made beside the step."""
    monkeypatch.setattr(masking, "LATE_SECONDS", 0.0)
    monkeypatch.setattr(masking, "MAX_SECONDS", 60.0)
    variant = Variant("overlapped", n_seqs=32, overlap=True)
    assert run(HelpingExecutor, requests(), SIZES, variant, alone).answers == alone
    assert len(reopened) > 2


class IdleMasks(HelpingMasks):
    """Nobody makes what waits."""

    def wait(self, row: int) -> Bits | None:
        return PlainMasks.wait(self, row)


class IdleExecutor(FakeExecutor):
    new_masks = IdleMasks


def cut(asked: Sequence[EngineRequest], ids: set[int], n_outputs: int) -> dict[int, list[int]]:
    """Outputs; those of ``ids`` are cancelled behind ``n_outputs``, between two steps."""
    config = config_of(128, 8, 64, 80, 16, vocab_size=SIZES.vocab_size)
    masks = GrammarMasks(byte_tokens)
    made = Engine(IdleExecutor(config.sizes), Scheduler(config), overlap=True, masks=masks)
    made.submit(asked)
    found: dict[int, list[int]] = {one.id: [] for one in asked}
    while made.has_work:
        for event in made.step().events:
            found[event.id] += event.tokens
        for i in [i for i in ids if len(found[i]) >= n_outputs]:
            made.cancel(i)
    made.close()
    return found


def test_requests_may_end_before_it_is_seen_what_a_step_made() -> None:
    asked = [one for one in requests() if one.params.constraint][:6]
    whole = cut(asked, set(), 0)
    ids = {one.id for one in asked[::2] if len(whole[one.id]) > 6}
    assert ids
    for i, outputs in cut(asked, ids, 4).items():
        n = len(outputs)
        assert outputs == whole[i][:n] and (4 <= n < len(whole[i]) if i in ids else n)
