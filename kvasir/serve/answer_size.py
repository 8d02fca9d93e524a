"""How much one answer may hold, whatever its prompts cost."""

from __future__ import annotations

from kvasir.core.errors import RequestError
from kvasir.sampling.names import Names
from kvasir.serve.generation import Job

MAX_ALTERNATIVES = 20


def answer_limit(option: int, max_model_len: int) -> int:
    """Log probabilities of one answer: always those of one full context."""
    return max(option, max_model_len * (MAX_ALTERNATIVES + 1))


def check_answer(job: Job, limit: int, *, echoes: bool, streams: bool, names: Names) -> None:
    """Raises RequestError (400) when the answer to ``job`` could hold more than ``limit`` log
    probabilities: one for each token and one for each of its alternatives, over all choices.

    Echoed tokens count as one also without them, as their text is repeated for every choice. What
    is generated counts where it is gathered: not in a stream, and not as text alone.
    """
    wanted = job.params.logprobs
    n_tokens = job.n_prompt_tokens if echoes else 0
    if wanted is not None and not streams:
        n_tokens += sum(params.max_tokens for params in job.resolved)
    n_held = job.params.n * n_tokens * (1 + (wanted or 0))
    if n_held <= limit:
        return
    remedy = "leave out echo, " if echoes else ""
    each = "" if wanted is None else f" with {wanted} alternatives each"
    raise RequestError(
        f"{job.n_choices} choices of {len(job.prompts)} prompts hold up to "
        f"{job.params.n * n_tokens} tokens{each}, which counts as {n_held} log probabilities, an "
        f"answer holds at most {limit}: lower n, max_tokens or {names.of('logprobs')}, send fewer "
        f"or shorter prompts, {remedy}or raise --max-answer-logprobs",
        param="echo" if wanted is None else names.of("logprobs"),
    )
