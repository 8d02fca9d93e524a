"""What options say of speculation, in vLLM's words, and what they refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvasir.config.options import EngineOptions
from kvasir.config.speculation import Speculation, parse_speculation
from kvasir.core.errors import ConfigError
from kvasir.offline.arguments import split


def parsed(config: dict[str, Any]) -> Speculation | None:
    return parse_speculation(EngineOptions(speculative_config=json.dumps(config)))


def test_nobody_speculates_unasked() -> None:
    assert parse_speculation(EngineOptions()) is None


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"method": "ngram"}, Speculation("ngram", 7, 5, 5, 0, True)),
        ({"num_speculative_tokens": 3}, Speculation("ngram", 3, 5, 5, 0, True)),
        ({"method": "ngram", "prompt_lookup_max": 4}, Speculation("ngram", 7, 4, 4, 0, True)),
        (
            {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4, "adaptive": False},
            Speculation("ngram", 7, 2, 4, 0, False),
        ),
        ({"method": "suffix"}, Speculation("suffix", 15, 3, 64, 1_000_000, True)),
        (
            {"method": "suffix", "stored_tokens": 0, "num_speculative_tokens": 9},
            Speculation("suffix", 9, 3, 64, 0, True),
        ),
    ],
)
def test_words_of_vllm(config: dict[str, Any], expected: Speculation) -> None:
    assert parsed(config) == expected


def test_old_words() -> None:
    options = EngineOptions(
        speculative_model="[ngram]", num_speculative_tokens=5, ngram_prompt_lookup_max=4
    )
    assert parse_speculation(options) == Speculation("ngram", 5, 4, 4, 0, True)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"method": "eagle"}, "'eagle' is not there: use ngram or suffix"),
        ({"method": ["ngram"]}, "is not there"),
        ({"method": "ngram", "modle": 1}, "has modle: known are method"),
        ({"num_speculative_tokens": 64}, "is 64: needs a number from 1 to 63"),
        ({"num_speculative_tokens": True}, "is True: needs a number"),
        ({"num_speculative_tokens": None}, "is None: needs a number"),
        ({"adaptive": 1}, "adaptive is 1: needs true or false"),
        ({"prompt_lookup_min": 4, "prompt_lookup_max": 2}, "4 is more than prompt_lookup_max 2"),
        ({"method": "ngram", "stored_tokens": 5}, "keeps no earlier answers"),
        ({"method": "suffix", "stored_tokens": 5}, "is 5: needs 0, or 1000 at least"),
        ({}, "needs a JSON object"),
    ],
)
def test_what_is_refused(config: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parsed(config)


@pytest.mark.parametrize("text", ["", "ngram", "[1]", "{" * 5000, '{"method": "ngram"', "[" * 9999])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="needs a JSON object such as"):
        parse_speculation(EngineOptions(speculative_config=text))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"speculative_model": "tiny.gguf"}, r"draft models are not there; use \[ngram\]"),
        ({"num_speculative_tokens": 5}, r"needs --speculative-model \[ngram\]"),
        (
            {"speculative_model": "[ngram]", "speculative_config": '{"method": "ngram"}'},
            "says it all: leave out",
        ),
    ],
)
def test_old_words_that_do_not_fit(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_speculation(EngineOptions(**options))


def test_a_script_gives_a_mapping() -> None:
    options, warnings = split(None, {"speculative_config": {"method": "suffix"}})
    assert (options.speculative_config, warnings) == ('{"method": "suffix"}', ())
