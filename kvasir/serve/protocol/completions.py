"""POST /v1/completions."""

from __future__ import annotations

from kvasir.core.errors import RequestError
from kvasir.core.params import SamplingParams
from kvasir.sampling.names import Names
from kvasir.serve.protocol.sampling import UNSUPPORTED_SAMPLING, SamplingFields, to_params

DEFAULT_MAX_TOKENS = 16


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    """Alternatives per token; 0 gives the chosen token alone."""
    echo: bool = False
    add_special_tokens: bool = True


UNSUPPORTED: dict[str, tuple[object, ...]] = {**UNSUPPORTED_SAMPLING, "suffix": ("",)}


def scores_only(request: CompletionRequest) -> bool:
    """Whether the prompt is echoed and nothing is generated."""
    return request.echo and request.max_tokens == 0


def sampling_params(request: CompletionRequest) -> SamplingParams:
    """Raises RequestError (400)."""
    if scores_only(request) and request.n != 1:
        raise RequestError(
            "n must be 1 when max_tokens is 0: there is one prompt to score", param="n"
        )
    if request.echo and request.use_beam_search:
        raise RequestError(
            "echo does not go together with use_beam_search: leave it out", param="echo"
        )
    if request.echo and request.stream and request.logprobs is not None and request.n != 1:
        raise RequestError(
            "echo with logprobs streams one choice only: leave out n or stream", param="n"
        )
    return to_params(
        request,
        max_tokens=DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens,
        logprobs=request.logprobs,
        prompt_logprobs=_prompt_logprobs(request),
    )


def names_of(request: CompletionRequest) -> Names:
    """What its errors call what was sent."""
    return Names(max_tokens=None if request.max_tokens is None else "max_tokens", scoring="echo")


def _prompt_logprobs(request: CompletionRequest) -> int | None:
    if request.logprobs is None and scores_only(request):
        return 0
    return request.logprobs if request.echo else None
