"""What each field of a request does to its answer, over HTTP; nothing that it says reaches another
request."""

from __future__ import annotations

import itertools
import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.harness import Server
from tests.e2e.test_requests import CHAT, TEXT, USER, answered, refused

PATHS = pytest.mark.parametrize("path", [TEXT, CHAT])


def text_of(choice: dict[str, Any]) -> str:
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def events_of(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    basis = {"prompt": "x"} if path == TEXT else {"messages": [USER]}
    response = server.post(path, {**basis, **body, "stream": True})
    assert response.status_code == 200, response.text
    lines = [line for line in response.text.split("\n\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def streamed(events: list[dict[str, Any]]) -> str:
    found = ""
    for event in events:
        for choice in event["choices"]:
            found += choice["text"] if "text" in choice else choice["delta"].get("content", "")
    return found


@PATHS
def test_only_allowed_tokens(toy: Server, path: str) -> None:
    body = {"allowed_token_ids": [65, 66, 67], "max_tokens": 40, "seed": 3}
    assert set(text_of(answered(toy, path, body)["choices"][0])) == set("ABC")


@PATHS
def test_bad_words(toy: Server, path: str) -> None:
    body = {"allowed_token_ids": [65, 66], "max_tokens": 200, "seed": 3}
    plain = text_of(answered(toy, path, body)["choices"][0])
    assert "AAB" in plain and "BB" in plain
    text = text_of(answered(toy, path, {**body, "bad_words": ["AAB", "BB"]})["choices"][0])
    assert "AAB" not in text and "BB" not in text and len(text) == 200
    assert text_of(answered(toy, path, {**body, "bad_words": []})["choices"][0]) == plain


@PATHS
def test_every_token_banned_is_an_error_of_this_request_alone(toy: Server, path: str) -> None:
    body = {"allowed_token_ids": [65], "bad_words": ["A"]}
    assert refused(toy, path, body)["code"] == "no_token_left"


def test_named_logprobs(toy: Server) -> None:
    body = {"logprob_token_ids": [65, 0, 66, 65], "max_tokens": 3, "seed": 1}
    entries = answered(toy, CHAT, body)["choices"][0]["logprobs"]["content"]
    assert [[top["bytes"] for top in e["top_logprobs"]] for e in entries] == [[[65], [0], [66]]] * 3
    everything = {**body, "logprob_token_ids": list(range(128))}
    both = [
        answered(toy, TEXT, {**everything, "logprob_token_ids": ids, "max_tokens": 1})
        for ids in (list(range(128)), list(range(128, 256)))
    ]
    tops = [one["choices"][0]["logprobs"]["top_logprobs"][0] for one in both]
    chosen = both[0]["choices"][0]["logprobs"]
    found = {**tops[0], **tops[1]}
    assert found[chosen["tokens"][0]] == chosen["token_logprobs"][0]
    total = [answered(toy, CHAT, {**body, "logprob_token_ids": ids, "max_tokens": 1})
             for ids in (list(range(128)), list(range(128, 256)))]  # fmt: skip
    values = [
        top["logprob"]
        for one in total
        for top in one["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    ]
    assert sum(map(math.exp, values)) == pytest.approx(1, abs=1e-4)


def test_named_logprobs_beside_an_echo(toy: Server) -> None:
    body = {"prompt": "abc", "echo": True, "logprob_token_ids": [65], "max_tokens": 2, "seed": 1}
    logprobs = answered(toy, TEXT, body)["choices"][0]["logprobs"]
    assert logprobs["tokens"][:3] == list("abc") and len(logprobs["tokens"]) == 5
    assert logprobs["token_logprobs"][0] is None and logprobs["text_offset"][:4] == [0, 1, 2, 3]
    assert all("A" in top for top in logprobs["top_logprobs"][3:])


@PATHS
def test_prompt_logprobs(toy: Server, path: str) -> None:
    answer = answered(toy, path, {"prompt_logprobs": 2, "return_token_ids": True, "seed": 1})
    choice = answer["choices"][0]
    holder = choice if path == TEXT else answer
    ids, scores = holder["prompt_token_ids"], holder["prompt_logprobs"]
    assert len(scores) == len(ids) == answer["usage"]["prompt_tokens"]
    assert scores[0] is None and choice["logprobs"] is None
    for token, score in zip(ids[1:], scores[1:], strict=True):
        entry = score[str(token)]
        assert 2 <= len(score) <= 3 and entry["logprob"] <= 0 and entry["rank"] >= 1
        ranks = [one["rank"] for one in score.values()]
        assert ranks[:2] in ([1, 2], [2, 1]) or 1 in ranks


def test_prompt_logprobs_are_those_of_echo(toy: Server) -> None:
    body = {"prompt": ["abc", "xyzz"], "max_tokens": 0}
    scored = answered(toy, TEXT, {**body, "prompt_logprobs": 0})
    echoed = answered(toy, TEXT, {**body, "echo": True, "logprobs": 0})
    for one, other in zip(scored["choices"], echoed["choices"], strict=True):
        values = [None if x is None else next(iter(x.values()))["logprob"] for x in
                  one["prompt_logprobs"]]  # fmt: skip
        assert values == other["logprobs"]["token_logprobs"] and one["text"] == ""
    both = answered(toy, TEXT, {**body, "echo": True, "logprobs": 1, "prompt_logprobs": 1})
    assert both["choices"][0]["logprobs"]["tokens"] == list("abc")
    assert len(both["choices"][0]["prompt_logprobs"]) == 3


def test_prompt_logprobs_from_a_token_on(toy: Server) -> None:
    """They are those of all, and what stands before is found in the cache."""
    ids = list(range(2, 60))
    body = {"prompt": [ids, [*ids, 7]], "max_tokens": 0, "prompt_logprobs": 0}
    whole = answered(toy, TEXT, {**body, "cache_salt": "whole"})["choices"]
    own = {**body, "cache_salt": "from"}
    answered(toy, TEXT, {"prompt": ids, "max_tokens": 1, "cache_salt": "from"})
    for start in (1, 40, 57):
        answer = answered(toy, TEXT, {**own, "prompt_logprobs_start": start})
        for one, other in zip(answer["choices"], whole, strict=True):
            scores = one["prompt_logprobs"]
            assert scores[:start] == [None] * start
            assert scores[start:] == other["prompt_logprobs"][start:]
        if start == 57:
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 2 * 48


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_logprobs_start": 1},
        {"prompt_logprobs_start": -1, "prompt_logprobs": 0},
        {"prompt_logprobs_start": 3, "prompt_logprobs": 0},
        {"prompt_logprobs_start": 1, "prompt_logprobs": 0, "logprobs": 0, "echo": True},
    ],
)
def test_prompt_logprobs_from_nowhere(toy: Server, fields: dict[str, Any]) -> None:
    answer = toy.post(TEXT, {"prompt": "abc", "max_tokens": 0, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt_logprobs_start"


@PATHS
def test_times_of_an_answer(toy: Server, path: str) -> None:
    body = {"return_metrics": True, "max_tokens": 8, "n": 2, "seed": 5, "ignore_eos": True}
    told = answered(toy, path, body)["metrics"]
    parts = [told[f"{name}_time_ms"] for name in ("queue", "prefill", "generation")]
    assert min(parts) >= 0 and abs(sum(parts) - told["e2e_time_ms"]) < 0.01
    assert told["tokens_per_second"] > 0 and told["mean_itl_ms"] > 0
    for options in ({}, {"stream_options": {"include_usage": True}}):
        *before, last = events_of(toy, path, {**body, **options})
        assert last["metrics"].keys() == told.keys() and last["choices"] == []
        assert not any("metrics" in event for event in before)
        assert ("usage" in last) == bool(options)
    assert "metrics" not in answered(toy, path, {"max_tokens": 1})
    assert refused(toy, path, {**body, "use_beam_search": True})["param"] == "return_metrics"


@PATHS
def test_token_ids_of_an_answer(toy: Server, path: str) -> None:
    body = {"return_token_ids": True, "max_tokens": 12, "seed": 5, "temperature": 0.5}
    answer = answered(toy, path, body)
    choice = answer["choices"][0]
    assert len(choice["token_ids"]) == answer["usage"]["completion_tokens"]
    shown = bytes(t for t in choice["token_ids"] if t != 251).decode("utf-8", "replace")
    assert text_of(choice) == shown
    events = events_of(toy, path, body)
    found = [t for event in events for c in event["choices"] for t in c.get("token_ids", ())]
    assert found == choice["token_ids"]
    holders = [c for event in events for c in event["choices"]] if path == TEXT else events
    prompts = [one["prompt_token_ids"] for one in holders if "prompt_token_ids" in one]
    assert prompts == [(choice if path == TEXT else answer)["prompt_token_ids"]]
    assert "token_ids" not in answered(toy, path, {"seed": 5})["choices"][0]


def test_tokens_named_by_their_ids(toy: Server) -> None:
    named = {"return_tokens_as_token_ids": True, "return_token_ids": True, "seed": 1}
    choice = answered(toy, TEXT, {**named, "logprobs": 1})["choices"][0]
    names = [f"token_id:{token}" for token in choice["token_ids"]]
    assert choice["logprobs"]["tokens"] == names
    assert names[0] in choice["logprobs"]["top_logprobs"][0]
    chat = answered(toy, CHAT, {**named, "logprobs": True, "top_logprobs": 2})["choices"][0]
    entries = chat["logprobs"]["content"]
    assert [e["token"] for e in entries] == [f"token_id:{token}" for token in chat["token_ids"]]
    assert all(top["token"].startswith("token_id:") for e in entries for top in e["top_logprobs"])


def test_best_of(toy: Server) -> None:
    body = {"prompt": ["one", "two"], "max_tokens": 6, "seed": 9, "temperature": 1.5}
    all_five = answered(toy, TEXT, {**body, "n": 5, "logprobs": 0, "return_token_ids": True})
    best = answered(toy, TEXT, {**body, "n": 2, "best_of": 5, "return_token_ids": True})
    assert best["usage"] == {**all_five["usage"], "prompt_tokens_details": best["usage"][
        "prompt_tokens_details"]}  # fmt: skip
    assert [choice["index"] for choice in best["choices"]] == [0, 1, 2, 3]
    for prompt in range(2):
        own = all_five["choices"][5 * prompt : 5 * prompt + 5]
        ranked = sorted(own, key=lambda c: -sum(c["logprobs"]["token_logprobs"]))
        found = best["choices"][2 * prompt : 2 * prompt + 2]
        assert [c["token_ids"] for c in found] == [c["token_ids"] for c in ranked[:2]]
        assert all(c["logprobs"] is None for c in found)
    told = answered(toy, TEXT, {**body, "n": 2, "best_of": 5, "logprobs": 1, "echo": True})
    for choice, plain in zip(told["choices"], best["choices"], strict=True):
        assert choice["text"].endswith(plain["text"])
        assert "".join(choice["logprobs"]["tokens"]).startswith(choice["text"][:3])
    assert answered(toy, TEXT, {**body, "best_of": 1})["choices"]


@PATHS
def test_truncated_prompts(toy: Server, path: str) -> None:
    said = {"prompt": "abcdefgh"} if path == TEXT else {}
    ids: dict[str | None, list[int]] = {}
    for side in (None, "left", "right"):
        cut = {"truncate_prompt_tokens": 3, "truncation_side": side} if side else {}
        answer = answered(toy, path, {**said, **cut, "return_token_ids": True})
        holder = answer["choices"][0] if path == TEXT else answer
        ids[side] = holder["prompt_token_ids"]
        assert answer["usage"]["prompt_tokens"] == len(ids[side])
    assert ids["left"] == ids[None][-3:] and ids["right"] == ids[None][:3]


def test_a_truncated_prompt_may_be_longer_than_the_context(toy: Server) -> None:
    long = "z" * 4095 + "abc" * 100
    cut = {"truncate_prompt_tokens": 5, "return_token_ids": True}
    for prompt in (long, list(long.encode())):
        choice = answered(toy, TEXT, {"prompt": prompt, **cut, "echo": True, "logprobs": 0})
        choice = choice["choices"][0]
        assert bytes(choice["prompt_token_ids"]) == b"bcabc"
        assert choice["text"].startswith("bcabc")
        assert choice["logprobs"]["tokens"][:5] == list("bcabc")
    error = refused(toy, TEXT, {"prompt": long})
    assert error["code"] == "context_length_exceeded"
    error = refused(toy, TEXT, {"prompt": "z" * 8 * 4097 * 13, **cut})
    assert error["code"] == "context_length_exceeded"


@PATHS
def test_stop_regex(toy: Server, path: str) -> None:
    body = {"allowed_token_ids": list(b"abc"), "max_tokens": 200, "seed": 4}
    plain = text_of(answered(toy, path, body)["choices"][0])
    pattern = "(ab+c|ca{2,})b"
    found = re.search(pattern, plain)
    assert found is not None
    stopped = answered(toy, path, {**body, "stop_regex": pattern})["choices"][0]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", pattern)
    assert text_of(stopped) == plain[: found.start()]
    assert streamed(events_of(toy, path, {**body, "stop_regex": pattern})) == text_of(stopped)
    kept = {**body, "stop_regex": ["x", pattern], "include_stop_str_in_output": True}
    assert text_of(answered(toy, path, kept)["choices"][0]) == plain[: found.end()]


@PATHS
def test_stages_of_a_draw(toy: Server, path: str) -> None:
    body = {"max_tokens": 20, "seed": 4, "top_k": 1, "temperature": 1.7}
    greedy = text_of(answered(toy, path, {**body, "temperature": 0})["choices"][0])
    assert text_of(answered(toy, path, body)["choices"][0]) == greedy
    names = ["temperature", "typ_p"]
    assert text_of(answered(toy, path, {**body, "samplers": names})["choices"][0]) != greedy
    names = ["top_k", "penalties"]
    assert text_of(answered(toy, path, {**body, "samplers": names})["choices"][0]) == greedy
    answered(toy, path, {"typical_p": 0.3, "repeat_last_n": 16, "frequency_penalty": 1})


@PATHS
@pytest.mark.parametrize("interval", [2, 5, 1000])
def test_stream_interval(toy: Server, path: str, interval: int) -> None:
    body = {"max_tokens": 23, "seed": 6, "allowed_token_ids": list(b"abcdef")}
    usage = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    plain = events_of(toy, path, {**body, **usage})
    events = events_of(toy, path, {**body, **usage, "stream_interval": interval})
    assert streamed(events) == streamed(plain)
    counts = [e["usage"]["completion_tokens"] for e in events if e["choices"]]
    told = [n for n in dict.fromkeys(counts) if n]
    assert told[0] == 1 and told[-1] == 23
    assert all(b - a >= interval for a, b in itertools.pairwise(told[:-1]))
    assert len(told) <= 2 + 22 // interval + 1


@PATHS
def test_notes_come_back(toy: Server, path: str) -> None:
    notes = {"metadata": {"team": "a", "é": ""}, "request_id": "mine-7"}
    answer = answered(toy, path, notes)
    assert {name: answer[name] for name in notes} == notes and answer["id"] != "mine-7"
    first, *others = events_of(toy, path, {**notes, "max_tokens": 3})
    assert {name: first[name] for name in notes} == notes
    assert not any("metadata" in event for event in others)


def test_r39_names_of_requests_touch_no_other(toy: Server) -> None:
    """The same name, a beginning of it, and one character, all at once."""
    body = {"max_tokens": 64, "ignore_eos": True, "seed": 8}
    alone = answered(toy, TEXT, body)["choices"]
    names = ["abcdef", "abcdef", "abc", "a", "abcdef0"] * 4
    with ThreadPoolExecutor(len(names)) as pool:
        asked = [{**body, "request_id": name} for name in names]
        answers = list(pool.map(lambda one: answered(toy, TEXT, one), asked))
    assert all(answer["choices"] == alone for answer in answers)
    assert [answer["request_id"] for answer in answers] == names
    assert len({answer["id"] for answer in answers}) == len(names)
    toy.wait_idle()


def test_a_chat_goes_on_with_its_last_message(toy: Server) -> None:
    said = [USER, {"role": "assistant", "content": "Well, <|im_end|>"}]
    body = {"messages": said, "seed": 2, "return_token_ids": True}
    goes_on = {**body, "continue_final_message": True, "add_generation_prompt": False}
    answer = answered(toy, CHAT, goes_on)
    rendered = b"\xfauser\nhi\xfb\n\xfaassistant\nWell, <|im_end|>"
    assert bytes(answer["prompt_token_ids"]) == rendered
    assert refused(toy, CHAT, {**body, "continue_final_message": True})["param"] == (
        "continue_final_message"
    )
    echoed = answered(toy, CHAT, {**goes_on, "echo": True})
    assert text_of(echoed["choices"][0]) == "Well, <|im_end|>" + text_of(answer["choices"][0])
    assert streamed(events_of(toy, CHAT, {**goes_on, "echo": True, "max_tokens": 2})) == text_of(
        echoed["choices"][0]
    )
    unsaid = answered(toy, CHAT, {"echo": True, "seed": 2})
    assert unsaid["choices"] == answered(toy, CHAT, {"seed": 2})["choices"]
    tokens = toy.post("/tokenize", {"messages": said, "continue_final_message": True,
                                    "add_generation_prompt": False}).json()["tokens"]  # fmt: skip
    assert bytes(tokens) == rendered


def test_beams_that_stop_early(toy: Server) -> None:
    body = {"use_beam_search": True, "n": 2, "max_tokens": 6}
    late = answered(toy, TEXT, body)
    early = answered(toy, TEXT, {**body, "early_stopping": True})
    assert len(early["choices"]) == len(late["choices"]) == 2
    assert refused(toy, TEXT, {"early_stopping": True})["param"] == "early_stopping"
