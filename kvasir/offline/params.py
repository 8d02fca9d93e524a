"""Sampling parameters for each prompt, however a user gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kvasir.core.errors import RequestError
from kvasir.validation.sampling import SamplingParams

Params = SamplingParams | Sequence[SamplingParams] | None


def one_each(params: Params, n_prompts: int) -> list[SamplingParams]:
    """Raises RequestError where they are none, or not as many."""
    if isinstance(params, Mapping):
        raise RequestError(
            f"sampling_params is a dict: write {_as_params(params)}", param="sampling_params"
        )
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * n_prompts
    many = _all_params(params if isinstance(params, Iterable) else [params])
    if len(many) != n_prompts:
        raise RequestError(
            f"{len(many)} sampling_params for {n_prompts} prompts: give one, or one per prompt",
            param="sampling_params",
        )
    return many


def _all_params(params: Iterable[object]) -> list[SamplingParams]:
    many: list[SamplingParams] = []
    for item in params:
        if not isinstance(item, SamplingParams):
            hint = f": write {_as_params(item)}" if isinstance(item, Mapping) else ""
            raise RequestError(
                f"sampling_params must be SamplingParams, not {type(item).__name__}{hint}",
                param="sampling_params",
            )
        many.append(item)
    return many


def _as_params(values: Mapping[object, object]) -> str:
    """As one would have to write them."""
    return f"SamplingParams({', '.join(f'{name}={value!r}' for name, value in values.items())})"
