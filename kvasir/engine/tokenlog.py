"""The token log: what the API process keeps of a choice so that a new engine can go on with it."""

from __future__ import annotations

import msgspec

from kvasir.core.errors import KvasirError
from kvasir.core.messages import EngineRequest, PriorityClass, TokenEvent
from kvasir.core.params import TokenParams
from kvasir.sampling.reference import DRAWS

VERSION = 1


class ReplayError(KvasirError):
    """A log that this engine cannot continue with the same bytes."""

    code = "replay_mismatch"


class TokenLog(msgspec.Struct, tag="token_log", forbid_unknown_fields=True):
    """One choice: as resolved, and what reached its client. Grows by ``record``."""

    id: int
    prompt: tuple[int, ...]
    """The border between prompt and output is its end."""
    params: TokenParams
    """Resolved: the seed is drawn and every default is filled in."""
    key_root: str
    numerics_id: str
    emitted: list[int] = []
    n_scored: int = 0
    """Logprobs of the prompt."""
    finish: str | None = None
    version: int = VERSION
    cache_salt: str = ""
    ttft_by: float | None = None
    answer_by: float | None = None
    """Of the machine's monotonic clock, as in ``EngineRequest``."""
    priority: int = 0
    priority_class: PriorityClass = "standard"
    tenant: str = ""
    draws: int = 1
    """Version of the sampler; logs of the first do not say it."""

    def record(self, event: TokenEvent) -> None:
        """Append one event of this choice. Raises KvasirError on another's, or after the end."""
        if event.id != self.id:
            raise KvasirError(f"event of request {event.id} in the log of {self.id}")
        if self.finish is not None:
            raise KvasirError(f"event of request {self.id}, which ended with {self.finish!r}")
        self.emitted.extend(event.tokens)
        self.n_scored += len(event.prompt_logprobs) + event.n_scores
        self.finish = event.finish


def open_log(request: EngineRequest, *, key_root: str, numerics_id: str) -> TokenLog:
    """The log of a request that is about to be sent to the engine with these keys."""
    return TokenLog(
        id=request.id,
        prompt=request.prompt,
        params=request.params,
        key_root=key_root,
        numerics_id=numerics_id,
        emitted=list(request.emitted),
        cache_salt=request.cache_salt,
        ttft_by=request.ttft_by,
        answer_by=request.answer_by,
        priority=request.priority,
        priority_class=request.priority_class,
        tenant=request.tenant,
        draws=DRAWS,
    )


def replay(log: TokenLog, *, key_root: str, numerics_id: str) -> EngineRequest:
    """The request that continues ``log`` in an engine with these keys.

    Raises ReplayError when its next bytes could differ, or when nothing is left to compute.
    """
    if log.version != VERSION:
        raise ReplayError(f"token log of version {log.version}, this is version {VERSION}")
    if log.finish is not None:
        raise ReplayError(f"request {log.id} ended with {log.finish!r}: nothing to replay")
    if log.numerics_id != numerics_id:
        raise ReplayError(
            f"request {log.id} ran with numerics {log.numerics_id!r}, "
            f"the engine has {numerics_id!r}"
        )
    if log.draws != DRAWS:
        raise ReplayError(
            f"request {log.id} was drawn by sampler {log.draws}, the engine has {DRAWS}"
        )
    if log.key_root != key_root:
        raise ReplayError(
            f"request {log.id} ran with key root {log.key_root[:16]}, the engine has "
            f"{key_root[:16]}: weights, block size or position encoding changed"
        )
    return EngineRequest(
        log.id,
        log.prompt,
        log.params,
        tuple(log.emitted),
        log.cache_salt,
        log.ttft_by,
        log.answer_by,
        priority=log.priority,
        priority_class=log.priority_class,
        tenant=log.tenant,
        n_scored=log.n_scored,
    )


def encode(log: TokenLog) -> bytes:
    return msgspec.msgpack.encode(log)


def decode(data: bytes) -> TokenLog:
    """Raises ReplayError on bytes that are no token log."""
    try:
        return msgspec.msgpack.decode(data, type=TokenLog)
    except msgspec.MsgspecError as error:
        raise ReplayError(f"not a token log: {error}") from error
