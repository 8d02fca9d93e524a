"""What masks say of answers, asked on threads beside the engine's."""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

import numpy as np

from kvasir.core.params import TokenParams
from kvasir.sampling.masks import Bits, Masks, allows, only

MAX_FORCED = 32
"""Tokens of one request that one look finds: each asks for a mask."""
MAX_THREADS = 16
"""So many masks may be slow at a time; more hold up other masks, and no step."""
HELPED_SECONDS = 0.001
"""After which another thread goes on with what one has not begun."""
Path = tuple[int, ...]
Bring = Callable[[int, Bits], None]


@dataclass(slots=True, eq=False)
class Followed:
    """An answer that keeps to a constraint, as the masks know it. A look that is under way has it
    alone."""

    masks: Masks
    key: int
    """Instead of a slot: the next answer there has another."""
    params: TokenParams
    n_outputs: int = -1
    """That the masks know; -1: they know nothing of it."""
    bits: Bits | None = None
    """What may follow these, once that was asked."""
    chain: tuple[int, ...] = ()
    """What must follow these."""
    look: Look | None = None
    """Under way, or done and not taken."""


@dataclass(slots=True, eq=False)
class Look:
    """Tells the masks of new outputs and asks what may follow."""

    followed: Followed
    outputs: Sequence[int]
    """All of the answer so far, and never more."""
    n_words: int
    """Of a mask."""
    rows: tuple[tuple[int, Path], ...] = ()
    """Logit rows that wait, and their paths."""
    bring: Bring = lambda row, bits: None
    finds_chain: bool = False
    made: dict[Path, Bits] = field(default_factory=dict)
    """By paths; one that a mask forbids has none."""
    error: BaseException | None = None
    n_masks: int = 0
    seconds: float = 0.0
    """That masks took."""
    n_calls: int = 0
    cpu: float = 0.0
    """Seconds of the processor that calls took, but those to open."""
    slowest: float = 0.0
    """Of these calls, seconds."""
    began: float = 0.0
    """When the call under way did; 0: there is none, or it opens."""
    is_done: bool = False
    _is_left: bool = False
    _is_over: bool = False
    _brought: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        try:
            self._follow()
        except BaseException as error:  # it is raised where it is taken
            self.error = error
        with self._lock:
            self.is_done = True
            is_over = self._is_over
        if is_over:
            close(self.followed)

    def leave(self) -> set[int]:
        """Rows whose masks do not come: they are brought no more. It goes on if it is not done."""
        with self._lock:
            self._is_left = True
            return {row for row, _ in self.rows} - self._brought

    def end(self) -> bool:
        """Nobody asks any more; False: a call is under way, behind which it closes itself."""
        with self._lock:
            self._is_left = self._is_over = True
            return self.is_done

    def _follow(self) -> None:
        one = self.followed
        if one.n_outputs < 0:
            one.masks.open(one.key, one.params.constraint, self.outputs)
            one.n_outputs = len(self.outputs)
        elif new := self.outputs[one.n_outputs :]:
            one.n_outputs, one.bits, one.chain = len(self.outputs), None, ()
            self._timed(one.masks.accept, one.key, new)
        is_new = one.bits is None
        if one.bits is None:
            one.bits = self._ask(())
        self.made[()] = one.bits
        for row, path in self.rows:
            if not self._is_left:
                self._bring(row, self._along(path))
        if self.finds_chain and is_new:
            one.chain = self._forced(one.bits)

    def _along(self, path: Path) -> Bits:
        """Nobody draws below a token that is forbidden."""
        if path not in self.made:
            above = self.made.get(path[:-1])
            if above is None or not allows(above, path[-1]):
                return np.zeros(self.n_words, np.uint32)
            self.made[path] = self._ask(path)
        return self.made[path]

    def _bring(self, row: int, bits: Bits) -> None:
        with self._lock:
            if not self._is_left:
                self.bring(row, bits)
                self._brought.add(row)

    def _forced(self, bits: Bits) -> tuple[int, ...]:
        chain: tuple[int, ...] = ()
        params, n_outputs = self.followed.params, self.followed.n_outputs
        while (token := only(bits)) >= 0 and len(chain) < MAX_FORCED and not self._is_left:
            if token in params.stop_ids:
                return (*chain, token) if n_outputs + len(chain) >= params.min_tokens else chain
            chain = (*chain, token)
            bits = self._ask(chain)
        return chain

    def _ask(self, path: Path) -> Bits:
        bits = np.zeros(self.n_words, np.uint32)
        began = time.monotonic()
        self._timed(self.followed.masks.fill, self.followed.key, path, bits)
        self.seconds += time.monotonic() - began
        self.n_masks += 1
        return bits

    def _timed(self, call: Callable[..., None], *args: object) -> None:
        self.began, cpu = time.monotonic(), time.thread_time()
        call(*args)
        self.slowest = max(self.slowest, time.monotonic() - self.began)
        self.cpu += time.thread_time() - cpu
        self.n_calls += 1
        self.began = 0.0


def close(followed: Followed) -> None:
    """Nothing is asked of it any more, now or when its look is done."""
    look, followed.look = followed.look, None
    if look is not None and not look.end():
        return
    if followed.n_outputs >= 0:
        followed.n_outputs = -1
        followed.masks.close(followed.key)


class Crew:
    """Threads that look. One that is held up by a look has it alone: another goes on.

    They begin when they are needed, and wait for no more than a queue and a lock: a pool of futures
    takes a tenth of a millisecond of each step for itself, beside kernels that fill the caches.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Round | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle: list[None] = []
        """One for each thread that waits, or is about to."""

    def do(self, looks: Sequence[Look], seconds: float) -> None:
        """Returns when all are done, or ``seconds`` are over: then they go on."""
        looked = _Round(looks)
        self._call(looked)
        until = time.monotonic() + seconds
        left = seconds
        while not looked.is_done.acquire(timeout=min(HELPED_SECONDS, max(0.0, left))):
            left = until - time.monotonic()
            if left <= 0:
                return
            if looked.todo:
                self._call(looked)

    def _call(self, looked: _Round) -> None:
        """A thread that has nothing to do, or another, helps with it."""
        try:
            self._idle.pop()
        except IndexError:
            if len(self._threads) < MAX_THREADS:
                self._begin()
        self._calls.put(looked)

    def _begin(self) -> None:
        if not self._threads:
            # The interpreter's end may not find a thread inside native code.
            atexit.register(self.close)
        name = f"masks-{len(self._threads)}"
        self._threads.append(threading.Thread(target=self._serve, name=name, daemon=True))
        self._threads[-1].start()

    def _serve(self) -> None:
        while (looked := self._calls.get()) is not None:
            looked.work()
            del looked  # or it would live until the next one
            self._idle.append(None)

    def close(self) -> None:
        """Waits for what is under way."""
        atexit.unregister(self.close)
        for _ in self._threads:
            self._calls.put(None)
        while self._threads:
            self._threads.pop().join()


class _Round:
    def __init__(self, looks: Sequence[Look]) -> None:
        self.todo = deque(looks)
        self.is_done = threading.Lock()
        """Held until all are."""
        self.is_done.acquire()
        self._n_left = len(looks)
        self._lock = threading.Lock()

    def work(self) -> None:
        while True:
            try:
                look = self.todo.popleft()
            except IndexError:
                return
            look.run()
            with self._lock:
                self._n_left -= 1
                if not self._n_left:
                    self.is_done.release()
