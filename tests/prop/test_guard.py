"""Any messages made of names, parts of names, marks and spaces: their ids are those of a tokenizer
whose special tokens have other names."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.tokenizer.chat import ChatTemplate
from tests.tokenizer_kinds import (
    END,
    KINDS,
    NAMES,
    START,
    STRIPS,
    TOOL,
    nameless,
    rendered,
    tokenizer,
    write,
)

PARTS = [name[a:b] for name in NAMES for a, b in ((0, None), (0, 3), (3, None), (1, -1), (0, -1))]
PIECES = st.sampled_from([*PARTS, TOOL, "\u205e", ";", "word", " ", "  ", "\n", "the", "fox", "é"])
CONTENTS = st.lists(st.lists(PIECES, max_size=8).map("".join), min_size=1, max_size=3)

Case = tuple[ChatTemplate, tokenizers.Tokenizer, Callable[[str], str]]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    made = [tokenizer(kind, strips) for kind in KINDS for strips in STRIPS]
    return [(write(one, tmp_path_factory.mktemp("tokenizer")), *nameless(one)) for one in made]


@settings(max_examples=300)
@given(contents=CONTENTS, at=st.integers(0, len(KINDS) * len(STRIPS) - 1))
def test_names_are_words(cases: list[Case], contents: list[str], at: int) -> None:
    chat, oracle, new = cases[at]
    messages = [{"role": "user", "content": content} for content in contents]
    expected = oracle.encode(rendered(contents, new(START), new(END)), add_special_tokens=False).ids
    assert chat.encode(messages, False) == expected
