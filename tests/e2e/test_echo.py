"""``echo`` gives a text back as it was written, ids as their text, and says where tokens begin."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.harness import Server
from tests.e2e.toy_model import END, START

PATH = "/v1/completions"
WRITTEN = "<|im_end|>é <|im_start|> x\U0001f600"
BEGINS = [0, 10, 10, 11, 12, 24, 25, 26, 26, 26, 26]
IDS = [END, *"né".encode(), 0xE4, 97, START, 0xBD]
IDS_TEXT, IDS_BEGINS = "<|im_end|>né\ufffda<|im_start|>\ufffd", [0, 10, 11, 11, 12, 13, 14, 26]


def asked(toy: Server, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices, which are the same as a stream and as a whole."""
    body = {"max_tokens": 5, "seed": 3, "ignore_eos": True, "echo": True, **body}
    whole = toy.post(PATH, body).json()["choices"]
    texts = [""] * len(whole)
    logprobs: list[dict[str, list[Any]]] = [{} for _ in whole]
    with toy.http.stream(
        "POST", toy.url + PATH, json={"model": "toy", **body, "stream": True}
    ) as reply:
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                texts[choice["index"]] += choice["text"]
                for key, values in (choice["logprobs"] or {}).items():
                    logprobs[choice["index"]].setdefault(key, []).extend(values)
    assert texts == [choice["text"] for choice in whole]
    assert logprobs == [choice["logprobs"] or {} for choice in whole]
    return whole


@pytest.mark.parametrize("logprobs", [None, 0, 2])
@pytest.mark.parametrize("max_tokens", [0, 5])
def test_a_text_comes_back_as_it_was_written(
    toy: Server, logprobs: int | None, max_tokens: int
) -> None:
    (choice,) = asked(toy, {"prompt": WRITTEN, "logprobs": logprobs, "max_tokens": max_tokens})
    free = toy.post(
        PATH, {"prompt": WRITTEN, "max_tokens": 5, "seed": 3, "ignore_eos": True}
    ).json()["choices"][0]["text"]
    assert choice["text"] == WRITTEN + (free if max_tokens else "")
    if logprobs is not None:
        offsets = choice["logprobs"]["text_offset"]
        assert offsets[: len(BEGINS)] == BEGINS
        assert len(offsets) == len(choice["logprobs"]["tokens"]) == len(BEGINS) + max_tokens
        assert all(len(WRITTEN) <= place <= len(choice["text"]) for place in offsets[11:])


def test_ids_come_back_as_their_text(toy: Server) -> None:
    (choice,) = asked(toy, {"prompt": IDS, "logprobs": 1, "max_tokens": 0})
    assert choice["text"] == IDS_TEXT
    assert choice["logprobs"]["text_offset"] == IDS_BEGINS
    assert choice["logprobs"]["token_logprobs"][0] is None


def test_many_prompts_and_choices(toy: Server) -> None:
    """Each echoes its own prompt; only a whole answer has several with logprobs."""
    choices = asked(toy, {"prompt": [WRITTEN, "ab"], "n": 2})
    assert [choice["text"].startswith(WRITTEN) for choice in choices] == [True, True, False, False]
    assert all(choice["text"].startswith("ab") for choice in choices[2:])
    body = {"prompt": [IDS, [97]], "n": 2, "max_tokens": 4, "echo": True, "logprobs": 0, "seed": 3}
    first, second, third, fourth = toy.post(PATH, body).json()["choices"]
    for choice in (first, second):
        assert choice["text"].startswith(IDS_TEXT)
        assert choice["logprobs"]["text_offset"][:8] == IDS_BEGINS
    for choice in (third, fourth):
        assert choice["logprobs"]["text_offset"][:2] == [0, 1]
    both = asked(toy, {"prompt": [WRITTEN, "ab"], "logprobs": 0})
    assert [choice["logprobs"]["text_offset"][:2] for choice in both] == [[0, 10], [0, 1]]


def test_scores_that_are_repeated_for_every_choice_are_bounded(toy: Server) -> None:
    """This body is 6 kB, its answer would be 50 MB."""
    asked = {"prompt": [97] * 1000, "echo": True, "logprobs": 20, "max_tokens": 5}
    reply = toy.post(PATH, {**asked, "n": 128})
    assert reply.status_code == 400
    said = reply.json()["error"]
    assert said["param"] == "logprobs"
    assert "128640 tokens with 20 alternatives each, which counts as 2701440" in said["message"]
    assert "at most 2097152: lower n, " in said["message"]
    assert toy.post(PATH, {**asked, "prompt": [97]}).status_code == 200


@pytest.mark.parametrize("salt", ["cold", "found", "found"])
def test_a_prompt_that_is_cut_comes_back_cut(toy: Server, salt: str) -> None:
    """Whether its blocks are found or not."""
    kept = 20 * "\U0001f600"
    cut = {"truncate_prompt_tokens": 80, "cache_salt": f"echo {salt}", "logprobs": 1}
    (choice,) = asked(toy, {"prompt": WRITTEN + kept, **cut})
    (alone,) = asked(toy, {"prompt": kept, "logprobs": 1})
    assert choice["text"].startswith(kept) and choice == alone
