"""Grammars that name a token which ends an answer."""

from __future__ import annotations

import pytest

from kvasir.grammar.ends import refuse_ends
from kvasir.grammar.errors import InvalidGrammar

ENDS = {"<|im_end|>": 5, "</s>": 9}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('start: "a" <|im_end|> "b"', "<|im_end|>"),
        ("start: </s>", "</s>"),
        ("start: <[5]>", "<|im_end|>"),
        ("start: <[1-4,8-9]>", "</s>"),
        ("start: <[^5]>", "</s>"),
        ("start: <[*]>", "<|im_end|>"),
        ('start: /a\\/b/ "\\"" <[5]>', "<|im_end|>"),
    ],
)
def test_an_end_is_refused(text: str, name: str) -> None:
    with pytest.raises(InvalidGrammar, match="which ends an answer: leave it out") as caught:
        refuse_ends(text, ENDS)
    assert f"names {name}," in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        'start: "<|im_end|>"',
        "start: <[1-4,6]> <|im_start|>",
        "start: <[^5,9]>",
        "start: /<[5]>/ // <[5]>",
        'start: "\\"<[5]>" ',
        'root ::= [^"] "<|im_end|>"',
        "",
    ],
)
def test_what_is_no_end(text: str) -> None:
    refuse_ends(text, ENDS)
    refuse_ends(f"{text} <[5]>", {})
