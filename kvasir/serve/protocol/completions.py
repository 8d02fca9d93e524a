"""POST /v1/completions."""

from __future__ import annotations

import msgspec

from kvasir.core.errors import RequestError
from kvasir.serve.protocol.choices import ChoiceFields, choice_params
from kvasir.serve.protocol.sampling import UNSUPPORTED_SAMPLING
from kvasir.validation.names import Names
from kvasir.validation.sampling import SamplingParams

DEFAULT_MAX_TOKENS = 16


class CompletionRequest(ChoiceFields, frozen=True, kw_only=True):
    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    """Alternatives per token; 0 gives the chosen token alone."""
    suffix: str = ""
    """What comes after the text that is wanted; for models that fill in."""
    echo: bool = False
    best_of: int | None = None
    add_special_tokens: bool = True
    prompt_logprobs_start: int = 0
    """The first token of a prompt whose log probability is wanted: those before it are read from
    the prefix cache where it has them."""


UNSUPPORTED: dict[str, tuple[object, ...]] = {**UNSUPPORTED_SAMPLING}


def scores_only(request: CompletionRequest) -> bool:
    """Whether the prompt is scored and nothing is generated."""
    return request.max_tokens == 0 and (request.echo or request.prompt_logprobs is not None)


def sampling_params(request: CompletionRequest) -> SamplingParams:
    """Raises RequestError (400)."""
    for name, n in (("n", request.n), ("best_of", request.best_of or 1)):
        if scores_only(request) and n != 1:
            raise RequestError(
                f"{name} must be 1 when max_tokens is 0: there is one prompt to score", param=name
            )
    if request.echo and request.use_beam_search:
        raise RequestError(
            "echo does not go together with use_beam_search: leave it out", param="echo"
        )
    if request.echo and request.stream and request.logprobs is not None and request.n != 1:
        raise RequestError(
            "echo with logprobs streams one choice only: leave out n or stream", param="n"
        )
    _check_best(request)
    _check_start(request)
    params = choice_params(
        request,
        max_tokens=DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens,
        logprobs=request.logprobs,
        prompt_logprobs=_prompt_logprobs(request),
    )
    return msgspec.structs.replace(params, best_of=request.best_of)


def _check_start(request: CompletionRequest) -> None:
    name, start = "prompt_logprobs_start", request.prompt_logprobs_start
    if start < 0:
        raise RequestError(f"{name} must be at least 0", param=name)
    if start and (request.prompt_logprobs is None or request.echo):
        raise RequestError(f"{name} needs prompt_logprobs, and no echo", param=name)


def _check_best(request: CompletionRequest) -> None:
    best = request.best_of
    if best is None or best == request.n:
        return
    other = "use_beam_search" if request.use_beam_search else "stream" if request.stream else ""
    if other:
        raise RequestError(f"best_of does not go together with {other}", param="best_of")


def names_of(request: CompletionRequest) -> Names:
    """What its errors call what was sent."""
    scoring = "echo" if request.prompt_logprobs is None else "prompt_logprobs"
    return Names(max_tokens=None if request.max_tokens is None else "max_tokens", scoring=scoring)


def _prompt_logprobs(request: CompletionRequest) -> int | None:
    """Those that ``echo`` tells are as many as those of the answer."""
    wanted, echoed = request.prompt_logprobs, request.logprobs if request.echo else None
    if request.echo and request.logprob_token_ids:
        echoed = request.logprobs or 0
    if wanted is not None and echoed is not None and wanted != echoed:
        raise RequestError(
            f"with echo, prompt_logprobs ({wanted}) must be as many as logprobs ({echoed})",
            param="prompt_logprobs",
        )
    if wanted is None and echoed is None and scores_only(request):
        return 0
    return echoed if wanted is None else wanted
