"""What a row's outputs mean for its request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvasir.core.errors import KvasirError
from kvasir.core.messages import TokenEvent, TokenLogprob
from kvasir.core.plan import NOT_DRAWN, Row, RowOutput
from kvasir.sched.request import Request
from kvasir.sched.rows import accepted, is_draft, moves_of


def book(
    request: Request, row: Row, outputs: tuple[RowOutput, ...], is_current: bool
) -> TokenEvent | None:
    """Append what was scored and drawn; the event tells the client, None when there is no news."""
    n_scored = len(row.targets) - row.targets.count(-1)
    scores = _score(request, outputs[:n_scored])
    drawn = _emit(request, outputs[n_scored:])
    if outputs and outputs[-1].token == NOT_DRAWN:
        _draw_again(request, is_current)
    if not drawn and not scores and request.finish is None:
        return None
    return _event(request, drawn, scores)


def book_draft(
    request: Request, row: Row, outputs: tuple[RowOutput, ...], is_current: bool
) -> TokenEvent:
    """Append what was drawn along the accepted path.

    ``is_current``: the request was not preempted since the row was planned, so its entries stand.
    """
    path = accepted(row, outputs)
    drawn = _emit(request, (outputs[0], *(outputs[node] for node in path)))
    request.drafting.is_open = False
    request.n_drawn = request.n_outputs
    if is_current:
        request.n_computed = row.start + 1 + len(path)
        request.drafting.moves.extend(moves_of(row, path))
    if outputs[path[-1] if path else 0].token == NOT_DRAWN:
        _draw_again(request, is_current)
    return _event(request, drawn)


def _draw_again(request: Request, is_current: bool) -> None:
    """Its newest token is computed once more, to the same logits, and they are drawn from."""
    request.n_drawn = request.n_outputs
    if is_current:
        request.n_computed = request.n_known - 1


def book_forced(request: Request, tokens: Sequence[int]) -> TokenEvent:
    """Append what a constraint forces. A draw of the first of them that is in flight gives nothing
    more."""
    drawn = _emit(request, tuple([RowOutput(token) for token in tokens]))
    request.n_drawn = request.n_outputs
    return _event(request, drawn)


def book_vector(request: Request, vector: bytes) -> TokenEvent:
    """A request that pools ends with its vector, or, when that is empty, with an error."""
    request.finish = "stop" if vector else "error"
    if not vector:
        why = "the vector is not finite; --dtype float32 may help"
        request.error = KvasirError(why, code="model_numerics")
    return _event(request, vector=vector)


def n_settled(request: Request, row: Row) -> int:
    """Tokens of a request, whose ``row`` was just booked, with KV entries that stay as they are."""
    n = row.start + len(row.tokens)
    n = request.n_computed if is_draft(row) else min(n, request.n_computed)
    return request.settled(n)


def _score(request: Request, outputs: tuple[RowOutput, ...]) -> tuple[TokenLogprob, ...]:
    """Those of the prompt that follow what was told; none when one of them failed."""
    for output in outputs:
        if output.token < 0:
            request.fail(output.token)
            return ()
    request.prefill.n_told += len(outputs)
    if request.max_outputs == 0:
        request.finish = request.ending()
    return tuple(map(_logprob, outputs))


def _emit(request: Request, outputs: tuple[RowOutput, ...]) -> list[RowOutput]:
    """The outputs that became tokens: none after one that ended the request."""
    emitted: list[RowOutput] = []
    for output in outputs:
        if request.finish is not None or output.token == NOT_DRAWN:
            break
        if output.token < 0:
            request.fail(output.token)
            break
        request.emit(output.token)
        emitted.append(output)
    return emitted


def _event(
    request: Request,
    drawn: Sequence[RowOutput] = (),
    scores: tuple[TokenLogprob, ...] = (),
    vector: bytes = b"",
) -> TokenEvent:
    tokens = tuple([output.token for output in drawn])
    wants_logprobs = request.params.n_logprobs >= 0
    has_hashes = any([output.logits_hash for output in drawn])
    error = request.error
    is_first = bool(drawn) and request.n_outputs == len(drawn)
    is_stopped = request.finish == "stop" and tokens[-1:] and tokens[-1] in request.params.stop_ids
    draws_nothing = request.max_outputs == 0 or request.asked.pooling is not None
    is_only_read = request.finish is not None and draws_nothing
    drafting = request.drafting
    n_hits, n_misses = min(drafting.n_hits, len(tokens)), drafting.n_misses
    drafting.n_hits = drafting.n_misses = 0
    return TokenEvent(
        request.id,
        tokens=tokens,
        logprobs=tuple(map(_logprob, drawn)) if wants_logprobs else (),
        prompt_logprobs=scores,
        finish=request.finish,
        stop_id=tokens[-1] if is_stopped else None,
        error=None if error is None else error.message,
        error_code=None if error is None else error.code,
        logits_hashes=tuple([output.logits_hash for output in drawn]) if has_hashes else (),
        n_cached=request.prefill.n_cached if is_first or is_only_read else 0,
        prediction_hits=n_hits,
        prediction_misses=n_misses,
        vector=vector,
    )


def _logprob(output: RowOutput) -> TokenLogprob:
    return TokenLogprob(output.token, output.logprob, output.rank, output.top)


def vector_of(vectors: Iterator[bytes], request: Request) -> bytes:
    """The one of ``request``. Raises KvasirError when the executor gave none."""
    if (vector := next(vectors, None)) is None:
        raise KvasirError(f"request {request.id} pools, and the executor has no program for that")
    return vector
