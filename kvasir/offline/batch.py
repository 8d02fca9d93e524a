"""A batch of prompts driven to its end in one engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kvasir.core.errors import KvasirError
from kvasir.core.messages import TokenEvent, TokenLogprob
from kvasir.core.params import TokenParams
from kvasir.core.request import EngineRequest, Standing
from kvasir.engine.engine import Engine
from kvasir.offline.outputs import CompletionOutput, RequestOutput, logprobs_by_id
from kvasir.offline.prompts import Prompt
from kvasir.text.choice import Choice, ChoiceFailed
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.validation.params import n_alternatives
from kvasir.validation.sampling import SamplingParams
from kvasir.validation.standing import after

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt with the resolved parameters of each of its choices."""

    number: int
    prompt: Prompt
    params: SamplingParams
    choices: tuple[TokenParams, ...]
    priority: int = 0
    prediction: tuple[int, ...] = ()
    """As in ``EngineRequest``."""


class Growing:
    """One choice while it runs."""

    def __init__(self, index: int, task: Task, tokenizer: Tokenizer) -> None:
        self._task = task
        self._tokenizer = tokenizer
        self._index = index
        self._choice = Choice(index, tokenizer, task.params)
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._finish: str | None = None
        self._stop_reason: int | str | None = None
        self.prompt_logprobs: list[TokenLogprob] = []
        self.n_cached = 0
        self.n_hits = self.n_misses = 0
        """Drafted tokens of the prediction that were drawn, and that were not."""
        self.failure: ChoiceFailed | None = None
        """Why its finish reason is "error"."""

    @property
    def is_finished(self) -> bool:
        return self._finish is not None

    def feed(self, event: TokenEvent) -> str:
        """The text that is new."""
        try:
            delta = self._choice.feed(event)
        except ChoiceFailed as failure:
            _log.error("prompt %d, choice %d: %s", self._task.number, self._index, failure.message)
            self.failure = failure
            self._finish, self._stop_reason = "error", failure.message
            return ""
        self._texts.append(delta.text)
        self.n_cached += delta.n_cached
        self.n_hits += delta.prediction_hits
        self.n_misses += delta.prediction_misses
        self._token_ids.extend(delta.tokens)
        self._logprobs.extend(delta.logprobs)
        self.prompt_logprobs.extend(delta.prompt_logprobs)
        self._finish, self._stop_reason = delta.finish, delta.stop_reason
        return delta.text

    @property
    def logprob(self) -> float:
        """Of all its tokens together."""
        return sum(item.logprob for item in self._logprobs)

    def output(self, index: int) -> CompletionOutput:
        params = self._task.params
        wanted, are_named = n_alternatives(params) is not None, bool(params.logprob_token_ids)
        return CompletionOutput(
            index=index,
            text="".join(self._texts),
            token_ids=self._token_ids,
            cumulative_logprob=self.logprob if wanted else None,
            logprobs=logprobs_by_id(self._logprobs, self._tokenizer, are_named) if wanted else None,
            finish_reason=self._finish,
            stop_reason=self._stop_reason,
        )


class Batch:
    """Runs all choices of all tasks together. For one use."""

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, tasks: Sequence[Task], ids: Iterator[int]
    ) -> None:
        """``ids``: where the engine's ids of the choices come from."""
        self._engine = engine
        self._ids = ids
        self._tokenizer = tokenizer
        self._tasks = tasks
        self._choices = [
            [Growing(i, task, tokenizer) for i in range(len(task.choices))] for task in tasks
        ]
        self._open: dict[int, Growing] = {}

    def run(
        self, shows_progress: bool, check: Callable[[], None] = lambda: None
    ) -> list[RequestOutput]:
        """Raises RequestError for a request that can never run, EngineFault when a step fails, and
        what ``check`` raises, which is called before each step."""
        columns = (
            TextColumn("Processed prompts"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), disable=not shows_progress) as bar:
            row = bar.add_task("", total=sum(map(len, self._choices)), rate="")
            n_tokens = 0

            def report(n_new: int, n_finished: int) -> None:
                nonlocal n_tokens
                n_tokens += n_new
                seconds = bar.tasks[0].elapsed or 0
                rate = f"{n_tokens / seconds:.0f} tokens/s" if seconds > 0 else ""
                bar.update(row, advance=n_finished, rate=rate)

            self._drive(report, check)
        return [
            self._result(task, own) for task, own in zip(self._tasks, self._choices, strict=True)
        ]

    def _drive(self, report: Callable[[int, int], None], check: Callable[[], None]) -> None:
        try:
            self._submit()
            while self._open:
                check()
                if not self._engine.has_work:
                    raise KvasirError(f"the engine forgot {len(self._open)} choices")
                report(*self._step())
        except BaseException:
            if self._engine.is_sound:
                self._abandon()
            raise
        self._abandon()

    def _submit(self) -> None:
        now = time.monotonic()
        for task, own in zip(self._tasks, self._choices, strict=True):
            asked, first = task.params, -1
            standing = Standing(
                priority=task.priority,
                ttft_by=after(now, asked.ttft_ms),
                answer_by=after(now, asked.deadline_ms),
            )
            for params, growing in zip(task.choices, own, strict=True):
                number = next(self._ids)
                request = EngineRequest(
                    number,
                    task.prompt.ids,
                    params,
                    task.prompt.context,
                    standing,
                    parent=first,
                    hold_seconds=float(asked.cache_ttl or 0),
                    media=task.prompt.media,
                    prediction=task.prediction,
                )
                first = number if first < 0 else first
                self._engine.add(request)
                self._open[number] = growing

    def _step(self) -> tuple[int, int]:
        """(tokens, finished choices) of one step."""
        n_open, n_tokens = len(self._open), 0
        for event in self._engine.step().events:
            growing = self._open.get(event.id)
            if growing is None:
                continue
            growing.feed(event)
            n_tokens += len(event.tokens)
            if growing.is_finished:
                del self._open[event.id]
                if event.finish is None:
                    self._engine.cancel(event.id)
        return n_tokens, n_open - len(self._open)

    def _abandon(self) -> None:
        """Ends what is open and lets the engine come to rest."""
        for number in self._open:
            self._engine.cancel(number)
        while self._engine.has_work:
            self._engine.step()

    def _result(self, task: Task, own: Sequence[Growing]) -> RequestOutput:
        logprobs = None
        if task.params.prompt_logprobs is not None:
            logprobs = [None, *logprobs_by_id(own[0].prompt_logprobs, self._tokenizer)]
        return RequestOutput(
            request_id=str(task.number),
            prompt=task.prompt.text,
            prompt_token_ids=list(task.prompt.ids),
            prompt_logprobs=logprobs,
            outputs=[growing.output(i) for i, growing in enumerate(_best(task, own))],
            finished=True,
            num_cached_tokens=own[0].n_cached,
            accepted_prediction_tokens=sum([growing.n_hits for growing in own]),
            rejected_prediction_tokens=sum([growing.n_misses for growing in own]),
        )


def _best(task: Task, own: Sequence[Growing]) -> Sequence[Growing]:
    """The choices that are the answer, best first; of equal ones the first."""
    if len(own) == task.params.n:
        return own
    return sorted(own, key=lambda growing: -growing.logprob)[: task.params.n]
