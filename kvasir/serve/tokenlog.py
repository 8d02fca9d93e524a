"""The token log: what the API process keeps of a choice so that a new engine can go on with it."""

from __future__ import annotations

import msgspec
from msgspec import structs

from kvasir.core.errors import KvasirError
from kvasir.core.messages import TokenEvent
from kvasir.core.params import DRAWS, TokenParams
from kvasir.core.request import EngineRequest
from kvasir.grammar.thinking import closed_at

VERSION = 2


class ReplayError(KvasirError):
    """A log that this engine cannot continue with the same bytes."""

    code = "replay_mismatch"


class TokenLog(msgspec.Struct, tag="token_log", forbid_unknown_fields=True):
    """One choice: as it was asked for, resolved, and what reached its client. Grows by
    ``record``."""

    request: EngineRequest
    """Its seed is drawn and every default is filled in; the end of its prompt is the border between
    prompt and output."""
    key_root: str
    numerics_id: str
    emitted: list[int]
    n_scored: int
    """Logprobs of the prompt."""
    finish: str | None = None
    version: int = VERSION
    draws: int = DRAWS
    """Version of the sampler."""

    def record(self, event: TokenEvent) -> None:
        """Append one event of this choice. Raises KvasirError on another's, or after the end."""
        own = self.request.id
        if event.id != own:
            raise KvasirError(f"event of request {event.id} in the log of {own}")
        if self.finish is not None:
            raise KvasirError(f"event of request {own}, which ended with {self.finish!r}")
        if event.closes_at is not None:
            self.close_thinking(event.closes_at)
        self.emitted.extend(event.tokens)
        self.n_scored += len(event.prompt_logprobs) + event.n_scores
        self.finish = event.finish

    def close_thinking(self, n_outputs: int) -> None:
        """Its reasoning ends after so many outputs, unless it was to end before."""
        params = closed(self.request.params, n_outputs)
        self.request = structs.replace(self.request, params=params)


def closed(params: TokenParams, n_outputs: int) -> TokenParams:
    """``params`` of a choice whose reasoning ends after so many outputs, as it was asked to."""
    return structs.replace(params, constraint=closed_at(params.constraint, n_outputs))


def open_log(request: EngineRequest, *, key_root: str, numerics_id: str) -> TokenLog:
    """The log of a request that is about to be sent to the engine with these keys."""
    return TokenLog(request, key_root, numerics_id, list(request.emitted), request.n_scored)


def replay(log: TokenLog, *, key_root: str, numerics_id: str) -> EngineRequest:
    """The request that continues ``log`` in an engine with these keys, which is told that it is no
    new one.

    Raises ReplayError when its next bytes could differ, or when nothing is left to compute.
    """
    request = log.request
    if log.version != VERSION:
        raise ReplayError(f"token log of version {log.version}, this is version {VERSION}")
    if log.finish is not None:
        raise ReplayError(f"request {request.id} ended with {log.finish!r}: nothing to replay")
    if log.numerics_id != numerics_id:
        raise ReplayError(
            f"request {request.id} ran with numerics {log.numerics_id!r}, "
            f"the engine has {numerics_id!r}"
        )
    if log.draws != DRAWS:
        raise ReplayError(
            f"request {request.id} was drawn by sampler {log.draws}, the engine has {DRAWS}"
        )
    if log.key_root != key_root:
        raise ReplayError(
            f"request {request.id} ran with key root {log.key_root[:16]}, the engine has "
            f"{key_root[:16]}: weights, block size or position encoding changed"
        )
    return structs.replace(
        request, emitted=tuple(log.emitted), n_scored=log.n_scored, is_resumed=True
    )


def encode(log: TokenLog) -> bytes:
    return msgspec.msgpack.encode(log)


def decode(data: bytes) -> TokenLog:
    """Raises ReplayError on bytes that are no token log."""
    try:
        return msgspec.msgpack.decode(data, type=TokenLog)
    except msgspec.MsgspecError as error:
        raise ReplayError(f"not a token log: {error}") from error
