"""Tools that are too large, or take too long: a 400 before they are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kvasir.core.errors import RequestError
from kvasir.grammar.constraint import Constraint
from kvasir.grammar.errors import InvalidGrammar
from kvasir.grammar.limits import LIMITS
from kvasir.serve import tools
from kvasir.serve.dialects.chat import CHAT
from kvasir.serve.text import TextModel, load_text
from kvasir.serve.tools import Chat, ToolWish
from kvasir.serve.trial import TrialCompiler
from kvasir.toolcalls.grammar import Tool
from kvasir.validation.sampling import SamplingParams
from kvasir.weights.source import open_model
from tests import tool_templates
from tests.e2e.toy_model import write_toy_model
from tests.fake_run import resolved_of

BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def text(tmp_path: Path) -> TextModel:
    found = write_toy_model(tmp_path / "toy", template=tool_templates.HERMES)
    return load_text(open_model(found))


def function(i: int, n_bytes: int) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"a": {"description": "x" * n_bytes}}}
    return {"type": "function", "function": {"name": f"f{i}", "parameters": schema}}


def test_schemas_are_summed_before_anything_is_made_of_them(
    text: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*_: Any, **__: Any) -> Constraint:
        raise AssertionError("a grammar is made")

    monkeypatch.setattr(tools, "tools_grammar", made)
    functions = [function(i, LIMITS.n_bytes // 100) for i in range(110)]
    with pytest.raises(InvalidGrammar, match=r"of 110 tools have \d{7} bytes together, 1048576"):
        resolved_of(CHAT, {**BODY, "tools": functions}, text)
    few = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": functions[:1]}}
    with pytest.raises(AssertionError, match="a grammar is made"):
        resolved_of(CHAT, {**BODY, "tools": functions, "tool_choice": few}, text)


def test_tools_are_judged_one_by_one_for_a_while(
    text: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "JUDGED_SECONDS", 0.05)
    refusal, judged = InvalidGrammar("too slow"), []

    async def judge(grammar: Constraint) -> None:
        judged.append(grammar)
        await asyncio.sleep(0.03)
        raise InvalidGrammar("so is this")

    wish = ToolWish(tools=tuple(Tool(f"f{i}", {}, False) for i in range(100)))
    chat = Chat(text, "auto", wish, SamplingParams())
    with pytest.raises(InvalidGrammar) as caught:
        asyncio.run(chat.loosened(None, judge, refusal))
    assert caught.value is refusal
    assert 0 < len(judged) < 4


def test_a_grammar_may_not_name_an_end(text: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(*_: Any) -> None:
        """Grammars are judged elsewhere."""

    monkeypatch.setattr(TrialCompiler, "check", check)
    name, end = next(iter(text.tokenizer.ends.items()))
    for grammar in (f'start: "a" {name} "b"', f"start: <[{end}]>"):
        with pytest.raises(RequestError, match="which ends an answer"):
            resolved_of(CHAT, {**BODY, "structured_outputs": {"grammar": grammar}}, text)
    resolved_of(CHAT, {**BODY, "structured_outputs": {"grammar": 'start: "a"'}}, text)
