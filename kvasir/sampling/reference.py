"""What sampling one row means, in NumPy float32; ``native/sample`` gives the same bits.

Stages, in the order of vLLM V1:

1. raw logits with NaN or +inf, or without any finite entry: token ``NOT_FINITE``;
2. log-probabilities are those of the raw logits;
3. what a mask or ``allowed`` forbids has logit -inf; so has the last token of a bad word whose
   others are the newest outputs; logit bias; stop ids banned before ``min_tokens``;
4. the stages, in the order of ``SAMPLERS`` or in that of the request. What each leaves out is out
   for those after it; when nothing is left to draw: token ``NOTHING_LEFT``;
   - penalties: repetition over prompt and output; frequency and presence over the output; of the
     newest ``repeat_last_n`` tokens alone. A penalised logit saturates at the largest float;
   - temperature: z = (logit - largest) / temperature, so that a tiny one leaves the largest logits
     only. 0 keeps the largest logit, ties to the lowest id. Before this stage the divisor is 1;
   - min_p, top_k, top_p on tokens sorted by (logit descending, id ascending), by the mass of all
     that is left;
   - typ_p on tokens sorted by (distance of their surprise from the mean, id ascending);
5. the largest z - log(E) of what is left wins (Gumbel-max), ties to the lowest id. Where drafts are
   kept for the classical rule, ``classical.py`` says which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kvasir.core.params import SAMPLERS, TokenParams
from kvasir.core.plan import NOT_FINITE, NOTHING_LEFT, RowOutput
from kvasir.sampling import masks, numerics
from kvasir.sampling.classical import TARGET, Proposals, Role, judged, masses, shares
from kvasir.sampling.masks import Bits
from kvasir.sampling.numerics import F32
from kvasir.sampling.philox import DRAFT_NOISE, TARGET_NOISE, noise

Ids = NDArray[np.int64]

_SMALLEST = np.finfo(np.float32).tiny


class SlotState:
    """The sampler's state of one choice before its next token: its parameters and the tokens that
    draws depend on."""

    def __init__(
        self,
        params: TokenParams,
        prompt: Sequence[int] = (),
        output: Sequence[int] = (),
        n_kept: int = 0,
    ) -> None:
        """``n_kept``: drafted tokens that are kept for the classical rule; 0: drafts draw as the
        target does."""
        self.params = params
        self.proposals = Proposals(n_kept) if n_kept else None
        self._prompt = tuple(prompt)
        self._output = list(output)

    def commit(self, token: int) -> None:
        """Count one emitted token."""
        self._output.append(token)

    def ends_with(self, tokens: Sequence[int], path: Sequence[int]) -> bool:
        """Whether ``tokens`` are the newest outputs; tokens of ``path`` follow those so far."""
        outputs = [*self._output, *path]
        first = len(outputs) - len(tokens)
        return first >= 0 and outputs[first:] == list(tokens)

    def counts(self, path: Sequence[int]) -> tuple[frozenset[int], Counter[int]]:
        """(ids of prompt and output, output counts) that penalties look at; tokens of ``path``
        count as outputs."""
        outputs, n = [*self._output, *path], self.params.repeat_last_n
        said = [*self._prompt, *outputs]
        if n >= 0:
            said, outputs = said[max(0, len(said) - n) :], outputs[max(0, len(outputs) - n) :]
        return frozenset(said), Counter(outputs)


def sample_row(
    logits: F32,
    state: SlotState,
    out_index: int,
    path: Sequence[int] = (),
    target: int = -1,
    mask: Bits | None = None,
    role: Role = TARGET,
) -> RowOutput:
    """Draw from logits float32 [V], or score ``target`` >= 0 instead; ``logits`` is left as it was.

    ``path``: tokens drawn or drafted after the committed ones, before this row. ``mask``: which
    tokens may be drawn; None allows all. What draws for a draft program reports nothing: ``top``
    has its siblings.
    """
    params = state.params
    if state.proposals is not None and role.drafts:
        state.proposals.forget(out_index)
    if not is_distribution(logits):
        return RowOutput(NOT_FINITE)
    if target >= 0:
        return _report(logits, target, max(params.n_prompt_logprobs, 0))
    role = role if mask is None else TARGET
    token, *others = _draw(
        _edited(logits, state, out_index, path, mask), state, out_index, path, role
    )
    if role.drafts:
        return RowOutput(token, top=tuple([(other, 0.0) for other in others]))
    if token < 0 or params.n_logprobs < 0:
        return RowOutput(token)
    return _report(logits, token, params.n_logprobs, params.logprob_ids)


def likeliest(logits: F32, n: int) -> tuple[int, ...]:
    """The first ``n`` ids of ``ranking`` above -inf; none of what is no distribution."""
    if not n or not is_distribution(logits):
        return ()
    return tuple([int(i) for i in ranking(logits)[:n] if logits[i] > -np.inf])


def is_distribution(logits: F32) -> bool:
    """True when no entry is NaN or +inf and at least one is finite."""
    return bool(np.max(logits) < np.inf and np.max(logits) > -np.inf)


def logprobs(logits: F32) -> F32:
    """Natural-log probabilities float32 [V] of raw logits float32 [V] (finite maximum, no NaN)."""
    with np.errstate(over="ignore"):
        relative = logits - np.max(logits)
    return relative - numerics.log_scalar(numerics.tile_sum(numerics.exp(relative)))


def ranking(logits: F32) -> Ids:
    """Ids by (logit descending, id ascending)."""
    return np.argsort(-logits, kind="stable")


def _report(logits: F32, token: int, n_top: int, wanted: tuple[int, ...] = ()) -> RowOutput:
    """``wanted``: ids in the place of the ``n_top`` likeliest."""
    values = logprobs(logits)
    ids = np.arange(logits.size)
    ahead = (logits > logits[token]) | ((logits == logits[token]) & (ids < token))
    best = ranking(logits)[: min(n_top, int(np.count_nonzero(logits > -np.inf)))]
    top = tuple((int(i), float(values[i])) for i in wanted or best)
    return RowOutput(token, float(values[token]), top, 1 + int(np.count_nonzero(ahead)))


def _edited(
    logits: F32, state: SlotState, out_index: int, path: Sequence[int], mask: Bits | None
) -> F32:
    """What may be drawn, before the stages."""
    params = state.params
    x = logits.astype(np.float32, copy=True)
    if mask is not None:
        masks.apply(x, mask)
    if params.allowed:
        masks.apply(x, np.frombuffer(params.allowed, "<u4"))
    for *before, last in params.bad_words:
        if state.ends_with(before, path):
            x[last] = -np.inf
    for token, bias in params.logit_bias:
        x[token] += np.float32(bias)
    if out_index < params.min_tokens:
        x[list(params.stop_ids)] = -np.inf
    return x


def _draw(x: F32, state: SlotState, out_index: int, path: Sequence[int], role: Role) -> list[int]:
    """The stages, and the token that wins, and its siblings; ``NOTHING_LEFT`` when there is
    none."""
    params, divisor = state.params, np.float32(1)
    is_usual = not params.samplers and params.typical_p >= 1
    n_siblings = role.n_siblings if is_usual else 0
    for stage in params.samplers or SAMPLERS:
        if stage == "penalties" and params.has_penalties:
            _penalise(x, state, path)
        if np.max(x) == -np.inf:
            return [NOTHING_LEFT]
        if n_siblings and np.float32(params.temperature) == 0 and stage != "penalties":
            best = ranking(x)[: 1 + n_siblings]
            return [int(token) for token in best if x[token] > -np.inf]
        if stage == "temperature" and np.float32(params.temperature) > 0:
            divisor = np.float32(params.temperature)
        elif stage != "penalties":
            x = _FILTERS[stage](x, divisor, params)
    z = _scaled(x, divisor)
    tokens = [_end(z, state, out_index, role)]
    for _ in range(n_siblings):
        z[tokens[-1]] = -np.inf
        if np.max(z) == -np.inf:
            break
        tokens.append(_winner(z, params.seed, out_index))
    return tokens


def _end(z: F32, state: SlotState, out_index: int, role: Role) -> int:
    """The token that wins of those that ``z`` leaves."""
    seed, proposals = state.params.seed, state.proposals
    if proposals is None:
        return _winner(z, seed, out_index)
    if role.drafts:
        token = _winner(z, seed, out_index, DRAFT_NOISE)
        proposals.drew(out_index, token, shares(z))
        return token
    q = proposals.of(out_index, role.drafted)
    if q is None:
        return _winner(z, seed, out_index)
    return judged(shares(z), q, role.drafted, seed, out_index)


def _winner(z: F32, seed: int, out_index: int, stream: int = TARGET_NOISE) -> int:
    ids = np.flatnonzero(z > -np.inf)
    scores = z[ids] - numerics.log(noise(seed, out_index, ids, stream))
    return int(ids[np.argmax(scores)])


def _scaled(x: F32, divisor: np.float32) -> F32:
    with np.errstate(over="ignore"):
        z: F32 = (x - np.max(x)) / divisor
    return z


def _penalise(x: F32, state: SlotState, path: Sequence[int]) -> None:
    params = state.params
    seen, output = state.counts(path)
    ids = np.array(sorted(seen), np.int64)
    counts = np.array([output[i] for i in ids], np.float32)
    repetition = np.float32(params.repetition_penalty)
    y = x[ids]
    with np.errstate(over="ignore"):
        y = np.where(y > 0, y / repetition, y * repetition)
        y = y - np.float32(params.frequency_penalty) * counts
        y = y - np.where(counts > 0, np.float32(params.presence_penalty), np.float32(0))
    x[ids] = np.minimum(y, numerics.LARGEST)


def _greedy(x: F32, divisor: np.float32, params: TokenParams) -> F32:
    """Temperature 0."""
    return _only(x, np.array([np.argmax(x)]))


def _min_p(x: F32, divisor: np.float32, params: TokenParams) -> F32:
    min_p = np.float32(params.min_p)
    if min_p < _SMALLEST:
        return x
    return _only(x, np.flatnonzero(_scaled(x, divisor) >= numerics.log_scalar(min_p)))


def _top_k(x: F32, divisor: np.float32, params: TokenParams) -> F32:
    return _only(x, ranking(x)[: params.top_k]) if params.top_k > 0 else x


def _top_p(x: F32, divisor: np.float32, params: TokenParams) -> F32:
    top_p = np.float32(params.top_p)
    if top_p >= 1:
        return x
    share, order = numerics.exp(_scaled(x, divisor)), ranking(x)
    return _only(x, _reaching(order, masses(share[order]), top_p))


def _typical(x: F32, divisor: np.float32, params: TokenParams) -> F32:
    """A token's surprise is logsumexp(z) - z, its mean over what is left the entropy: the distance
    of the two is that of z from the mean of z, whose terms are integers of the same scale."""
    typical_p = np.float32(params.typical_p)
    if typical_p >= 1:
        return x
    z = _scaled(x, divisor)
    share = numerics.exp(z)
    mass, terms = masses(share), masses(share * np.where(share > 0, -z, np.float32(0)))
    mean = np.float32(np.float64(terms.sum()) / np.float64(mass.sum()))
    order = np.argsort(np.abs(z + mean), kind="stable")
    return _only(x, _reaching(order, mass[order], typical_p))


_FILTERS: Mapping[str, Callable[[F32, np.float32, TokenParams], F32]] = {
    "temperature": _greedy,
    "min_p": _min_p,
    "top_k": _top_k,
    "top_p": _top_p,
    "typ_p": _typical,
}


def _only(x: F32, ids: Ids) -> F32:
    kept = np.full_like(x, -np.inf)
    kept[ids] = x[ids]
    return kept


def _reaching(order: Ids, mass: Ids, share: np.float32) -> Ids:
    """The first of ``order`` that have ``share`` of all ``mass``, which is in their order."""
    reached = np.cumsum(mass)
    needed = max(1, int(np.ceil(np.float64(share) * np.float64(reached[-1]))))
    return order[: int(np.searchsorted(reached, needed)) + 1]
