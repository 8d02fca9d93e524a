"""What a client writes is read in a time that follows from its size."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from kvasir.core.errors import RequestError
from kvasir.grammar.constraint import schema_grammar, text_grammar

SECONDS = 4.0
"""Of the processor; what grows with the square of the size takes minutes."""


def branches(depth: int) -> Any:
    return {"anyOf": [branches(depth - 1)] * 6} if depth else {"type": "string"}


def chain(n: int) -> str:
    """Of rules, each of which is nothing but the next."""
    return "root ::= a0\n" + "".join(f"a{i} ::= a{i + 1}\n" for i in range(n)) + f'a{n} ::= "x"\n'


NAMES = [f"n{i}" for i in range(15_000)]
DEAR: dict[str, Callable[[], object]] = {
    "line breaks": lambda: text_grammar("\n" * 300_000 + 'root ::= "a"'),
    "a chain of rules": lambda: text_grammar(chain(3_000)),
    "unknown keywords": lambda: schema_grammar({f"minimun{i}": 0 for i in range(40_000)}),
    "many values": lambda: schema_grammar({"oneOf": [{"const": i} for i in range(9_000)]}),
    "many objects": lambda: schema_grammar(
        {"oneOf": [{"type": "object", "required": [f"a{i}", "k"]} for i in range(9_000)]}
    ),
    "one property each": lambda: schema_grammar(
        {"type": "object", "oneOf": [{"required": [f"a{i}"]} for i in range(9_000)]}
    ),
    "alternatives of alternatives": lambda: schema_grammar({"oneOf": [branches(4), branches(4)]}),
    "many required": lambda: schema_grammar({"oneOf": [{"type": "object", "required": NAMES}] * 2}),
    "one more than required": lambda: schema_grammar(
        {
            "type": "object",
            "properties": dict.fromkeys(NAMES, True),
            "required": NAMES,
            "minProperties": len(NAMES) + 1,
            "additionalProperties": False,
        }
    ),
    "references": lambda: schema_grammar(
        {
            "properties": {
                **{f"a{i}": {"$ref": f"#/properties/b{i}"} for i in range(6_000)},
                **{f"b{i}": True for i in range(6_000)},
            }
        }
    ),
}


@pytest.mark.parametrize("case", DEAR)
def test_what_is_dear_is_read_soon(case: str) -> None:
    began = time.thread_time()
    try:
        DEAR[case]()
    except RequestError as refusal:
        assert len(refusal.message) < 600
    assert time.thread_time() - began < SECONDS
