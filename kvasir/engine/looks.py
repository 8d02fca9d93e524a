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
from kvasir.sched.request import Request

MAX_FORCED = 32
"""Tokens of one request that one look finds: each asks for a mask."""
MAX_THREADS = 16
"""So many masks may be slow at a time; more hold up other masks, and no step."""
MAX_LEFT = 4
"""Threads that begin what is left of looks that nobody waits for: who is held up holds up none."""
HELPED_SECONDS = 0.001
"""After which it is seen whether another thread shall go on with what one has not begun."""
PATIENCE = 5
"""Seconds that a call may take, of each second of CPU time that it may: the machine may have no
more for it."""
Path = tuple[int, ...]
Bring = Callable[[int, Bits], None]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Spent:
    """By the masks of one constraint of a tenant."""

    seconds: float = 0.0
    """Beyond those that each call may take."""
    is_slow: bool = False
    """Whether one was too slow for a step to make it."""


@dataclass(slots=True)
class MaskCost:
    """Of what was asked of one answer's masks."""

    n_masks: int = 0
    seconds: float = 0.0
    """That masks took."""
    n_calls: int = 0
    cpu: float = 0.0
    """Seconds of the processor that these calls took."""
    slowest: float = 0.0
    """Of them: seconds of the processor, or of time in PATIENCE."""


@dataclass(slots=True, eq=False)
class Followed:
    """An answer that keeps to a constraint, as the masks know it. A look that is under way has it
    alone."""

    masks: Masks
    key: int
    """Instead of a slot: the next answer there has another."""
    request: Request
    params: TokenParams
    spent: Spent
    """Of its constraint, as others of the tenant have it."""
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
    """Of the answer so far what the masks do not know."""
    n_words: int
    """Of a mask."""
    rows: tuple[tuple[int, Path], ...] = ()
    """Logit rows that wait, and their paths."""
    bring: Bring = lambda row, bits: None
    finds_chain: bool = False
    made: dict[Path, Bits] = field(default_factory=dict)
    """By paths; one that a mask forbids has none."""
    error: BaseException | None = None
    cost: MaskCost = field(default_factory=MaskCost)
    """But to open."""
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
        one, new = self.followed, self.outputs
        if one.n_outputs < 0:
            one.masks.open(one.key, one.params.constraint, new)
            one.n_outputs, new = len(new), ()
        began = time.thread_time()
        try:
            self._look(new)
        finally:
            self.cost.cpu = time.thread_time() - began

    def _look(self, new: Sequence[int]) -> None:
        one = self.followed
        if new:
            one.n_outputs, one.bits, one.chain = one.n_outputs + len(new), None, ()
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
        seconds = self._timed(self.followed.masks.fill, self.followed.key, path, bits)
        self.cost.seconds += seconds
        self.cost.n_masks += 1
        return bits

    def _timed(self, call: Callable[..., None], *args: object) -> float:
        self.began = began = time.monotonic()
        cpu = time.thread_time()
        call(*args)
        cpu, seconds = time.thread_time() - cpu, time.monotonic() - began
        self.cost.slowest = max(self.cost.slowest, cpu, seconds / PATIENCE)
        self.cost.n_calls += 1
        self.began = 0.0
        return seconds


def reopen(followed: Followed) -> None:
    """Its masks gave up: the next look tells them of the whole answer."""
    followed.masks.close(followed.key)
    followed.n_outputs, followed.bits, followed.chain = -1, None, ()


def close(followed: Followed) -> None:
    """Nothing is asked of it any more, now or when its look is done."""
    look, followed.look = followed.look, None
    if look is not None and not look.end():
        return
    if followed.n_outputs >= 0:
        followed.n_outputs = -1
        followed.masks.close(followed.key)


class Crew:
    """Threads that look. One that is held up by a look has it alone: another goes on, as one does
    where half of the time would not do. More than are needed would take the interpreter, and the
    processors, from each other.

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
        began, passed, n_done = time.monotonic(), 0.0, 0
        while not looked.is_done.acquire(timeout=min(HELPED_SECONDS, max(0.0, seconds - passed))):
            passed = time.monotonic() - began
            if passed >= seconds:
                for _ in range(min(len(looked.todo), MAX_LEFT)):
                    self._call(looked)
                return
            n_before, n_done = n_done, len(looks) - looked.n_left
            if looked.todo and needs_help(len(looks), n_before, n_done, passed / seconds):
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


def needs_help(n: int, n_before: int, n_done: int, share: float) -> bool:
    """Whether one thread is held up, or at its pace does not do ``n`` looks in half of the time, of
    which a ``share`` has passed. ``n_before``: those that were done a while ago."""
    return n_done == n_before or n * share > n_done / 2


class _Round:
    def __init__(self, looks: Sequence[Look]) -> None:
        self.todo = deque(looks)
        self.is_done = threading.Lock()
        """Held until all are."""
        self.is_done.acquire()
        self.n_left = len(looks)
        self._lock = threading.Lock()

    def work(self) -> None:
        while True:
            try:
                look = self.todo.popleft()
            except IndexError:
                return
            look.run()
            with self._lock:
                self.n_left -= 1
                if not self.n_left:
                    self.is_done.release()
