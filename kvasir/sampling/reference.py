"""What sampling one row means, in NumPy float32; ``native/sample`` gives the same bits.

Stages, in the order of vLLM V1:

1. raw logits with NaN or +inf, or without any finite entry: token ``NOT_FINITE``;
2. log-probabilities are those of the raw logits;
3. what a mask forbids has logit -inf; logit bias; stop ids banned before ``min_tokens``;
   repetition penalty over prompt and output; frequency and presence penalties over the output; a
   penalised logit saturates at the largest float;
4. nothing left to draw: token ``NOTHING_LEFT``;
5. temperature 0: the largest logit, ties to the lowest id;
6. z = (logit - largest) / temperature, so that a tiny temperature leaves the largest logits only;
7. min-p, top-k, then top-p over the mass that both left, on tokens sorted by (logit descending, id
   ascending);
8. the largest z - log(E) of what is kept wins (Gumbel-max), ties to the lowest id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from kvasir.core.params import TokenParams
from kvasir.core.plan import RowOutput
from kvasir.sampling import masks, numerics
from kvasir.sampling.masks import Bits
from kvasir.sampling.numerics import F32
from kvasir.sampling.philox import noise

DRAWS = 2
"""Version of what is drawn from given logits; tests/golden/bits.json holds the samplers to it."""
NOT_FINITE = -1
"""Token of a row whose raw logits cannot be a distribution."""
NOTHING_LEFT = -2
"""Token of a row in which every token is banned."""

MASS_ONE = 2.0**40
"""top-p adds probabilities as integers of this scale (the likeliest token is one), so that no order
of adding can matter."""
_SMALLEST = np.finfo(np.float32).tiny


class SlotState:
    """The sampler's state of one choice: its parameters and the counts behind the penalties."""

    def __init__(self, params: TokenParams) -> None:
        self.params = params
        self._prompt: frozenset[int] = frozenset()
        self._output: Counter[int] = Counter()

    @classmethod
    def open(
        cls, params: TokenParams, prompt: Sequence[int], output: Sequence[int] = ()
    ) -> SlotState:
        """State before the next token of a request whose ``prompt`` and ``output`` are known."""
        state = cls(params)
        state._prompt = frozenset(prompt)
        state._output.update(output)
        return state

    def commit(self, token: int) -> None:
        """Count one emitted token."""
        self._output[token] += 1

    def counts(self, path: Iterable[int]) -> tuple[frozenset[int], Counter[int]]:
        """(prompt ids, output counts), tokens of ``path`` counted as outputs."""
        return self._prompt, self._output + Counter(path)


def sample_row(
    logits: F32,
    state: SlotState,
    out_index: int,
    path: Sequence[int] = (),
    target: int = -1,
    mask: Bits | None = None,
) -> RowOutput:
    """Draw from logits float32 [V], or score ``target`` >= 0 instead; ``logits`` is left as it was.

    ``path``: tokens drawn or drafted after the committed ones, before this row. ``mask``: which
    tokens may be drawn; None allows all.
    """
    params = state.params
    if not is_distribution(logits):
        return RowOutput(NOT_FINITE)
    if target >= 0:
        return _report(logits, target, max(params.n_prompt_logprobs, 0))
    x = _processed(logits, state, out_index, path, mask)
    best = int(np.argmax(x))
    if x[best] == -np.inf:
        return RowOutput(NOTHING_LEFT)
    temperature = np.float32(params.temperature)
    token = best if temperature == 0 else _draw(x, x[best], temperature, params, out_index)
    return RowOutput(token) if params.n_logprobs < 0 else _report(logits, token, params.n_logprobs)


def is_distribution(logits: F32) -> bool:
    """True when no entry is NaN or +inf and at least one is finite."""
    return bool(np.max(logits) < np.inf and np.max(logits) > -np.inf)


def logprobs(logits: F32) -> F32:
    """Natural-log probabilities float32 [V] of raw logits float32 [V] (finite maximum, no NaN)."""
    with np.errstate(over="ignore"):
        relative = logits - np.max(logits)
    return relative - numerics.log_scalar(numerics.tile_sum(numerics.exp(relative)))


def ranking(logits: F32) -> NDArray[np.int64]:
    """Ids by (logit descending, id ascending)."""
    return np.argsort(-logits, kind="stable")


def _report(logits: F32, token: int, n_top: int) -> RowOutput:
    values = logprobs(logits)
    ids = np.arange(logits.size)
    ahead = (logits > logits[token]) | ((logits == logits[token]) & (ids < token))
    best = ranking(logits)[: min(n_top, int(np.count_nonzero(logits > -np.inf)))]
    top = tuple((int(i), float(values[i])) for i in best)
    return RowOutput(token, float(values[token]), top, 1 + int(np.count_nonzero(ahead)))


def _processed(
    logits: F32, state: SlotState, out_index: int, path: Sequence[int], mask: Bits | None
) -> F32:
    params = state.params
    x = logits.astype(np.float32, copy=True)
    if mask is not None:
        masks.apply(x, mask)
    for token, bias in params.logit_bias:
        x[token] += np.float32(bias)
    if out_index < params.min_tokens:
        x[list(params.stop_ids)] = -np.inf
    if (params.repetition_penalty, params.frequency_penalty, params.presence_penalty) != (1, 0, 0):
        _penalise(x, state, path)
    return x


def _penalise(x: F32, state: SlotState, path: Sequence[int]) -> None:
    params = state.params
    prompt, output = state.counts(path)
    ids = np.array(sorted(prompt | output.keys()), np.int64)
    counts = np.array([output[i] for i in ids], np.float32)
    repetition = np.float32(params.repetition_penalty)
    y = x[ids]
    with np.errstate(over="ignore"):
        y = np.where(y > 0, y / repetition, y * repetition)
        y = y - np.float32(params.frequency_penalty) * counts
        y = y - np.where(counts > 0, np.float32(params.presence_penalty), np.float32(0))
    x[ids] = np.minimum(y, numerics.LARGEST)


def _draw(
    x: F32, largest: np.float32, temperature: np.float32, params: TokenParams, out_index: int
) -> int:
    with np.errstate(over="ignore"):
        z = (x - largest) / temperature
    ids = _kept(x, z, params)
    scores = z[ids] - numerics.log(noise(params.seed, out_index, ids))
    return int(ids[np.argmax(scores)])


def _kept(x: F32, z: F32, params: TokenParams) -> NDArray[np.int64]:
    """Ids, ascending, that pass min-p, top-k and top-p."""
    order = ranking(x)
    order = order[: int(np.count_nonzero(x > -np.inf))]
    min_p = np.float32(params.min_p)
    if min_p >= _SMALLEST:
        order = order[z[order] >= numerics.log_scalar(min_p)]
    if params.top_k > 0:
        order = order[: params.top_k]
    top_p = np.float32(params.top_p)
    if top_p < 1:
        mass = (numerics.exp(z[order]).astype(np.float64) * MASS_ONE).astype(np.int64)
        reached = np.cumsum(mass)
        needed = max(1, int(np.ceil(np.float64(top_p) * np.float64(reached[-1]))))
        order = order[: int(np.searchsorted(reached, needed)) + 1]
    return np.sort(order)
