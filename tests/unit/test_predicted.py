"""What a client expects of its answer: read, bounded, and counted in the usage."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from kvasir.core.errors import CapacityError, RequestError
from kvasir.core.params import TokenParams
from kvasir.core.tiles import Media
from kvasir.serve.client import AsyncClient
from kvasir.serve.dialects.chat import CHAT
from kvasir.serve.numbered import Common
from kvasir.serve.predicted import Predicted, read_predicted
from kvasir.serve.resolved import Job
from kvasir.serve.text import TextModel
from kvasir.serve.wanted import PREDICTED_BYTES, Size
from kvasir.text.prediction import read_prediction
from kvasir.validation.sampling import SamplingParams
from tests.fake_run import INFO, heard, joined, resolved_of, run_of, said, toy_text

PARAMS = TokenParams(seed=0, max_tokens=8)
ASKED = {"type": "content", "content": "some text"}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return toy_text(tmp_path_factory.mktemp("toy"))


def predicted(text: TextModel, given: str, drafter: str, max_drafts: int = -1) -> Predicted:
    info, params = replace(INFO, drafter=drafter), replace(PARAMS, max_drafts=max_drafts)
    return asyncio.run(read_predicted(given, text, info, params))


def test_where_nothing_is_looked_up_it_is_of_no_use(text: TextModel) -> None:
    assert predicted(text, "abc", "suffix") == Predicted((97, 98, 99))
    assert predicted(text, "", "") == Predicted()
    for drafter in ("", "draft_model", "eagle3"):
        found = predicted(text, "abc", drafter)
        assert not found.ids and "does not look texts up" in found.warnings[0]
    found = predicted(text, "abc", "ngram", 0)
    assert not found.ids and "asks for no drafts" in found.warnings[0]


def test_it_is_no_longer_than_a_prompt(text: TextModel) -> None:
    assert len(predicted(text, "a" * 4096, "ngram").ids) == 4096
    with pytest.raises(RequestError, match="prediction") as caught:
        predicted(text, "a" * 4097, "ngram")
    assert caught.value.param == "prediction"
    with pytest.raises(RequestError):
        predicted(text, "a" * 10_000_000, "ngram")


def test_it_counts_beside_pixels_and_a_constraint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a request that is sent, and of one that goes on."""
    sizes: list[Size] = []

    def full(_: AsyncClient, size: Size) -> None:
        sizes.append(size)
        raise CapacityError("full")

    monkeypatch.setattr(AsyncClient, "admit", full)
    params, media = replace(PARAMS, constraint="c" * 10), (Media(0, 1, b"abc", b"digest"),)
    common = Common(media=media, prediction=(1, 2))
    client = object.__new__(AsyncClient)
    with pytest.raises(CapacityError):
        asyncio.run(client.submit([((5, 6), params)], common=common))
    job = Job(((5, 6),), SamplingParams(), (params,), media=media, prediction=(1, 2))
    assert [sizes[0].n_bytes, job.n_bytes] == [13 + 2 * PREDICTED_BYTES] * 2


def test_its_parts_are_texts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert read_prediction({"type": "content", "content": parts}, has_beams=False) == "a\nb"
    with pytest.raises(RequestError, match="use_beam_search"):
        read_prediction(ASKED, has_beams=True)


@pytest.mark.parametrize("stream", [False, True])
def test_its_tokens_are_counted(text: TextModel, stream: bool) -> None:
    """As far as the answer has them: a stop string may end it before."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "prediction": ASKED}
    body |= {"stop": "d", "n": 2, "stream": stream}
    body |= {"stream_options": {"include_usage": True}, "stream_interval": 3} if stream else {}
    resolved = resolved_of(CHAT, body, text)
    assert "is of no use" in resolved.warnings[0]
    resolved = replace(resolved, job=replace(resolved.job, prediction=(1, 2, 3)))
    events = (
        said(0, "abc", prediction_hits=2, prediction_misses=4),
        said(1, "a"),
        said(0, "d", prediction_misses=1),
        said(1, "bdefg", prediction_hits=4),
    )
    run = run_of(resolved, text, events)
    if stream:
        *_, last, done = asyncio.run(heard(run))
        assert done == b"data: [DONE]\n\n"
        usage = json.loads(last.removeprefix(b"data: "))["usage"]
    else:
        usage = json.loads(joined(asyncio.run(run.whole())))["usage"]
    details = usage["completion_tokens_details"]
    assert details == {"accepted_prediction_tokens": 4, "rejected_prediction_tokens": 5}
    assert usage["completion_tokens"] == 7
