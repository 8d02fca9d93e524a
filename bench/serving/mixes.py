"""Requests with every field at its bound, drawn at random; each has a name that says what it is."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

LENGTH = 2048
"""Tokens that a request may have."""
N_WORDS = 400
MOST_FIELDS = 8
LEAVE_SECONDS = 0.2
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"enum": ["x", "y"]}}, "b": {"type": "string"}},
    "required": ["a", "b"],
}
IDS = list(range(500, 500 + LENGTH - 100))
PROMPTS: dict[str, Any] = {
    "short prompt": [5, 6, 7],
    "longest prompt": IDS,
    "64 prompts": [[i + 10] for i in range(64)],
    "64 prompts of 400": [[i + 10, *IDS[:399]] for i in range(64)],
    "text": "word " * N_WORDS,
}
SIZES: dict[str, dict[str, Any]] = {
    "max_tokens 1": {"max_tokens": 1},
    "max_tokens 64": {"max_tokens": 64},
    "n 128": {"n": 128, "max_tokens": 16},
    "n 16": {"n": 16, "max_tokens": 64},
    "best_of 64": {"best_of": 64, "max_tokens": 16},
}
FIELDS: dict[str, Any] = {
    "temperature": 2.0,
    "top_p": 0.01,
    "top_k": 1_000_000,
    "min_p": 1e-38,
    "typical_p": 0.5,
    "presence_penalty": 2.0,
    "frequency_penalty": -2.0,
    "repetition_penalty": 100.0,
    "repeat_last_n": -1,
    "samplers": ["typ_p", "top_k", "penalties", "temperature", "min_p"],
    "logprobs": 20,
    "echo": True,
    "prompt_logprobs": 20,
    "logprob_token_ids": list(range(128)),
    "logit_bias": {str(i): i % 200 - 100.0 for i in range(1024)},
    "allowed_token_ids": list(range(1024)),
    "bad_words": ["x" * 250 + f"{i}" for i in range(128)],
    "stop": [f"{i}" + "a" * 4000 for i in range(32)],
    "stop_token_ids": list(range(49_000, 49_128)),
    "stop_regex": "[^a]{3}zz",
    "min_tokens": 1,
    "structured_outputs": {"json": SCHEMA},
    "stream_interval": 1024,
    "return_token_ids": True,
    "priority_class": "realtime",
    "priority": -(1 << 31),
    "ttft_ms": 1000,
    "deadline_ms": 86_400_000,
    "cache_ttl": 60,
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "metadata": {"a": "b" * 512},
}
EACH = ("user", "cache_salt", "seed")
"""Another one in each request."""


@dataclass(frozen=True)
class Mix:
    """What each of the requests of a flood is. ``patience``: seconds after which clients leave."""

    name: str
    path: str
    body: dict[str, Any]
    patience: float | None = None

    def request(self, rng: random.Random, model: str) -> dict[str, Any]:
        body = {**self.body, "model": model}
        for name in EACH:
            if name in body:
                body[name] = rng.randrange(1 << 31) if name == "seed" else f"{rng.random()}"
        return body


def draw(rng: random.Random) -> Mix:
    kind = rng.random()
    if kind < 0.08:
        return _vectors(rng)
    if kind < 0.16:
        return _beams(rng)
    if kind < 0.22:
        return _dialect(rng)
    prompt, size = rng.choice(list(PROMPTS)), rng.choice(list(SIZES))
    names = rng.sample([*FIELDS, *EACH], rng.randint(0, MOST_FIELDS))
    body = {"prompt": PROMPTS[prompt], **SIZES[size], "stream": rng.random() < 0.5}
    body |= {name: FIELDS.get(name, "") for name in names}
    leaves = LEAVE_SECONDS if rng.random() < 0.2 else None
    words = [prompt, size, *names, *["stream"] * body["stream"], *["leave"] * bool(leaves)]
    return Mix(", ".join(words), "/v1/completions", body, leaves)


def _vectors(rng: random.Random) -> Mix:
    n, length = rng.choice(((64, 16), (16, 400), (1, LENGTH - 100)))
    body = {"input": [IDS[i : i + length] or IDS[:length] for i in range(n)], "cache_salt": ""}
    return Mix(f"vectors of {n} texts of {length}", "/v1/embeddings", body)


def _beams(rng: random.Random) -> Mix:
    n, prompt = rng.choice((4, 16)), rng.choice(("short prompt", "longest prompt", "text"))
    body = {"prompt": PROMPTS[prompt], "use_beam_search": True, "n": n, "max_tokens": 32}
    return Mix(f"{n} beams, {prompt}", "/v1/completions", body)


def _dialect(rng: random.Random) -> Mix:
    said = [{"role": "user", "content": "word " * rng.choice((1, N_WORDS))}]
    path = rng.choice(("/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"))
    body: dict[str, Any] = {"messages": said, "max_tokens": 64, "stream": True}
    if path == "/v1/responses":
        body = {"input": said[0]["content"], "max_output_tokens": 64, "stream": True}
    if path == "/v1/chat/completions":
        body |= {"logprobs": True, "top_logprobs": 20, "n": 16}
    return Mix(f"{path}, {len(said[0]['content'])} characters", path, body)


PLAIN = Mix(
    "plain streams",
    "/v1/completions",
    {"prompt": [5, 6, 7], "max_tokens": 64, "ignore_eos": True, "stream": True, "seed": 0},
)
