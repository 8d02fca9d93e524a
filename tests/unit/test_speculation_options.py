"""What options say of speculation, in vLLM's words, and what they refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvasir.config.drafting import beside_shares
from kvasir.config.options import EngineOptions
from kvasir.config.resolved import ModelFacts
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
        ({"model": "[ngram]"}, Speculation("ngram", 7, 5, 5, 0, True)),
        (
            {"model": "a.gguf", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 1},
            Speculation("draft_model", 3, 5, 5, 0, True, 0, "a.gguf"),
        ),
        (
            {
                "method": "draft_model",
                "model": "a.gguf",
                "max_model_len": 99,
                "num_speculative_tokens_min": 2,
                "adaptive": False,
            },
            Speculation("draft_model", 8, 5, 5, 0, False, 2, "a.gguf", 99),
        ),
        (
            {"model": "a.gguf", "use_heterogeneous_vocab": True},
            Speculation("draft_model", 8, 5, 5, 0, True, 0, "a.gguf", None, True),
        ),
        (
            {"method": "eagle3", "model": "head", "max_model_len": 99},
            Speculation("eagle3", 4, 5, 5, 0, True, 0, "head", 99),
        ),
        ({"method": "mtp"}, Speculation("mtp", 3, 5, 5, 0, True)),
    ],
)
def test_words_of_vllm(config: dict[str, Any], expected: Speculation) -> None:
    assert parsed(config) == expected


def test_old_words() -> None:
    options = EngineOptions(
        speculative_model="[ngram]", num_speculative_tokens=5, ngram_prompt_lookup_max=4
    )
    assert parse_speculation(options) == Speculation("ngram", 5, 4, 4, 0, True)
    options = EngineOptions(
        speculative_model="a.gguf",
        num_speculative_tokens=5,
        num_speculative_tokens_min=1,
        speculative_max_model_len=64,
    )
    expected = Speculation("draft_model", 5, 5, 5, 0, True, 1, "a.gguf", 64)
    assert parse_speculation(options) == expected


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            {"method": "hydra"},
            "'hydra' is not there: use one of ngram, suffix, recycling, lookahead",
        ),
        ({"rejection_sample_method": "strict"}, "use one of coupled, standard"),
        ({"model": "a", "use_heterogeneous_vocab": 1}, "vocab is 1: needs true or false"),
        ({"method": "suffix", "use_heterogeneous_vocab": True}, "suffix has no use_heterogeneous"),
        ({"method": ["ngram"]}, "is not there"),
        ({"method": "ngram", "modle": 1}, "has modle: known are method"),
        ({"num_speculative_tokens": 64}, "is 64: needs a number from 1 to 63"),
        ({"num_speculative_tokens": True}, "is True: needs a number"),
        ({"num_speculative_tokens": None}, "is None: needs a number"),
        ({"adaptive": 1}, "adaptive is 1: needs true or false"),
        ({"prompt_lookup_min": 4, "prompt_lookup_max": 2}, "4 is more than prompt_lookup_max 2"),
        ({"method": "ngram", "stored_tokens": 5}, "keeps no earlier answers"),
        ({"method": "suffix", "stored_tokens": 5}, "is 5: needs 0, or 1000 at least"),
        ({"method": "draft_model"}, "draft_model needs model: a file or folder"),
        ({"model": 3}, "model is 3: needs a file or folder"),
        ({"method": "ngram", "model": "a.gguf"}, "ngram has no model: leave 'a.gguf' out"),
        ({"model": "a.gguf", "prompt_lookup_min": 3}, "draft_model has no prompt_lookup_min"),
        ({"method": "suffix", "max_model_len": 9}, "suffix has no max_model_len"),
        ({"model": "a.gguf", "num_speculative_tokens": 17}, "is 17: needs a number from 1 to 16"),
        ({"model": "a.gguf", "draft_tensor_parallel_size": 2}, "is 2: needs a number from 1 to 1"),
        ({"num_speculative_tokens_min": 8}, "8 is more than num_speculative_tokens 7"),
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
        ({"num_speculative_tokens": 5}, r"needs --speculative-model: \[ngram\], or a file"),
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


def test_a_list_has_a_drafter_with_a_program_and_one_of_texts() -> None:
    lookup, program = {"method": "suffix"}, {"method": "mtp", "num_speculative_tokens": 2}
    for listed in ([lookup, program], [program, lookup]):
        found = parse_speculation(EngineOptions(speculative_config=json.dumps(listed)))
        assert found is not None and found.name == "mtp+suffix"
        assert (found.n_tokens, found.most_tokens, found.lookup) == (2, 15, parsed(lookup))
        assert found.reason == "mtp, at most 2 tokens, or suffix, at most 15 tokens: as asked"
    alone = parse_speculation(EngineOptions(speculative_config=json.dumps([program])))
    assert alone == parsed(program)


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        ([{"method": "suffix"}, {"method": "ngram"}], "lists suffix, ngram: of several, one"),
        ([{"method": "mtp"}, {"model": "a"}], "lists mtp, draft_model: of several, one"),
        ([{"method": "mtp"}, {"method": "ngram"}, {"method": "suffix"}], "of several, one"),
        ([{"method": "mtp", "adaptive": False}, {"method": "ngram"}], "differ in adaptive"),
        ([{"method": "mtp"}, {"method": "ngram", "modle": 1}], "has modle: known are"),
        ([{"method": "mtp"}, {}], "needs a JSON object"),
        ([], "needs a JSON object"),
        ([1], "needs a JSON object"),
    ],
)
def test_lists_that_are_refused(listed: list[Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_speculation(EngineOptions(speculative_config=json.dumps(listed)))


def test_llm_takes_a_list_too() -> None:
    listed = [{"method": "suffix"}, {"method": "mtp"}]
    options, _ = split(None, {"speculative_config": listed})
    assert options.speculative_config == json.dumps(listed)


def test_the_classical_rule_is_of_what_draws_its_drafts() -> None:
    standard = {"rejection_sample_method": "standard"}
    head = parsed({"method": "mtp", **standard})
    assert head is not None and head.n_kept == 3 and "by the classical rule" in head.reason
    for config in ({"method": "suffix", **standard}, {"method": "mtp"}):
        found = parsed(config)
        assert found is not None and found.n_kept == 0


def test_what_the_classical_rule_keeps_is_in_the_plan_of_memory() -> None:
    model = ModelFacts("m", 1000, 99, 8, 5000, "float32", 1)
    head, reasons = parsed({"method": "mtp", "rejection_sample_method": "standard"}), {"a": "b"}
    assert beside_shares(model, 10**6, 64, parsed({"method": "mtp"}), reasons) == 10**6
    assert beside_shares(model, 10**6, 64, head, reasons) == 10**6 - 64 * 3 * 1000 * 4
    assert "sampled answers depend on timing" in reasons["rejection_sample_method"]
    with pytest.raises(ConfigError, match="of 3 drafted tokens of 64 requests, 750"):
        beside_shares(model, 654000, 64, head, reasons)
