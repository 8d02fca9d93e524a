"""``@function``: Python functions over a state become programs that run on a model."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, update_wrapper
from queue import SimpleQueue
from typing import Any

import msgspec

from kvasir.lang.branch import RunSettings
from kvasir.lang.calls import ModelBackend
from kvasir.lang.defaults import backend_of
from kvasir.lang.expressions import OWN_FIELDS
from kvasir.lang.state import Branches, ProgramState
from kvasir.lang.stopping import Stop
from kvasir.lang.trace import Trace
from kvasir.offline.llm import LLM
from kvasir.validation.sampling import SamplingParams

MAX_TOKENS = 128
"""Of a call that says nothing else, as with SGLang."""
MAX_CALLS = 256
"""That wait for the model at a time, of all programs of one ``run`` or ``run_batch``."""
NUM_THREADS = 64
"""Programs of a batch that run at a time."""
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(SamplingParams)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a program runs; each can be said to ``run``, ``run_batch`` and ``stream``."""

    backend: ModelBackend | LLM | None = None
    """None: that of ``set_default_backend``."""
    seed: int = 0
    """Of the program; the seed of each call follows from it and the call's place."""
    sampling_params: SamplingParams | None = None
    """Of calls that say nothing else."""
    timeout: float | None = None
    """Seconds, for the whole program."""
    trace: Trace | None = None


_OPTIONS = frozenset(RunOptions.__dataclass_fields__)


class ProgramFunction:
    """What ``function`` makes. Called with a state it runs as a part of that state's program."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Raises TypeError for a function that takes no state, or an argument by the name of an
        option."""
        update_wrapper(self, function)
        self._function = function
        names = list(inspect.signature(function).parameters)
        if not names:
            raise TypeError(f"{function.__name__}() needs a state as its first parameter")
        taken = sorted(_OPTIONS & set(names[1:]))
        if taken:
            raise TypeError(
                f"{function.__name__}() has a parameter {taken[0]!r}, which is an option of run: "
                "call it otherwise"
            )

    def __call__(self, state: ProgramState, *args: Any, **kwargs: Any) -> Any:
        return self._function(state, *args, **kwargs)

    def run(
        self,
        *args: Any,
        backend: ModelBackend | LLM | None = None,
        seed: int = 0,
        sampling_params: SamplingParams | None = None,
        timeout: float | None = None,
        trace: Trace | None = None,
        **kwargs: Any,
    ) -> Any:
        """What the function returns, or the state where that is nothing.

        Options are those of ``RunOptions``, everything else goes to the function. Returns when all
        calls have ended. Raises what the function raises; KvasirError, ProgramTimeout among them,
        when a call failed and nobody read its variable.
        """
        options = RunOptions(
            backend=backend,
            seed=seed,
            sampling_params=sampling_params,
            timeout=timeout,
            trace=trace,
        )
        with _calls() as pool:
            return _ProgramRun(self._function, options, pool).whole(args, kwargs)

    def run_batch(
        self,
        arguments: Sequence[Mapping[str, Any]],
        *,
        backend: ModelBackend | LLM | None = None,
        seed: int = 0,
        sampling_params: SamplingParams | None = None,
        timeout: float | None = None,
        trace: Trace | None = None,
        num_threads: int = NUM_THREADS,
        return_exceptions: bool = False,
    ) -> list[Any]:
        """The results of one program for each of ``arguments``, in their order.

        Program i gives what ``run(**arguments[i], seed=seed + i)`` gives. ``timeout`` is for each
        of them, ``num_threads`` run at a time. One that fails hurts no other: the first error is
        raised when all have ended, or stands among the results with ``return_exceptions``.
        """
        if num_threads < 1:
            raise ValueError(f"num_threads is {num_threads}: needs at least 1")
        options = RunOptions(
            backend=backend_of(backend),
            seed=seed,
            sampling_params=sampling_params,
            timeout=timeout,
            trace=trace,
        )
        n_threads = max(1, min(num_threads, len(arguments)))
        with _calls() as pool, ThreadPoolExecutor(n_threads, "kvasir-program") as threads:
            runs = [
                _ProgramRun(self._function, replace(options, seed=seed + i), pool, i)
                for i in range(len(arguments))
            ]
            ends = [
                threads.submit(run.whole, (), given)
                for run, given in zip(runs, arguments, strict=True)
            ]
            try:
                return _gathered(ends, return_exceptions)
            except KeyboardInterrupt:
                threads.shutdown(wait=False, cancel_futures=True)
                for run in runs:
                    run.cancel()
                raise

    def stream(
        self,
        *args: Any,
        backend: ModelBackend | LLM | None = None,
        seed: int = 0,
        sampling_params: SamplingParams | None = None,
        timeout: float | None = None,
        trace: Trace | None = None,
        **kwargs: Any,
    ) -> ProgramStream:
        """As ``run``, and tells the texts of all calls while they grow."""
        options = RunOptions(
            backend=backend,
            seed=seed,
            sampling_params=sampling_params,
            timeout=timeout,
            trace=trace,
        )
        return ProgramStream(self._function, options, args, kwargs)


