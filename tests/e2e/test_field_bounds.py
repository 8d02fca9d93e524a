"""Bounds of the fields beyond OpenAI's: each bad one is a 400 that names it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.harness import Server
from tests.e2e.test_requests import CHAT, TEXT, refused


@pytest.mark.parametrize("path", [TEXT, CHAT])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("allowed_token_ids", [], id="r29"),
        pytest.param("allowed_token_ids", [256], id="r29"),
        pytest.param("allowed_token_ids", [-1], id="r29"),
        pytest.param("allowed_token_ids", [1] * 257, id="r29"),
        pytest.param("bad_words", [""], id="r29"),
        pytest.param("bad_words", ["a"] * 129, id="r29"),
        pytest.param("bad_words", ["a" * 257], id="r29"),
        pytest.param("logprob_token_ids", [256], id="r26"),
        pytest.param("logprob_token_ids", [-1], id="r26"),
        pytest.param("logprob_token_ids", [1] * 129, id="r26"),
        pytest.param("prompt_logprobs", 10**6, id="r26"),
        pytest.param("prompt_logprobs", -1, id="r34"),
        pytest.param("truncate_prompt_tokens", -1, id="r33"),
        pytest.param("truncate_prompt_tokens", 0, id="r33"),
        pytest.param("truncate_prompt_tokens", 4097, id="r33"),
        pytest.param("truncate_prompt_tokens", -(2**63), id="r33"),
        pytest.param("truncation_side", "middle", id="r33"),
        pytest.param("typical_p", 0, id="r24"),
        pytest.param("typical_p", 1.1, id="r24"),
        pytest.param("repeat_last_n", -2, id="r34"),
        pytest.param("repeat_last_n", 10**9, id="r34"),
        pytest.param("samplers", ["mirostat"], id="samplers"),
        pytest.param("samplers", [], id="samplers"),
        pytest.param("stop_regex", "(", id="stop_regex"),
        pytest.param("stop_regex", "(?=a)", id="stop_regex"),
        pytest.param("stop_regex", "a{1,100000}", id="stop_regex"),
        pytest.param("stop_regex", "(" * 30_000, id="stop_regex"),
        pytest.param("stream_interval", 0, id="r34"),
        pytest.param("stream_interval", 10**6, id="r34"),
        pytest.param("metadata", {str(i): "" for i in range(17)}, id="metadata"),
        pytest.param("metadata", {"a": "b" * 513}, id="metadata"),
        pytest.param("request_id", "", id="r39"),
        pytest.param("request_id", "a\nb", id="r39"),
        pytest.param("request_id", "é", id="r39"),
        pytest.param("request_id", "a" * 129, id="r39"),
        pytest.param("early_stopping", True, id="beams"),
        pytest.param("beam_search_diversity_rate", 0.5, id="beams"),
        pytest.param("best_of", 0, id="r21"),
        pytest.param("best_of", 10**9, id="r21"),
    ],
)
def test_bad_field_is_named(toy: Server, path: str, field: str, value: object) -> None:
    assert refused(toy, path, {"max_tokens": 5, field: value})["param"] == field


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TEXT, {"n": 3, "best_of": 2}, "best_of"),
        (TEXT, {"n": 1, "best_of": 2, "stream": True}, "best_of"),
        (TEXT, {"best_of": 2, "max_tokens": 0, "echo": True}, "best_of"),
        (CHAT, {"best_of": 2}, "best_of"),
        (CHAT, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (TEXT, {"prompt_logprobs": 1, "logprobs": 2, "echo": True}, "prompt_logprobs"),
        (TEXT, {"suffix": "b"}, "suffix"),
        *(
            (TEXT, {"use_beam_search": True, name: value}, name)
            for name, value in (
                ("prompt_logprobs", 1),
                ("logprob_token_ids", [1]),
                ("best_of", 2),
                ("typical_p", 0.5),
                ("stop_regex", "a"),
                ("allowed_token_ids", [1]),
            )
        ),
    ],
)
def test_fields_that_exclude_each_other(
    toy: Server, path: str, body: dict[str, Any], param: str
) -> None:
    assert refused(toy, path, body)["param"] == param
