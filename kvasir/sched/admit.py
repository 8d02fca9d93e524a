"""What may enter: sizes that can never work are refused before any work is done."""

from __future__ import annotations

from kvasir.config.resolved import SchedulerConfig
from kvasir.core.errors import RequestError
from kvasir.core.request import EngineRequest


def max_outputs_of(request: EngineRequest, config: SchedulerConfig) -> int:
    """Outputs that ``request`` may draw: its ``max_tokens``, cut to what the context leaves.

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
    max_outputs = min(wanted, limit - n_prompt)
    if n_emitted > max_outputs:
        raise RequestError(f"{n_emitted} tokens were emitted, {max_outputs} are allowed")
    for group in config.sizes.groups:
        n_blocks = group.needs(n_prompt + max_outputs - 1, config.sizes.block_size)
        if n_blocks > group.n_blocks:
            raise RequestError(
                f"{n_prompt} prompt and {max_outputs} output tokens need {n_blocks} blocks of "
                f"{config.sizes.block_size}, there are {group.n_blocks}: "
                "lower max_tokens or raise --kv-memory",
                param="max_tokens",
                code="context_length_exceeded",
            )
    return max_outputs
