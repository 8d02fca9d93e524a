"""How much one answer may hold, whatever its prompts cost."""

from __future__ import annotations

from msgspec.structs import replace

from kvasir.core.errors import RequestError
from kvasir.serve.resolved import Job
from kvasir.validation.names import Names
from kvasir.validation.params import n_alternatives

MAX_ALTERNATIVES = 20


def answer_limit(option: int, max_model_len: int) -> int:
    """Log probabilities of one answer: always those of one full context."""
    return max(option, max_model_len * (MAX_ALTERNATIVES + 1))


def check_answer(job: Job, limit: int, *, echoes: bool, streams: bool, names: Names) -> None:
    """Raises RequestError (400) when the answer to ``job`` could hold more than ``limit`` log
    probabilities: one for each token and one for each of its alternatives, over all choices.

    Echoed tokens count as one also without them, as their text is repeated for every choice, and
    so do scored ones. What is generated counts where it is gathered: not in a stream, and not as
    text alone.
    """
    wanted, scored = n_alternatives(job.params), job.params.prompt_logprobs
    n_tokens = job.n_prompt_tokens if echoes or scored is not None else 0
    if wanted is not None and not streams:
        n_tokens += sum(params.max_tokens for params in job.resolved)
    n_held = job.params.n * n_tokens * (1 + max(wanted or 0, scored or 0))
    if n_held <= limit:
        return
    if wanted is None and scored is not None and not echoes:
        names = replace(names, logprobs="prompt_logprobs")
        wanted = scored
    remedy = "leave out echo, " if echoes else ""
    each = "" if wanted is None else f" with {wanted} alternatives each"
    raise RequestError(
        f"{job.n_choices} choices of {len(job.prompts)} prompts hold up to "
        f"{job.params.n * n_tokens} tokens{each}, which counts as {n_held} log probabilities, an "
        f"answer holds at most {limit}: lower n, max_tokens or {names.of('logprobs')}, send fewer "
        f"or shorter prompts, {remedy}or raise --max-answer-logprobs",
        param="echo" if wanted is None else names.of("logprobs"),
    )
