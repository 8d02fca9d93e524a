"""Chats and the names of special tokens in them, against the tokenizers of ``transformers``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tokenizer_kinds import END, KINDS, NAMES, START, STRIPS, TEMPLATE, tokenizer, write

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

CONTENTS = ("the fox", *NAMES, f" the  {END}fox {START}", f"{START}{END}  {END}", "a [tool] dog")


@pytest.mark.parametrize("strips", STRIPS)
@pytest.mark.parametrize("kind", KINDS)
def test_names_are_split_as_there(kind: str, strips: str, tmp_path: Path) -> None:
    """``split_special_tokens`` reads every name as words; here those of a user alone."""
    transformers = pytest.importorskip("transformers", reason="make test-oracle")
    made = tokenizer(kind, strips)
    words = write(made, tmp_path / "words", "{{ messages[0].content }}")
    chat = write(made, tmp_path / "chat")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "chat" / "tokenizer.json"),
        additional_special_tokens=list(NAMES),
        chat_template=TEMPLATE,
    )
    for content in CONTENTS:
        messages = [{"role": "user", "content": content}]
        split = theirs(content, split_special_tokens=True, add_special_tokens=False)
        if kind != "words":  # there the model makes a special token out of a user's letters
            assert words.encode(messages, False) == split.input_ids, content
        if content not in NAMES and END not in content:
            expected = theirs.apply_chat_template(messages, return_dict=False)
            assert chat.encode(messages, False) == expected, content
