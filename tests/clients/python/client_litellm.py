"""litellm, with three of its providers."""

from __future__ import annotations

import litellm
import pytest

from .asked import KEY, MODEL, TALK, URL

PLACES = {
    "openai": {"model": f"openai/{MODEL}", "api_base": URL + "/v1"},
    "hosted_vllm": {"model": f"hosted_vllm/{MODEL}", "api_base": URL + "/v1"},
    "anthropic": {"model": f"anthropic/{MODEL}", "api_base": URL},
    "ollama_chat": {"model": f"ollama_chat/{MODEL}", "api_base": URL},
}
ASKED = {"messages": TALK, "temperature": 0, "max_tokens": 16, "api_key": KEY}


@pytest.mark.parametrize("place", PLACES)
def test_streamed_equals_whole(place):
    whole = litellm.completion(**PLACES[place], **ASKED)
    parts = litellm.completion(**PLACES[place], **ASKED, stream=True)
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content
    assert whole.usage.completion_tokens > 0


def test_errors():
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**PLACES["openai"], **{**ASKED, "temperature": -1})
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(model="openai/no-such-model", api_base=URL + "/v1", **ASKED)
