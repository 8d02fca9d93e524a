"""TGI: what is told of the prompt's tokens."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvasir.core.errors import RequestError
from kvasir.core.messages import TokenLogprob
from kvasir.serve.answer import Dialect
from kvasir.serve.dialects.tgi import TGI, TGI_STREAM
from kvasir.serve.frames import encode_scores
from tests.fake_run import resolved_of, toy_text
from tests.unit.test_peer_dialects import scored, whole

ASKED = {"inputs": "hi", "parameters": {"decoder_input_details": True}}


def test_details_tell_of_the_prompt(tmp_path: Path) -> None:
    text = toy_text(tmp_path)
    scores = encode_scores((TokenLogprob(105, -3.5, 7, ()),))
    event = msgspec.structs.replace(scored(65, "length"), scores=scores)
    assert resolved_of(TGI, ASKED, text).job.params.prompt_logprobs == 0
    details = whole(text, TGI, ASKED, event)["details"]
    assert details["prefill"] == [
        {"id": 104, "text": "h", "logprob": None},
        {"id": 105, "text": "i", "logprob": -3.5},
    ]
    assert [token["text"] for token in details["tokens"]] == ["A"]


@pytest.mark.parametrize(
    ("dialect", "more", "name"),
    [(TGI_STREAM, {}, "decoder_input_details"), (TGI, {"max_new_tokens": 0}, "max_new_tokens")],
)
def test_there_are_none_without_an_answer_to_stand_in(
    dialect: Dialect, more: dict[str, int], name: str
) -> None:
    with pytest.raises(RequestError) as caught:
        dialect.read({**ASKED, "parameters": {"decoder_input_details": True, **more}}, strict=True)
    assert caught.value.param == f"parameters.{name}"