def function(body: Callable[..., Any]) -> ProgramFunction:
    """A program of ``body``, whose first parameter is the state."""
    return ProgramFunction(body)


class ProgramStream(Iterator[tuple[str, str]]):
    """Pairs of a variable's name and new text, as they come from any branch: texts of one variable
    in their order. Ends when the program does, and raises what it raised; ``close`` cancels it."""

    def __init__(
        self,
        body: Callable[..., Any],
        options: RunOptions,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self._told: SimpleQueue[tuple[str, str] | None] = SimpleQueue()
        self._pool = _calls()
        self._end: Future[Any] = Future()
        self._run = _ProgramRun(body, options, self._pool, 0, lambda *news: self._told.put(news))
        work = partial(self._work, args, kwargs)
        threading.Thread(target=work, name="kvasir-program", daemon=True).start()

    def __next__(self) -> tuple[str, str]:
        news = None if self._end.done() and self._told.empty() else self._told.get()
        if news is not None:
            return news
        self._end.result()
        raise StopIteration

    @property
    def result(self) -> Any:
        """What ``run`` returns; waits for the end, and raises what it raises."""
        return self._end.result()

    def close(self) -> None:
        """Cancels what still runs, and waits until it has ended."""
        self._run.cancel()
        self._end.exception()

    def _work(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        try:
            with self._pool:
                result = self._run.whole(args, kwargs)
        except BaseException as error:
            self._end.set_exception(error)
        else:
            self._end.set_result(result)
        self._told.put(None)


class _ProgramRun:
    """One program, once."""

    def __init__(
        self,
        body: Callable[..., Any],
        options: RunOptions,
        pool: ThreadPoolExecutor,
        number: int = 0,
        listen: Callable[[str, str], None] | None = None,
    ) -> None:
        self._body = body
        self._options = options
        self._pool = pool
        self._number = number
        self._listen = listen
        self._params = _defaults(options.sampling_params)
        self._is_cancelled = False
        self._stop: Stop | None = None

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._stop is not None:
            self._stop.cancel()

    def whole(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        options = self._options
        self._stop = stop = Stop(options.timeout)
        if self._is_cancelled:
            stop.cancel()
        settings = RunSettings(
            params=self._params,
            seed=options.seed,
            stop=stop,
            start=self._pool.submit,
            trace=options.trace,
            program=self._number,
            listen=self._listen,
        )
        line = backend_of(options.backend).begin()
        branches = Branches(settings)
        state = ProgramState(branches, branches.new((), line))
        try:
            value = self._body(state, *args, **kwargs)
            branches.wait()
            branches.check()
        except BaseException:
            stop.cancel()
            branches.wait()
            raise
        finally:
            line.close()
        return state if value is None else value


def _calls() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_CALLS, "kvasir-call")


def _gathered(ends: Sequence[Future[Any]], return_exceptions: bool) -> list[Any]:
    errors = [end.exception() for end in ends]
    if return_exceptions:
        pairs = zip(ends, errors, strict=True)
        return [end.result() if error is None else error for end, error in pairs]
    first = next((error for error in errors if error is not None), None)
    if first is not None:
        raise first
    return [end.result() for end in ends]


def _defaults(params: SamplingParams | None) -> SamplingParams:
    """Raises ValueError for what a program cannot say for all its calls."""
    if params is None:
        return SamplingParams(max_tokens=MAX_TOKENS)
    values = msgspec.structs.asdict(params)
    wrong = sorted(
        name
        for name, value in values.items()
        if value != _DEFAULTS[name] and (name not in OWN_FIELDS or name == "seed")
    )
    if wrong:
        raise ValueError(f"sampling_params of a program cannot say {', '.join(wrong)}")
    return params
