"""Whatever is generated, however it is cut, and wherever it fails or is cancelled: the events keep
to the grammar of their dialect, and say what was generated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.core.messages import TokenEvent, TokenLogprob
from kvasir.serve.dialects.table import DIALECTS
from kvasir.serve.resolved import Resolved
from kvasir.serve.run import AnswerRun, Batch, after
from kvasir.serve.streams import EngineDown
from kvasir.serve.text import TextModel
from tests import event_grammars
from tests.documented import Documented, events_in
from tests.e2e.toy_model import END
from tests.event_grammars import Story
from tests.fake_run import heard, joined, resolved_of, run_of, toy_text
from tests.forms import asked_of

EXAMPLES = asked_of("STREAMS", 100, 300)
"""For each dialect; ``make explore`` tries others, and STREAMS says how many."""
FEW = 2 * EXAMPLES // 5
TALK = [{"role": "user", "content": "hi"}]
CASES: dict[str, tuple[dict[str, Any], Callable[[Sequence[bytes], Story], None]]] = {
    "chat": ({"messages": TALK}, event_grammars.check_chat),
    "completions": ({"prompt": "hi"}, event_grammars.check_completions),
    "responses": ({"input": "hi"}, event_grammars.check_responses),
    "messages": ({"messages": TALK, "max_tokens": 99}, event_grammars.check_messages),
    "ollama.chat": ({"messages": TALK}, event_grammars.check_ollama),
    "llama.completion": ({"prompt": "hi"}, event_grammars.check_llama_server),
    "tgi": ({"inputs": "hi"}, event_grammars.check_tgi),
    "kserve.generate": ({"text_input": "hi", "model": "toy"}, event_grammars.check_kserve),
}
NAMES = pytest.mark.parametrize("name", CASES)
CHARS = st.text(st.sampled_from('ab "\\\n\t{}é€🙂\x00\u2028'), max_size=12)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return toy_text(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def asked(text: TextModel) -> dict[str, Resolved]:
    return {
        name: resolved_of(DIALECTS[name], {**body, "stream": True}, text)
        for name, (body, _) in CASES.items()
    }


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Any], Story]:
    """Bytes of a text, cut anywhere into the tokens of steps, also inside of a character."""
    said = draw(CHARS)
    left = list(said.encode()) or [ord("x")]
    said, n_tokens, events = bytes(left).decode(), len(left), []
    finish = draw(st.sampled_from(["stop", "length", None]))
    has_end = finish == "stop" and draw(st.booleans())
    while left:
        n = draw(st.integers(1, 3))
        tokens, left = tuple(left[:n]), left[n:]
        last = finish if not left and not has_end else None
        found = tuple(TokenLogprob(token, -1.0) for token in tokens)
        events.append(TokenEvent(0, tokens=tokens, logprobs=found, finish=last))
    if has_end:
        scores = (TokenLogprob(END, -1.0),)
        events.append(TokenEvent(0, (END,), scores, finish="stop", stop_id=END))
    if finish is None:
        events = events[: draw(st.integers(0, len(events)))]
        events.append(EngineDown("gone"))
    return events, Story(said, n_tokens + has_end, finish)


async def numbered(run: AnswerRun, number: int) -> list[bytes]:
    async def batches() -> Any:
        async with aclosing(run.batches()) as found:
            async for batch in found:
                yield batch

    return [joined(event) async for batch in after(batches(), number) for event in batch]


async def left_after(run: AnswerRun, n: int) -> list[Batch]:
    found: list[Batch] = []
    async with aclosing(run.batches()) as batches:
        async for batch in batches:
            found.append(batch)
            if len(found) >= n:
                break
    return found


@NAMES
@settings(max_examples=EXAMPLES, deadline=None)
@given(case=streams())
def test_events_keep_to_their_grammar(
    name: str, case: tuple[list[Any], Story], asked: dict[str, Resolved], text: TextModel
) -> None:
    events, story = case
    if story.finish is None and len(events) == 1:
        return  # nothing came: that is an answer with a status, and no stream
    found = asyncio.run(heard(run_of(asked[name], text, events)))
    CASES[name][1](found, story)


@NAMES
@settings(max_examples=FEW, deadline=None)
@given(case=streams(), number=st.integers(-1, 12))
def test_equal_requests_have_equal_events_from_any_number_on(
    name: str,
    case: tuple[list[Any], Story],
    number: int,
    asked: dict[str, Resolved],
    text: TextModel,
) -> None:
    events, story = case
    if story.finish is None:
        return
    whole = asyncio.run(heard(run_of(asked[name], text, events)))
    rest = asyncio.run(numbered(run_of(asked[name], text, events), number))
    is_timed = name in ("ollama.chat", "llama.completion", "responses")
    n = len(whole) - is_timed
    assert rest[: max(0, n - number - 1)] == whole[number + 1 : n]
    assert len(rest) == len(whole[number + 1 :])


@NAMES
@settings(max_examples=FEW, deadline=None)
@given(case=streams(), n=st.integers(1, 3))
def test_who_leaves_gives_everything_back(
    name: str,
    case: tuple[list[Any], Story],
    n: int,
    asked: dict[str, Resolved],
    text: TextModel,
) -> None:
    events, story = case
    if story.finish is None:
        return
    run = run_of(asked[name], text, events)
    asyncio.run(left_after(run, n))
    client: Any = run.model.client
    assert client.n_released == 1


PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "ollama.chat": "/api/chat",
    "llama.completion": "/completion",
    "tgi": "/generate_stream",
    "kserve.generate": "/v2/models/{model}/generate_stream",
}


@pytest.fixture(scope="module")
def documented() -> Documented:
    return Documented()


@NAMES
@settings(max_examples=20, deadline=None)
@given(case=streams())
def test_events_are_as_documented(
    name: str,
    case: tuple[list[Any], Story],
    asked: dict[str, Resolved],
    text: TextModel,
    documented: Documented,
) -> None:
    """Errors in the middle of a stream, too."""
    events, story = case
    if story.finish is None and len(events) == 1:
        return
    event = documented.event("POST", PATHS[name])
    told = b"".join(asyncio.run(heard(run_of(asked[name], text, events)))).decode()
    for value in events_in(told):
        assert not documented.faults(event, value), value
