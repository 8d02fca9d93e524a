"""llm-comply: answers against the published schemas of three APIs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.e2e.harness import Server

LEFT_OUT = {
    "openai-chat": {
        "chat-tool-calling": "tools",
        "chat-image-input": "images",
        "chat-reasoning-summary": "reasoning",
    },
    "open-responses": {
        "tool-calling": "tools",
        "image-input": "images",
        "reasoning-summary": "reasoning",
        "compact-response": "compaction",
        "compact-missing-model": "compaction",
    },
    "anthropic": {
        "anth-tool-calling": "tools",
        "anth-image-input": "images",
        "anth-thinking-display": "reasoning",
    },
}
"""What the server does not have yet, by the id of the test."""


def check(python: Path, server: Server) -> bool:
    """Whether all tests pass but those that are left out."""
    return all([_check(python, server, api) for api in LEFT_OUT])


def _check(python: Path, server: Server, api: str) -> bool:
    command = [python.parent / "llm-comply", "-u", server.url + "/v1", "-k", "none"]
    command += ["-m", server.model, "--format", api, "--json"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    results = json.loads(said)["results"]
    asked = [result for result in results if result["id"] not in LEFT_OUT[api]]
    failed = [result for result in asked if result["status"] != "passed"]
    print(f"llm-comply {api}: {len(asked) - len(failed)} of {len(asked)} pass")
    for result in failed:
        print(json.dumps(result)[:2000])
    return not failed and bool(asked)
