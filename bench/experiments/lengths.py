"""Lengths of prompts and answers as people write them, drawn at random."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SHAREGPT_PROMPT = 161.31
SHAREGPT_OUTPUT = 337.99
"""Mean tokens of ShareGPT's conversations (Kwon et al., Efficient memory management for large
language model serving with PagedAttention, 2023, figure 11)."""
SIGMA = 1.0
"""Of the logarithm: an assumption; the paper gives means and histograms only."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of one request."""

    prompt: int
    output: int

    @property
    def total(self) -> int:
        return self.prompt + self.output


def sharegpt_like(n: int, limit: int, seed: int = 1) -> list[Lengths]:
    """Log-normal lengths with ShareGPT's means, cut so that a request has at most ``limit``."""
    generator = np.random.default_rng(seed)
    prompts = _lognormal(generator, SHAREGPT_PROMPT, SIGMA, n)
    outputs = _lognormal(generator, SHAREGPT_OUTPUT, SIGMA, n)
    return [
        Lengths(min(a, limit // 2), min(b, limit - min(a, limit // 2)))
        for a, b in zip(prompts, outputs, strict=True)
    ]


def with_variation(n: int, mean: float, variation: float, limit: int, seed: int = 1) -> list[int]:
    """``n`` log-normal lengths with this mean before the cut to 1 … ``limit``; ``variation`` is
    the standard deviation divided by the mean."""
    sigma = float(np.sqrt(np.log1p(variation**2)))
    return [min(x, limit) for x in _lognormal(np.random.default_rng(seed), mean, sigma, n)]


def variation_of(lengths: list[int]) -> float:
    """Standard deviation divided by the mean."""
    return float(np.std(lengths) / np.mean(lengths))


def _lognormal(generator: np.random.Generator, mean: float, sigma: float, n: int) -> list[int]:
    mu = np.log(mean) - sigma**2 / 2
    return [max(1, round(x)) for x in generator.lognormal(mu, sigma, n).tolist()]
