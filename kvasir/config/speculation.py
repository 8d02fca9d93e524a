"""What the options say of speculation, in the words of vLLM's ``speculative_config``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError

METHODS = ("ngram", "suffix")
MAX_TOKENS = 63
"""Drafted tokens of a row."""
MAX_MATCH = 64
"""Tokens of a match; longer ones are no better."""
MIN_STORED, MAX_STORED = 1000, 100_000_000
DEFAULT_TOKENS = {"ngram": 7, "suffix": 15}
DEFAULT_NGRAM = 5
"""Tokens of a match, as in vLLM."""
SUFFIX_MIN = 3
DEFAULT_STORED = 1_000_000
"""Tokens of earlier answers: 12 bytes each."""
MAX_JSON = 65536
BOUNDS = {
    "num_speculative_tokens": (1, MAX_TOKENS),
    "prompt_lookup_min": (1, MAX_MATCH),
    "prompt_lookup_max": (1, MAX_MATCH),
    "stored_tokens": (0, MAX_STORED),
}
KEYS = ("method", *BOUNDS, "adaptive")
OLD_MODELS = ("ngram", "[ngram]")
"""Which an option for a draft model's name may be for the method of that name."""


class Speculation(msgspec.Struct, frozen=True):
    """Drafts from what stood in texts before."""

    method: str
    n_tokens: int
    """Of a draft, at most."""
    min_match: int
    """Tokens that must be equal before one is drafted."""
    max_match: int
    n_stored: int
    """Tokens of earlier answers that are kept."""
    is_adaptive: bool
    """Of a draft as much is computed as pays."""

    @property
    def reason(self) -> str:
        """As the start-up report shows it."""
        most = "at most " if self.is_adaptive else ""
        return f"{self.method}, {most}{self.n_tokens} tokens: as asked"


def parse_speculation(options: EngineOptions) -> Speculation | None:
    """None: nobody asks for it. Raises ConfigError on what is no JSON object, on unknown keys and
    methods, and on numbers out of their bounds."""
    values = {**_old(options), **_json(options.speculative_config)}
    if not values:
        return None
    method = values.get("method", "ngram")
    if method not in METHODS:
        raise ConfigError(
            f"speculative_config's method {method!r} is not there: use {' or '.join(METHODS)}"
        )
    for name, (low, high) in BOUNDS.items():
        value = values.get(name, low)
        if type(value) is not int or not low <= value <= high:
            raise ConfigError(
                f"speculative_config's {name} is {value!r}: needs a number from {low} to {high}"
            )
    is_adaptive = values.get("adaptive", True)
    if not isinstance(is_adaptive, bool):
        raise ConfigError(f"speculative_config's adaptive is {is_adaptive!r}: needs true or false")
    shortest, longest = _lengths(method, values)
    if method == "ngram" and values.get("stored_tokens"):
        raise ConfigError("speculative_config's ngram keeps no earlier answers: use suffix")
    stored = values.get("stored_tokens", DEFAULT_STORED) if method == "suffix" else 0
    if 0 < stored < MIN_STORED:
        raise ConfigError(
            f"speculative_config's stored_tokens is {stored}: needs 0, or {MIN_STORED} at least"
        )
    n_tokens = values.get("num_speculative_tokens", DEFAULT_TOKENS[method])
    return Speculation(method, n_tokens, shortest, longest, stored, is_adaptive)


def _lengths(method: str, values: Mapping[str, Any]) -> tuple[int, int]:
    """Of matches, the shortest and the longest."""
    low, high = values.get("prompt_lookup_min"), values.get("prompt_lookup_max")
    if method == "suffix":
        low, high = low or SUFFIX_MIN, high or MAX_MATCH
    low, high = low or high or DEFAULT_NGRAM, high or low or DEFAULT_NGRAM
    if low > high:
        raise ConfigError(f"prompt_lookup_min {low} is more than prompt_lookup_max {high}")
    return low, high


def _old(options: EngineOptions) -> dict[str, Any]:
    """Of the options that vLLM had before."""
    model = options.speculative_model
    values = {
        "method": model,
        "num_speculative_tokens": options.num_speculative_tokens,
        "prompt_lookup_min": options.ngram_prompt_lookup_min,
        "prompt_lookup_max": options.ngram_prompt_lookup_max,
    }
    given = {name: value for name, value in values.items() if value is not None}
    if given and options.speculative_config is not None:
        raise ConfigError(
            "speculative_config says it all: leave out speculative_model, num_speculative_tokens "
            "and ngram_prompt_lookup_*"
        )
    if given and model is None:
        raise ConfigError(f"{next(iter(given))} needs --speculative-model [ngram]")
    if model is not None and model not in OLD_MODELS:
        raise ConfigError(f"speculative_model {model!r}: draft models are not there; use [ngram]")
    return {**given, "method": "ngram"} if given else {}


def _json(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        values = json.loads(text[:MAX_JSON])
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or not values:
        raise ConfigError(
            f"speculative_config is {text[:80]!r}: needs a JSON object such as "
            '{"method": "ngram", "num_speculative_tokens": 7}'
        )
    unknown = sorted(map(str, values.keys() - {*KEYS}))
    if unknown:
        raise ConfigError(
            f"speculative_config has {', '.join(unknown)[:200]}: known are {', '.join(KEYS)}"
        )
    return values
