"""What the options say of speculation, in the words of vLLM's ``speculative_config``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError, printable
from kvasir.core.plan import MAX_DRAFTS

DRAFT_MODEL = "draft_model"
LOOKUPS = ("ngram", "suffix")
RECYCLING, LOOKAHEAD = "recycling", "lookahead"
WITHOUT_PROGRAM = (*LOOKUPS, RECYCLING, LOOKAHEAD)
HEADS = ("eagle", "eagle3", "medusa", "mtp")
"""Which read what the target computes; the last one is of its own checkpoint."""
METHODS = (*WITHOUT_PROGRAM, DRAFT_MODEL, *HEADS)
WITH_MODEL = (DRAFT_MODEL, *HEADS[:-1])
MAX_TOKENS = 63
"""Drafted tokens of a row."""
MAX_MATCH = 64
"""Tokens of a match; longer ones are no better."""
MIN_STORED, MAX_STORED = 1000, 100_000_000
DEFAULT_TOKENS = {"ngram": 7, "suffix": 15, RECYCLING: 7, DRAFT_MODEL: 8}
DEFAULT_TOKENS |= {"eagle": 4, "eagle3": 4, "medusa": 3, "mtp": 3}
DEFAULT_NGRAM = 5
"""Tokens of a match, as in vLLM."""
SUFFIX_MIN = 3
DEFAULTS_STORED = {"suffix": 1_000_000, RECYCLING: 100_000}
"""Tokens of earlier answers, 12 to 20 bytes each; those with candidates, about 200."""
N_CANDIDATES = {RECYCLING: 8, LOOKAHEAD: 1}
"""Likeliest tokens that are told of each logit row; of recycling as in its paper."""
LOOKAHEAD_SIZES = {
    "max_window_size": 2,
    "max_ngram_size": 3,
    "max_verification_set_size": 2,
}
"""W, N and G of lookahead decoding, in the words of TensorRT-LLM: 8 tokens."""
MAX_JSON = 65536
BOUNDS = {
    "num_speculative_tokens": (1, MAX_TOKENS),
    "prompt_lookup_min": (1, MAX_MATCH),
    "prompt_lookup_max": (1, MAX_MATCH),
    "stored_tokens": (0, MAX_STORED),
    "num_speculative_tokens_min": (0, MAX_TOKENS),
    "max_model_len": (1, 2**31 - 1),
    "draft_tensor_parallel_size": (1, 1),
    "draft_width": (1, 8),
    "max_window_size": (1, MAX_TOKENS),
    "max_ngram_size": (2, MAX_TOKENS),
    "max_verification_set_size": (1, MAX_TOKENS),
}
HETEROGENEOUS = "use_heterogeneous_vocab"
RULE = "rejection_sample_method"
COUPLED, STANDARD = RULES = ("coupled", "standard")
"""Drafts are compared with what the target draws, or kept by the classical rule."""
KEYS = ("method", "model", *BOUNDS, "adaptive", HETEROGENEOUS, RULE)
COMMON_NUMBERS = ("num_speculative_tokens", "num_speculative_tokens_min")
OF_LOOKUPS = ("prompt_lookup_min", "prompt_lookup_max", "stored_tokens")
OF_PROGRAMS = ("max_model_len", "draft_tensor_parallel_size", "draft_width")
"""Keys of what has a program of its own."""
OLD_MODELS = ("ngram", "[ngram]")
"""Which the name of a draft model may be for the method of that name."""


class Speculation(msgspec.Struct, frozen=True):
    """Drafts from what stood in texts before, or of a draft model."""

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
    n_least: int = 0
    """Of a draft, below which it is not computed."""
    model: str | None = None
    """The file or folder of a draft model."""
    max_model_len: int | None = None
    """Tokens of a request behind which it drafts nothing; None: its context."""
    may_differ: bool = False
    """A draft model may have other tokens than the target."""
    rule: str = COUPLED
    width: int = 1
    """Tokens that a program drafts in each place, of which the likeliest make a tree."""
    window: tuple[int, int, int] = (0, 0, 0)
    """W, N and G of lookahead decoding."""
    lookup: Speculation | None = None
    """Beside one with a program: drafts from texts, where they are expected to bring more."""

    @property
    def parts(self) -> tuple[Speculation, ...]:
        return (self,) if self.lookup is None else (self, self.lookup)

    @property
    def name(self) -> str:
        """Of all methods."""
        return "+".join(part.method for part in self.parts)

    @property
    def most_tokens(self) -> int:
        return max(part.n_tokens for part in self.parts)

    @property
    def has_program(self) -> bool:
        """Tokens are drafted by the executor."""
        return self.method not in WITHOUT_PROGRAM

    @property
    def n_candidates(self) -> int:
        """Of each logit row, from which drafts are made."""
        return max(N_CANDIDATES.get(part.method, 0) for part in self.parts)

    @property
    def is_head(self) -> bool:
        return self.method in HEADS

    @property
    def n_kept(self) -> int:
        """Drafted tokens of a request whose distributions are kept for the classical rule. Drafts
        from texts have none: they are certain, and both rules are the same of them."""
        return self.n_tokens if self.rule == STANDARD and self.has_program else 0

    @property
    def reason(self) -> str:
        """As the start-up report shows it."""
        most = "at most " if self.is_adaptive else ""
        model = "" if self.model is None else f" {printable(self.model)}"
        own = f"{self.method}{model}, {most}{self.n_tokens} tokens"
        if self.lookup is not None:
            own += f", or {self.lookup.method}, {most}{self.lookup.n_tokens} tokens"
        if self.width > 1:
            own += f", of {self.width} in each place"
        if self.n_kept:
            own += ", by the classical rule"
        return f"{own}: as asked"


def parse_speculation(options: EngineOptions) -> Speculation | None:
    """None: nobody asks for it. Raises ConfigError on what is no JSON object, on unknown keys and
    methods, and on numbers out of their bounds."""
    old, listed = _old(options), _json(options.speculative_config)
    parts = [_part(values) for values in listed or [old] if values]
    return _joined(parts) if parts else None


def _joined(parts: Sequence[Speculation]) -> Speculation:
    """Of several, one with a program comes first. Raises ConfigError."""
    if len(parts) == 1:
        return parts[0]
    programs = [part for part in parts if part.has_program]
    lookups = [part for part in parts if not part.has_program]
    if (len(programs), len(lookups)) != (1, 1):
        named = ", ".join(part.method for part in parts)
        raise ConfigError(
            f"speculative_config lists {named}: of several, one has no program "
            f"({', '.join(WITHOUT_PROGRAM)}) and the other one has (draft_model or a head)"
        )
    both = [(part.is_adaptive, part.n_least) for part in parts]
    if both[0] != both[1]:
        raise ConfigError(
            "speculative_config lists drafters that differ in adaptive or "
            "num_speculative_tokens_min, which are of all drafts: say the same in both"
        )
    return msgspec.structs.replace(programs[0], lookup=lookups[0])


def _part(values: Mapping[str, Any]) -> Speculation:
    method = _method(values)
    _check_bounds(values, method)
    shortest, longest = _lengths(method, values)
    if method == "ngram" and values.get("stored_tokens"):
        raise ConfigError("speculative_config's ngram keeps no earlier answers: use suffix")
    stored = values.get("stored_tokens", DEFAULTS_STORED.get(method, 0))
    if method == RECYCLING and not stored:
        raise ConfigError("speculative_config's recycling drafts from stored_tokens: 0 is none")
    if 0 < stored < MIN_STORED:
        raise ConfigError(
            f"speculative_config's stored_tokens is {stored}: needs 0, or {MIN_STORED} at least"
        )
    window = _window(method, values)
    n_default = DEFAULT_TOKENS.get(method, (window[0] + window[2]) * (window[1] - 1))
    n_tokens = values.get("num_speculative_tokens", n_default)
    if method == LOOKAHEAD and not n_default <= n_tokens <= MAX_TOKENS:
        raise ConfigError(
            f"speculative_config's lookahead computes {n_default} tokens, (W + G) (N - 1): at most "
            f"{min(n_tokens, MAX_TOKENS)} are drafted, make {', '.join(LOOKAHEAD_SIZES)} smaller"
        )
    n_least = values.get("num_speculative_tokens_min", 0)
    if n_least > n_tokens:
        raise ConfigError(
            f"num_speculative_tokens_min {n_least} is more than num_speculative_tokens {n_tokens}"
        )
    width = values.get("draft_width", 1)
    if width > 1 and _rule(values) == STANDARD:
        raise ConfigError(
            f"speculative_config's {RULE} {STANDARD} is of chains: leave draft_width {width} out"
        )
    return Speculation(
        method,
        n_tokens,
        shortest,
        longest,
        stored,
        _flag(values, "adaptive", True),
        n_least,
        values["model"] if method in WITH_MODEL else None,
        values.get("max_model_len"),
        _flag(values, HETEROGENEOUS, False),
        _rule(values),
        width,
        window,
    )


def _window(method: str, values: Mapping[str, Any]) -> tuple[int, int, int]:
    if method != LOOKAHEAD:
        return 0, 0, 0
    w, n, g = (values.get(name, default) for name, default in LOOKAHEAD_SIZES.items())
    return w, n, g


def _rule(values: Mapping[str, Any]) -> str:
    rule: str = values.get(RULE, COUPLED)
    if rule not in RULES:
        raise ConfigError(
            f"speculative_config's {RULE} {rule!r} is not there: use one of {', '.join(RULES)}"
        )
    return rule


def _flag(values: Mapping[str, Any], name: str, default: bool) -> bool:
    value = values.get(name, default)
    if not isinstance(value, bool):
        raise ConfigError(f"speculative_config's {name} is {value!r}: needs true or false")
    return value


def _method(values: Mapping[str, Any]) -> str:
    """What ``method`` says, or ``model`` where that is missing."""
    model = values.get("model")
    if model is not None and not isinstance(model, str):
        raise ConfigError(f"speculative_config's model is {model!r}: needs a file or folder")
    is_draft = model is not None and model not in OLD_MODELS
    method: str = values.get("method", DRAFT_MODEL if is_draft else "ngram")
    if method not in METHODS:
        raise ConfigError(
            f"speculative_config's method {method!r} is not there: use one of {', '.join(METHODS)}"
        )
    if is_draft != (method in WITH_MODEL):
        raise ConfigError(
            f"speculative_config's method {method} "
            + (
                f"has no model: leave {model!r} out"
                if is_draft
                else "needs model: a file or folder"
            )
        )
    known = _known(method)
    if found := [name for name in values if name not in known]:
        raise ConfigError(f"speculative_config's method {method} has no {', '.join(found)}")
    return method


def _known(method: str) -> tuple[str, ...]:
    """Keys that say something of a method."""
    common = ("method", "model", *COMMON_NUMBERS, "adaptive", RULE)
    if method == RECYCLING:
        return (*common, OF_LOOKUPS[-1])
    if method == LOOKAHEAD:
        return (*common, *LOOKAHEAD_SIZES)
    if method in LOOKUPS:
        return (*common, *OF_LOOKUPS)
    return (*common, *OF_PROGRAMS, *((HETEROGENEOUS,) if method == DRAFT_MODEL else ()))


def _check_bounds(values: Mapping[str, Any], method: str) -> None:
    """Of numbers."""
    for name, (low, high) in BOUNDS.items():
        if name == "num_speculative_tokens" and method not in WITHOUT_PROGRAM:
            high = MAX_DRAFTS
        value = values.get(name, low)
        if type(value) is not int or not low <= value <= high:
            raise ConfigError(
                f"speculative_config's {name} is {value!r}: needs a number from {low} to {high}"
            )


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
        "model": model,
        "num_speculative_tokens": options.num_speculative_tokens,
        "prompt_lookup_min": options.ngram_prompt_lookup_min,
        "prompt_lookup_max": options.ngram_prompt_lookup_max,
        "num_speculative_tokens_min": options.num_speculative_tokens_min,
        "max_model_len": options.speculative_max_model_len,
    }
    given = {name: value for name, value in values.items() if value is not None}
    if given and options.speculative_config is not None:
        raise ConfigError(
            "speculative_config says it all: leave out speculative_model, num_speculative_tokens, "
            "speculative_max_model_len and ngram_prompt_lookup_*"
        )
    if given and model is None:
        raise ConfigError(
            f"{next(iter(given))} needs --speculative-model: [ngram], or a file or folder"
        )
    return given


def _json(text: str | None) -> list[dict[str, Any]]:
    """An object, or a list of some."""
    if text is None:
        return []
    try:
        values = json.loads(text[:MAX_JSON])
    except (ValueError, RecursionError):
        values = None
    listed = values if isinstance(values, list) else [values]
    if not listed or not all(isinstance(one, dict) and one for one in listed):
        raise ConfigError(
            f"speculative_config is {text[:80]!r}: needs a JSON object such as "
            '{"method": "ngram", "num_speculative_tokens": 7}'
        )
    unknown = sorted({str(key) for one in listed for key in one.keys() - {*KEYS}})
    if unknown:
        raise ConfigError(
            f"speculative_config has {', '.join(unknown)[:200]}: known are {', '.join(KEYS)}"
        )
    return listed
