"""llm-comply: answers against the published schemas of three APIs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.e2e.harness import Server, running_server
from tests.e2e.test_tools import THINKS
from tests.e2e.toy_model import write_toy_model

LEFT_OUT = {
    "openai-chat": {"chat-image-input": "images"},
    "open-responses": {
        "image-input": "images",
        "compact-response": "compaction",
        "compact-missing-model": "compaction",
    },
    "anthropic": {"anth-image-input": "images"},
}
"""What the server does not have yet, by the id of the test."""
THOUGHTS = {
    "openai-chat": "chat-reasoning-summary",
    "open-responses": "reasoning-summary",
    "anthropic": "anth-thinking-display",
}
"""Tests that want a model which reasons. They are for models of certain names alone."""
THINKER = "toy-gpt-5-claude-opus"
N_CONTEXT = 8192
"""They ask for 4,096 tokens of answer."""


def check(python: Path, server: Server) -> bool:
    """Whether all tests pass but those that are left out. ``server`` calls tools."""
    plain = [
        _check(python, server, api, left_out={*LEFT_OUT[api], THOUGHTS[api]}) for api in LEFT_OUT
    ]
    with thinking_server() as thinker:
        thoughts = [_check(python, thinker, api, asked={THOUGHTS[api]}) for api in THOUGHTS]
    return all([*plain, *thoughts])


@contextmanager
def thinking_server() -> Iterator[Server]:
    """Of a model made for tests, whose prompts open reasoning."""
    with TemporaryDirectory() as folder:
        model = write_toy_model(Path(folder), template=THINKS)
        sizes = {"seed": 1, "max_model_len": N_CONTEXT}
        with running_server(model, name=THINKER, engine=sizes) as server:
            yield server


def _check(
    python: Path,
    server: Server,
    api: str,
    *,
    left_out: Collection[str] = (),
    asked: Collection[str] | None = None,
) -> bool:
    """``asked``: ids of tests; None: all."""
    command = [python.parent / "llm-comply", "-u", server.url + "/v1", "-k", "none"]
    command += ["-m", server.model, "--format", api, "--json"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    results = json.loads(said)["results"]
    chosen = [
        result
        for result in results
        if result["id"] not in left_out and (asked is None or result["id"] in asked)
    ]
    failed = [result for result in chosen if result["status"] != "passed"]
    print(f"llm-comply {api}: {len(chosen) - len(failed)} of {len(chosen)} pass")
    for result in failed:
        print(json.dumps(result)[:2000])
    return not failed and bool(chosen)
