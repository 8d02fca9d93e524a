"""One request of every kind that an engine has to go on with, in every dialect that streams, and
what of an answer is equal whenever it is asked for."""

from __future__ import annotations

import re
from typing import Any

from tests.e2e.harness import Server, bare

Asked = tuple[str, dict[str, Any]]
"""A path and a body."""

TEXT = "/v1/completions"


def streams(free: dict[str, Any]) -> tuple[Asked, ...]:
    """``free``: prompt, ``max_tokens`` and ``ignore_eos`` of those that are completions."""
    n_tokens = free["max_tokens"]
    said = [{"role": "user", "content": "sing"}]
    chat = {"messages": said, "max_tokens": n_tokens, "ignore_eos": True, "temperature": 0}
    prompts = ["one song", "another", "one song"]
    pairs = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    letters = {"regex": f"[a-z ]{{{n_tokens - 10}}}"}
    return (
        (TEXT, {**free, "temperature": 0}),
        (TEXT, {**free, "seed": 1}),
        (TEXT, {**free, "seed": 2, "top_p": 0.9, "top_k": 40}),
        (TEXT, {**free, "seed": 3, "n": 3}),
        (TEXT, {**free, "seed": 4, "logprobs": 3}),
        (TEXT, {**free, "seed": 5, "echo": True, "logprobs": 1}),
        (TEXT, {**free, "seed": 6, "frequency_penalty": 1.5, "presence_penalty": 0.5}),
        (TEXT, {**free, "seed": 7, "repetition_penalty": 1.3, "min_tokens": n_tokens // 2}),
        (TEXT, {**free, "seed": 8, "cache_ttl": 60}),
        (TEXT, {**free, "seed": 9, "deadline_ms": 600_000, "ttft_ms": 600_000}),
        (TEXT, {**free, "seed": 10, "stop": ["\x02"], "include_stop_str_in_output": True}),
        (TEXT, {**free, "seed": 11, "prompt": prompts}),
        (TEXT, {**free, "seed": 12, "logit_bias": {"65": 5, "66": -5}}),
        (TEXT, {**free, "seed": 14, "structured_outputs": letters}),
        (TEXT, {**free, "seed": 16, "n": 2, "logprobs": 1, "guided_json": pairs}),
        ("/v1/chat/completions", {**chat, "seed": 13, "stream_options": {"include_usage": True}}),
        ("/v1/messages", chat),
        ("/v1/responses", {"input": "sing", "max_output_tokens": n_tokens, "temperature": 0}),
        ("/api/chat", {"messages": said, "options": {"seed": 15, "num_predict": n_tokens}}),
    )


def beams(n_tokens: int = 40) -> tuple[Asked, ...]:
    size = {"use_beam_search": True, "max_tokens": n_tokens}
    return (
        (TEXT, {"prompt": "beams", "n": 4, **size}),
        (TEXT, {"prompt": ["a", "b"], "n": 2, **size}),
    )


def ask(server: Server, asked: Asked) -> bytes:
    """The bytes of an answer, as ``told`` gives them."""
    path, body = asked
    answer = server.post(path, body)
    assert answer.status_code == 200, answer.text
    return told(answer.content)


def told(body: bytes) -> bytes:
    """An answer without ids, times and signs of life; of a stream, choice by choice: which of them
    is told first in a step is not said."""
    events = bare(body).split(b"\n\n")
    kept = [event for event in events if not event.startswith((b":", b"event: ping"))]
    return b"\n\n".join(sorted(kept, key=choice_of))


def choice_of(event: bytes) -> int:
    found = re.search(rb'"choices":\[{"index":(\d+)', event)
    return int(found.group(1)) if found else -1
