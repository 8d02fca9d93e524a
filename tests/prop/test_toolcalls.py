"""Whatever a model writes is read without an error, however it is cut, and nothing gets lost."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kvasir.toolcalls.format import ToolFormat
from kvasir.toolcalls.grammar import Tool, kinds_of
from kvasir.toolcalls.parser import MessageParser, read_message
from kvasir.toolcalls.pieces import CallBegin, Piece, message_of
from kvasir.toolcalls.reading import Reading
from kvasir.toolcalls.table import FORMATS, REASONING
from kvasir.toolcalls.writing import written
from tests.forms import IS_LONG
from tests.tool_templates import Calls

CALLS: Calls = [("get", {"city": 'a "b"', "o": {"x": [1, "}"]}}), ("get_x", {})]
SCHEMA = {"properties": {"city": {"type": "string"}, "o": {"type": "object"}}}
KINDS = kinds_of([Tool("get", SCHEMA)])
THINK = next(one for one in REASONING if one.begin == "<think>")
N_MUTANTS = 1_000_000 if IS_LONG else 10_000
CUTS = '<>{}[]"\\ \n/|=:,`$~aé'


def mutated(text: str, draw: random.Random) -> str:
    chars = list(text)
    for _ in range(draw.randint(1, 4)):
        at = draw.randint(0, len(chars))
        kind = draw.randrange(4)
        if kind == 0:
            chars.insert(at, draw.choice(CUTS))
        elif kind == 1:
            del chars[at : at + draw.randint(1, 5)]
        elif kind == 2:
            chars[at:at] = chars[: draw.randint(0, 30)]
        else:
            del chars[at:]
    return "".join(chars)


def pieces_of(reading: Reading, texts: list[str]) -> list[Piece]:
    parser = MessageParser(reading)
    return [*(piece for text in texts for piece in parser.feed(text)), *parser.finish()]


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_mutants(form: ToolFormat) -> None:
    draw = random.Random(form.name)
    calls = CALLS if form.next else CALLS[:1]
    turn = written(form, calls, "\n")
    think = f"{THINK.begin}why{THINK.end}\n"
    sources = [turn, think + turn, "Hello " + turn, think + "Hello\n" + turn + "\nbye"]
    for _ in range(N_MUTANTS // len(FORMATS) + 1):
        reading = Reading(form, THINK, draw.random() < 0.2, KINDS)
        text = mutated(draw.choice(sources), draw)
        whole = pieces_of(reading, [text])
        cuts = sorted(draw.randint(0, len(text)) for _ in range(draw.randint(1, 8)))
        parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert message_of(pieces_of(reading, parts)) == message_of(whole), text
        check_nothing_lost(form, text, whole)


def check_nothing_lost(form: ToolFormat, text: str, pieces: list[Piece]) -> None:
    """What is in no field is markers of the calls that began, and white space."""
    if form.arguments is not None or "$i" in form.call:
        return  # arguments are written otherwise as JSON; what a model says as id is dropped
    kept = "".join(p.name if isinstance(p, CallBegin) else p.text for p in pieces)
    n_calls = sum(isinstance(piece, CallBegin) for piece in pieces)
    marks = (
        form.open + form.close + (form.call + (form.between or "") + "abcdefgh012") * (n_calls + 1)
    )
    known = Counter(marks + THINK.begin + THINK.end)
    lost = {
        char: n
        for char, n in (Counter(text) - Counter(kept)).items()
        if not char.isspace() and n > known[char]
    }
    assert not lost, (text, pieces)
    n_new = sum((Counter(kept) - Counter(text)).values())
    assert n_new == 0, (text, pieces)


def test_random_splits() -> None:
    draw = random.Random(1)
    for form in FORMATS.values():
        reading = Reading(form, THINK, kinds=KINDS)
        text = "<think>why</think>" + written(form, CALLS if form.next else CALLS[:1])
        whole = read_message(reading, text)
        assert len(whole.calls) == (2 if form.next else 1)
        for _ in range(100):
            cuts = sorted(draw.sample(range(len(text)), 12))
            parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
            assert message_of(pieces_of(reading, parts)) == whole
