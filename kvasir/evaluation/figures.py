"""Figures of chunks of a text, in float64.

What is scored of each token of the text: its log probability, and beside a reference (as
llama-perplexity says it, and here for every logit of both) the Kullback-Leibler divergence
sum(q * (log q - log p)) in nats, q the reference's distribution; whether both have the same
likeliest token; and the difference of the token's probability. Tokens of a chunk depend on each
other, chunks hardly do: errors are those of means of chunks, with Student's t.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats64 = NDArray[np.float64]
_Z = 1.959963984540054
_FEW = (12.7062, 4.3027, 3.1824, 2.7764)
"""Quantiles of t for one to four degrees of freedom."""


class Interval(msgspec.Struct, frozen=True):
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


class Against(msgspec.Struct, frozen=True):
    """A model beside its reference, on the same tokens."""

    reference: str
    ppl: float
    """Of the reference."""
    ppl_error: float
    ppl_ratio: Interval
    """The model's perplexity over it; paired, so that what the text has of its own cancels."""
    kld: Interval
    """Nats a token."""
    kld_median: float
    kld_max: float
    top1: Interval
    """Share of tokens after which both have the same likeliest one."""
    rms_dp: float
    """Root of the mean square difference of the probability of the text's next token."""


class Figures(msgspec.Struct, frozen=True):
    model: str
    chunks: int
    chunk_size: int
    tokens: int
    """That were scored."""
    ppl: float
    ppl_error: float
    """Standard error."""
    against: Against | None = None


class TokenScores(NamedTuple):
    """Of tokens, f64 [tokens] each."""

    loss: Floats64
    """Negative natural-log probability."""
    ref_loss: Floats64
    kld: Floats64
    same: Floats64
    """1 or 0."""
    dp: Floats64


def log_probabilities(logits: NDArray[np.float32]) -> Floats64:
    """[rows, vocab] -> the same in float64, each row's exponentials summing to 1."""
    scores = logits.astype(np.float64)
    scores -= scores.max(axis=1, keepdims=True)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return scores


def losses(logp: Floats64, targets: NDArray[np.int64]) -> Floats64:
    """Of the token that comes, for each row."""
    return np.asarray(-logp[np.arange(len(targets)), targets], np.float64)


def scores(logp: Floats64, logq: Floats64, targets: NDArray[np.int64]) -> TokenScores:
    """Of a model and its reference, log probabilities [rows, vocab] each."""
    q = np.exp(logq)
    gap = np.subtract(logq, logp, out=np.zeros_like(q), where=q > 0)
    loss, ref_loss = losses(logp, targets), losses(logq, targets)
    same = (logp.argmax(axis=1) == logq.argmax(axis=1)).astype(np.float64)
    return TokenScores(
        loss, ref_loss, (q * gap).sum(axis=1), same, np.exp(-loss) - np.exp(-ref_loss)
    )


def t_quantile(n: int) -> float:
    """97.5 % of Student's t with ``n`` degrees of freedom: a table, then the expansion in 1/n of
    Abramowitz and Stegun, 26.7.5, within 0.003."""
    if n <= len(_FEW):
        return _FEW[n - 1]
    z2 = _Z * _Z
    first = _Z * (z2 + 1) / 4
    second = _Z * ((5 * z2 + 16) * z2 + 3) / 96
    third = _Z * (((3 * z2 + 19) * z2 + 17) * z2 - 15) / 384
    return _Z + first / n + second / n**2 + third / n**3


def mean_and_error(chunks: Floats64) -> tuple[float, float]:
    """Of [chunks, tokens], at least two chunks: the mean of all, and its standard error."""
    means = chunks.mean(axis=1)
    return float(means.mean()), float(means.std(ddof=1) / math.sqrt(len(means)))


def interval(chunks: Floats64) -> Interval:
    """Of the mean."""
    mean, error = mean_and_error(chunks)
    width = t_quantile(len(chunks) - 1) * error
    return Interval(mean, mean - width, mean + width)


def perplexity(chunks: Floats64) -> tuple[float, float]:
    """Of losses, and its standard error (first order)."""
    mean, error = mean_and_error(chunks)
    ppl = math.exp(mean) if mean < 700 else math.inf
    return ppl, ppl * error


def against(reference: str, found: TokenScores) -> Against:
    """``found``: [chunks, tokens] each."""
    ppl, error = perplexity(found.ref_loss)
    gap = interval(found.loss - found.ref_loss)
    with np.errstate(over="ignore"):
        ratio = [float(np.exp(x)) for x in (gap.value, gap.low, gap.high)]
    return Against(
        reference=reference,
        ppl=ppl,
        ppl_error=error,
        ppl_ratio=Interval(*ratio),
        kld=interval(found.kld),
        kld_median=float(np.median(found.kld)),
        kld_max=float(found.kld.max()),
        top1=interval(found.same),
        rms_dp=float(np.sqrt(np.square(found.dp).mean())),
    )
