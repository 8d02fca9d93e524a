"""Who goes on listening to a response after the server came back with another model."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from kvasir.core.errors import KvasirError
from kvasir.core.messages import TokenEvent
from kvasir.serve.deferred import Deferred, followed
from kvasir.serve.dialects.response_answer import ResponsesGrammar
from kvasir.serve.dialects.table import DIALECTS
from kvasir.serve.resolved import Envelope, Resolved
from kvasir.serve.state.conversations import Conversations
from kvasir.serve.state.entries import Quota
from kvasir.serve.state.kept import Kept, add_progress
from kvasir.serve.state.progress import SparseProgress
from kvasir.serve.state.responses import Responses
from kvasir.serve.state.store import Store
from kvasir.serve.stored import NOTHING_SAID, record_of
from kvasir.serve.text import TextModel
from tests.fake_run import INFO, resolved_of, said, toy_text

NAME, OWNER = "resp_0", b"somebody"
HEARD = 58


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return toy_text(tmp_path_factory.mktemp("toy"))


def service_of(store: Store, text: TextModel) -> Any:
    """Its engine is not the one that everything was resolved for."""

    async def opened() -> Any:
        return text, structs.replace(INFO, key_root="another")

    model = SimpleNamespace(open=opened)
    responses = Responses(store, Conversations(store, 1), 1)
    state = SimpleNamespace(responses=responses, progress=SparseProgress(store))
    return SimpleNamespace(state=state, default=model, check_model=lambda name: model)


async def failure_of(
    resolved: Resolved, text: TextModel, store: Store, known: list[TokenEvent]
) -> bytes:
    """What a listener is told that has heard HEARD events, or none where nothing is known."""
    kept = Kept(resolved, Envelope(NAME, 0), INFO.key_root)
    grammar = ResponsesGrammar(resolved, kept.envelope, text.tokenizer)
    record = record_of(grammar.waiting("queued"), NOTHING_SAID)
    service = service_of(store, text)
    responses: Responses = service.state.responses
    await responses.add(
        NAME, OWNER, "toy", structs.replace(record, is_done=False, kept=kept.encode())
    )
    await store.run(lambda db: add_progress(db, NAME, 0, known))
    telling = responses.live[NAME]
    await Deferred(service, 1).start()
    try:
        number = HEARD if known else 0
        found = [event async for batch in followed(telling, grammar, number) for event in batch]
    except KvasirError as error:
        return grammar.failure(error)
    (parts,) = found
    assert (await responses.get(NAME, OWNER)).shown()["error"]["code"] == "model_changed"
    return b"".join(parts)


@pytest.mark.parametrize(("known", "number"), [([], 0), ([said(0, "a")], HEARD)])
def test_its_failure_has_the_next_number(
    text: TextModel, known: list[TokenEvent], number: int
) -> None:
    store = Store(None, Quota(9, 10**6, 9, 10**6))
    asked = {"model": "toy", "input": "x", "background": True}
    resolved = resolved_of(DIALECTS["responses"], asked, text)
    event = asyncio.run(failure_of(resolved, text, store, known))
    store.close()
    assert event.startswith(b"event: response.failed\n")
    assert b'"sequence_number":%d,' % number in event and b'"model_changed"' in event
