"""Mutated or truncated answers, each from a seed, through the parsers of tool formats: no error,
the same message however the text is cut, and each character in one field or marker."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from kvasir.toolcalls.format import ToolFormat, literal_of
from kvasir.toolcalls.grammar import Tool, kinds_of
from kvasir.toolcalls.parser import MessageParser
from kvasir.toolcalls.pieces import CallArguments, CallBegin, Piece, message_of
from kvasir.toolcalls.reading import Reading
from kvasir.toolcalls.table import FORMATS, REASONING
from kvasir.toolcalls.writing import written
from tests.tool_templates import Calls

CALLS: Calls = [("get", {"city": 'a "b"', "o": {"x": [1, "}"]}}), ("get_x", {})]
SCHEMA = {"properties": {"city": {"type": "string"}, "o": {"type": "object"}}}
KINDS = kinds_of([Tool("get", SCHEMA)])
THINK = next(one for one in REASONING if one.begin == "<think>")
CUTS = '<>{}[]"\\ \n/|=:,`$~aé'
FORMS = tuple(FORMATS.values())


def run_case(seed: int, folder: Path) -> str:
    """One text of one format. ``folder``: of cases that write files."""
    draw, form = random.Random(seed), FORMS[seed % len(FORMS)]
    turn = written(form, calls_of(form), "\n")
    think = f"{THINK.begin}why{THINK.end}\n"
    sources = [turn, think + turn, "Hello " + turn, think + "Hello\n" + turn + "\nbye"]
    reading = Reading(form, THINK, draw.random() < 0.2, KINDS)
    text = mutated(draw.choice(sources), draw)
    whole = pieces_of(reading, [text])
    cuts = sorted(draw.randint(0, len(text)) for _ in range(draw.randint(1, 8)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert message_of(pieces_of(reading, parts)) == message_of(whole), text
    check_nothing_lost(form, text, whole)
    return "called" if any(isinstance(piece, CallBegin) for piece in whole) else "said"


def calls_of(form: ToolFormat) -> Calls:
    return CALLS if form.next else CALLS[:1]


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


def pieces_of(reading: Reading, texts: Sequence[str]) -> list[Piece]:
    parser = MessageParser(reading)
    return [*(piece for text in texts for piece in parser.feed(text)), *parser.finish()]


def check_nothing_lost(form: ToolFormat, text: str, pieces: Sequence[Piece]) -> None:
    """What is in no field is markers of the calls that began, a name that was cut, and white space;
    of a call whose arguments are written otherwise as JSON, or whose id is dropped, only what
    stands around it is looked at."""
    n_calls = sum(isinstance(piece, CallBegin) for piece in pieces)
    said = [p.text for p in pieces if not isinstance(p, CallBegin | CallArguments)]
    rest = iter(text)
    assert all(char in rest for char in "".join(said)), (text, pieces)
    has_id = "$i" in form.call and may_call(form, text)
    if has_id or (n_calls and form.arguments is not None):
        return
    kept = "".join(p.name if isinstance(p, CallBegin) else p.text for p in pieces)
    marks = (
        form.open + form.close + (form.call + (form.between or "") + "abcdefgh012") * (n_calls + 1)
    )
    known = Counter(marks + THINK.begin + THINK.end + cut_name(form, text))
    lost = {
        char: n
        for char, n in (Counter(text) - Counter(kept)).items()
        if not char.isspace() and n > known[char]
    }
    assert not lost, (text, pieces)
    assert not Counter(kept) - Counter(text), (text, pieces)


def cut_name(form: ToolFormat, text: str) -> str:
    """The letters with which ``text`` ends, where a call may have begun."""
    found = re.search(r"[\w.-]*$", text)
    return found[0] if found and may_call(form, text) else ""


def may_call(form: ToolFormat, text: str) -> bool:
    """Whether ``text`` has the begin of a call."""
    return any(literal_of(parts) in text for parts in (form.first, *form.beginnings))
