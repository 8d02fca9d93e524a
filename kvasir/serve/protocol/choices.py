"""The fields of OpenAI's two requests for choices that other dialects have no words for."""

from __future__ import annotations

from typing import Any

import msgspec

from kvasir.core.errors import RequestError
from kvasir.serve.protocol.notes import check_metadata, check_request_id
from kvasir.serve.protocol.sampling import SamplingFields, to_params
from kvasir.validation.sampling import SamplingParams


class ChoiceFields(SamplingFields, frozen=True, kw_only=True):
    logprob_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool = False
    """Of prompt and answer."""
    return_tokens_as_token_ids: bool = False
    """Tokens with logprobs are called "token_id:7"."""
    return_metrics: bool = False
    """Times of the answer."""
    metadata: dict[str, str] | None = None
    """Given back with the answer."""
    request_id: str | None = None
    """The client's own name for the request: given back, and no more."""
    rid: str | None = None
    """SGLang's name for it."""
    sse_ping_interval: int | None = None
    """llama-server's: seconds of silence after which a stream gets a comment; -1: it never does."""


def notes_of(fields: ChoiceFields) -> dict[str, Any]:
    """What the answer says again. Raises RequestError (400)."""
    notes: dict[str, Any] = {}
    if fields.metadata is not None:
        check_metadata(fields.metadata)
        notes["metadata"] = fields.metadata
    request_id = fields.request_id if fields.rid is None else fields.rid
    if fields.request_id not in (None, request_id):
        raise RequestError("request_id and rid differ: send one of them", param="rid")
    if request_id is not None:
        check_request_id(request_id)
        notes["request_id"] = request_id
    return notes


def choice_params(
    fields: ChoiceFields,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """Raises RequestError (400), as ``to_params``."""
    for name in ("logprob_token_ids", "prompt_logprobs", "return_token_ids", "return_metrics"):
        if fields.use_beam_search and getattr(fields, name) not in (None, False):
            raise RequestError(
                f"{name} does not go together with use_beam_search: leave it out", param=name
            )
    if fields.stream and fields.prompt_logprobs is not None:
        raise RequestError(
            "prompt_logprobs are not told in a stream: leave one out", param="prompt_logprobs"
        )
    params = to_params(
        fields, max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=prompt_logprobs
    )
    return msgspec.structs.replace(params, logprob_token_ids=fields.logprob_token_ids)
