"""The engine's ``Masks`` of grammars."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol
from weakref import WeakValueDictionary

from kvasir.grammar.followers import Follower, FreeFollower, LimitedFollower, ThinkingClock
from kvasir.grammar.refusals import refused
from kvasir.grammar.thinking import grammar_in, limit_in
from kvasir.sampling.masks import Bits, NativeFill, allows

MAX_COMPILED = 256
MAX_COMPILED_BYTES = 32 * 2**20
"""Of the texts of grammars that are kept compiled: what is made of them is a few times as large."""


class GrammarCompiler(Protocol):
    """Compiles grammars over one vocabulary."""

    brace: int
    """The token that begins an object by itself; -1: there is none."""

    def bytes_of(self, token: int) -> bytes: ...

    def compile(self, text: str) -> Follower: ...


class GrammarMasks:
    """Grammars are compiled on a thread of their own, beside the steps, and kept by their text,
    the least recently used one leaving first."""

    def __init__(self, tokens: Callable[[], GrammarCompiler]) -> None:
        """``tokens``: made with the first grammar."""
        self._make_tokens = tokens
        self._tokens: GrammarCompiler | None = None
        self._pool = ThreadPoolExecutor(1, "grammar")
        self._lock = threading.Lock()
        self._held: WeakValueDictionary[str, Future[Follower]] = WeakValueDictionary()
        """All that is kept, or that a request waits with."""
        self._compiled: OrderedDict[str, Future[Follower]] = OrderedDict()
        self._n_bytes = 0
        self._open: dict[int, Follower] = {}

    def prepare(self, constraint: str) -> Callable[[], bool]:
        """Begin to compile: its request has arrived. Whether it is done; who holds this holds what
        is compiled. Any thread."""
        return self._find(grammar_in(constraint)).done

    def check(self, constraint: str) -> None:
        """Wait until it is compiled. Raises InvalidGrammar and UnsupportedSchema. Any thread."""
        self._find(grammar_in(constraint)).result()

    def open(self, slot: int, constraint: str, outputs: Sequence[int]) -> None:
        limited = limit_in(constraint)
        found = self._find(constraint if limited is None else limited.grammar).result().copy()
        if limited is not None and self._tokens is not None:
            clock = ThinkingClock(limited.thinking, self._tokens.bytes_of)
            found = LimitedFollower(found, clock)
        found.consume(outputs)
        self._open[slot] = found

    def accept(self, slot: int, tokens: Sequence[int]) -> None:
        self._open[slot].consume(tokens)

    def fill(self, slot: int, path: Sequence[int], bits: Bits) -> None:
        self._open[slot].fill(path, bits)

    def native(self, slot: int, tokens: Sequence[int]) -> NativeFill | None:
        return self._open[slot].native(tokens)

    def filled(self, slot: int, tokens: Sequence[int]) -> None:
        self._open[slot].filled(tokens)

    def close(self, slot: int) -> None:
        self._open.pop(slot, None)

    @property
    def n_compiled(self) -> int:
        return len(self._compiled)

    def _find(self, constraint: str) -> Future[Follower]:
        with self._lock:
            found = self._held.get(constraint)
            if found is None:
                found = self._held[constraint] = self._pool.submit(self._compile, constraint)
            if constraint not in self._compiled:
                self._compiled[constraint] = found
                self._n_bytes += len(constraint)
                self._shrink()
            else:
                self._compiled.move_to_end(constraint)
            return found

    def _shrink(self) -> None:
        while len(self._compiled) > 1 and (
            len(self._compiled) > MAX_COMPILED or self._n_bytes > MAX_COMPILED_BYTES
        ):
            text, _ = self._compiled.popitem(last=False)
            self._n_bytes -= len(text)

    def _compile(self, constraint: str) -> Follower:
        if self._tokens is None:
            self._tokens = self._make_tokens()
        return self._tokens.compile(constraint) if constraint else FreeFollower()


def check_compiles(tokens: GrammarCompiler, text: str, bits: Bits) -> None:
    """Compile ``text`` and ask for its first mask, and for that behind a brace: where more may
    follow than the library keeps in mind it gives up there. Raises InvalidGrammar and
    UnsupportedSchema."""
    try:
        made = tokens.compile(text)
        made.fill((), bits)
        if tokens.brace >= 0 and allows(bits, tokens.brace):
            made.fill((tokens.brace,), bits)
    except ValueError as error:
        raise refused(str(error), text) from None


def grammar_masks(path: str | None, n_ids: int) -> GrammarMasks:
    """Of the model at ``path``, which has ``n_ids`` logits. Nothing is loaded before the first
    request with a grammar."""

    def load() -> GrammarCompiler:
        # Imported now: with the tokenizers library it is 25 ms of a start, and 5 MB.
        from kvasir.grammar.matcher import load_tokens

        return load_tokens(path, n_ids)

    return GrammarMasks(load)
