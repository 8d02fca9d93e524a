"""A slot of the native sampler from the parameters of a request."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir import _native
from kvasir.core.params import TokenParams


def open_native(
    sampler: _native.Sampler,
    params: TokenParams,
    prompt: Sequence[int],
    output: Sequence[int],
    slot: int = 0,
) -> None:
    sampler.open(
        slot,
        seed=params.seed,
        temperature=params.temperature,
        top_p=params.top_p,
        min_p=params.min_p,
        top_k=params.top_k,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        min_tokens=params.min_tokens,
        n_logprobs=params.n_logprobs,
        n_prompt_logprobs=params.n_prompt_logprobs,
        logit_bias=list(params.logit_bias),
        stop_ids=list(params.stop_ids),
        prompt=list(prompt),
        output=list(output),
    )
