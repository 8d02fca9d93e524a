"""Whatever a model writes is read without an error, however it is cut, and nothing gets lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kvasir.toolcalls.parser import read_message
from kvasir.toolcalls.pieces import CallBegin, Said, message_of
from kvasir.toolcalls.reading import Reading
from kvasir.toolcalls.table import FORMATS
from kvasir.toolcalls.writing import written
from tests.fuzz_calls import (
    FORMS,
    KINDS,
    THINK,
    calls_of,
    check_nothing_lost,
    pieces_of,
    run_case,
)

N_MUTANTS = 10_000
"""``make fuzz KINDS=calls`` has more."""


@pytest.mark.parametrize("i", range(len(FORMS)), ids=FORMATS)
def test_mutants(i: int, tmp_path: Path) -> None:
    found = {run_case(seed, tmp_path) for seed in range(i, N_MUTANTS, len(FORMS))}
    assert found == {"called", "said"}


def test_what_is_lost_is_found() -> None:
    for name in ("hermes", "llama3-pythonic"):
        form = FORMATS[name]
        for pieces in ([Said("abc")], [Said("abcXd")], [Said("acbX")]):
            with pytest.raises(AssertionError):
                check_nothing_lost(form, "abcX", pieces)
        check_nothing_lost(form, "abcX", [Said("abcX")])
    with pytest.raises(AssertionError):
        check_nothing_lost(form, "f(a)X", [CallBegin(0, "", "f"), Said("XX")])


def test_random_splits() -> None:
    draw = random.Random(1)
    for form in FORMS:
        reading = Reading(form, THINK, kinds=KINDS)
        text = "<think>why</think>" + written(form, calls_of(form))
        whole = read_message(reading, text)
        assert len(whole.calls) == (2 if form.next else 1)
        for _ in range(100):
            cuts = sorted(draw.sample(range(len(text)), 12))
            parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
            assert message_of(pieces_of(reading, parts)) == whole
