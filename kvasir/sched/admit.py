"""What may enter: sizes that can never work are refused before any work is done."""

from __future__ import annotations

from kvasir.config.resolved import SchedulerConfig
from kvasir.core.errors import RequestError
from kvasir.core.request import EngineRequest


def max_outputs_of(request: EngineRequest, config: SchedulerConfig) -> int:
    """Outputs that ``request`` may draw: its ``max_tokens``, cut to what the context leaves; a
    vector counts as one.

    Raises RequestError when the prompt is empty, too long, or the request can never fit the blocks.
    """
    n_prompt, n_emitted = len(request.prompt), len(request.emitted)
    wanted, limit = request.params.max_tokens, config.sizes.max_model_len
    if not n_prompt:
        raise RequestError("the prompt has no tokens: send at least one", param="prompt")
    if wanted < 0:
        raise RequestError(f"max_tokens is {wanted}: needs at least 0", param="max_tokens")
    if n_prompt > limit:
        raise RequestError(
            f"the prompt has {n_prompt} tokens, the limit is {limit}: shorten it",
            param="prompt",
            code="context_length_exceeded",
        )
    if n_prompt == limit and wanted:
        raise RequestError(
            f"the prompt has {n_prompt} tokens and fills the limit of {limit}: "
            "shorten it, or score it with max_tokens 0",
            param="prompt",
            code="context_length_exceeded",
        )
    max_outputs = 1 if request.pooling else min(wanted, limit - n_prompt)
    _check_end(request, config.span_tokens, max_outputs)
    if n_emitted > max_outputs:
        raise RequestError(f"{n_emitted} tokens were emitted, {max_outputs} are allowed")
    for group in config.sizes.groups:
        n_blocks = group.needs(n_prompt + max_outputs - 1, config.sizes.block_size)
        if n_blocks > group.n_blocks:
            field = "prompt" if request.pooling else "max_tokens"
            less = "shorten the prompt" if request.pooling else "lower max_tokens"
            raise RequestError(
                f"{n_prompt} prompt and {max_outputs} output tokens need {n_blocks} blocks of "
                f"{config.sizes.block_size}, there are {group.n_blocks}: "
                f"{less} or raise --kv-memory",
                param=field,
                code="context_length_exceeded",
            )
    return max_outputs


def _check_end(request: EngineRequest, span_tokens: int, max_outputs: int) -> None:
    """Of a prompt that is only scored the last token is not computed: no other may see it."""
    last = request.media[-1:] if span_tokens and not max_outputs else ()
    if any(media.end == len(request.prompt) and media.n_tokens > 1 for media in last):
        raise RequestError(
            "the prompt ends with an image, all of whose tokens see each other: send text behind "
            "it, or ask for a token",
            param="max_tokens",
        )


def check_priority(request: EngineRequest, policy: str) -> None:
    """Raises RequestError when ``request`` has a priority that ``policy`` would ignore."""
    standing = request.standing
    if policy == "fair" or (standing.priority == 0 and standing.priority_class == "standard"):
        return
    param = "priority" if standing.priority else "priority_class"
    raise RequestError(
        f"{param} has no effect with --scheduling-policy {policy}: use fair, or leave it out",
        param=param,
        code="unsupported_parameter",
    )
