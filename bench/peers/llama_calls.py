"""Tool calls of llama-server under its own grammar of calls, from the first token on.

Under ``tool_choice: required`` llama-server allows any text in front of a call, and Qwen2.5-Coder,
which writes calls as fenced JSON where it may, then writes blanks up to any limit. So its own
template renders the prompt and its own grammar, less that text, holds the answer: what
``required`` says. The calls are read from the answer's text.
"""

from __future__ import annotations

import json
import re
from typing import Any

from bench.peers.asking import NEUTRAL, Said, post

VERBOSE = ("-v",)
"""Of its command: answers tell their grammar."""
_ROOT = re.compile(r"^root ::= .*\btool-calls$", re.MULTILINE)
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)

Json = dict[str, Any]


def ask_held(body: Json) -> Said:
    """The answer to ``body``, a chat with tools under ``required``."""
    try:
        prompt = post("/apply-template", body)["prompt"]
        first = post("/v1/chat/completions", {**body, **NEUTRAL, "max_tokens": 1})
        grammar = first["__verbose"]["generation_settings"]["grammar"]
        asked = {
            "prompt": prompt,
            "grammar": calls_only(grammar, parallel=body["parallel_tool_calls"]),
            "n_predict": body["max_tokens"],
            "temperature": body["temperature"],
        }
        answer = post("/completion", {**asked, **NEUTRAL})
    except (OSError, ValueError, KeyError) as error:
        return Said(error=repr(error))
    finish = "length" if answer["stop_type"] == "limit" else "tool_calls"
    text, n_tokens = answer["content"], answer["tokens_predicted"]
    return Said(text, calls_in(text), finish, n_tokens)


def calls_only(grammar: str, *, parallel: bool) -> str:
    """``grammar`` without what may stand before a call. Raises ValueError where it is another."""
    root = "root ::= tool-calls" if parallel else "root ::= tool-call"
    found, n = _ROOT.subn(root, grammar)
    if n != 1:
        raise ValueError(f"no grammar of calls: {grammar[:200]}")
    return found


def calls_in(text: str) -> tuple[tuple[str, str], ...]:
    """Names and arguments; between two markers there may be several calls."""
    decoder, found = json.JSONDecoder(), []
    for written in _CALL.findall(text):
        rest = written.strip()
        while rest:
            call, end = decoder.raw_decode(rest)
            found.append((call["name"], json.dumps(call["arguments"])))
            rest = rest[end:].lstrip(" \n\t,")
    return tuple(found)
