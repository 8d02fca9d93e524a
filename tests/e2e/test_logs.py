"""Logs of a running server: JSON lines, request ids, and no prompt that nobody asked to see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Server, running_server, wait_until
from tests.e2e.toy_model import write_toy_model

SECRET = "the secret \x1b[31mprompt"


def entries(server: Server) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.lines if line.strip()]


def logged(server: Server, request_id: str) -> dict[str, Any]:
    """The line of a request, which comes after its answer."""

    def found() -> list[dict[str, Any]]:
        return [x for x in entries(server) if x.get("request_id") == request_id]

    wait_until(found)
    (entry,) = found()
    return entry


def test_json_lines_name_requests_and_no_prompts(toy_folder: Path) -> None:
    with running_server(toy_folder, log_format="json", api_key="k3y") as server:
        auth = {"Authorization": "Bearer k3y"}
        body = {"prompt": SECRET, "max_tokens": 3, "ignore_eos": True, "user": "somebody"}
        reply = server.post("/v1/completions", body, **{"X-Request-Id": "mine 1", **auth})
        assert reply.headers["x-request-id"] == "mine_1"
        entry = logged(server, "mine_1")
        assert (entry["method"], entry["path"], entry["status"]) == (
            "POST",
            "/v1/completions",
            200,
        )
        assert (entry["choices"], entry["output_tokens"]) == (1, 3)
        assert entry["queue_time_ms"] >= 0 and entry["seconds"] > 0
        refused = server.post("/v1/completions", body, **{"X-Request-Id": "no\x09key"})
        assert (refused.status_code, refused.headers["x-request-id"]) == (401, "no_key")
        assert logged(server, "no_key")["error"] == "invalid_api_key"
        own = server.post("/v1/completions", body, **auth).headers["x-request-id"]
        assert own.startswith("req-") and logged(server, own)["status"] == 200
        for path in ("/health", "/metrics"):
            server.http.get(server.url + path, headers={"X-Request-Id": "watch", **auth})
        text = "".join(server.lines)
        assert "secret" not in text and "k3y" not in text and "somebody" not in text
        assert "watch" not in text and "\x1b" not in text


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_prompts_are_logged_if_asked(toy_folder: Path, log_format: str) -> None:
    with running_server(toy_folder, log_format=log_format, log_prompts=True) as server:
        server.post("/v1/completions", {"prompt": SECRET, "max_tokens": 1})
        server.post("/v1/completions", {"prompt": "x" * 20_000, "max_tokens": 1})
        wait_until(lambda: sum("completions" in line for line in server.lines) == 2)
        text = "".join(server.lines)
        assert "the secret" in text and "\x1b" not in text
        assert "x" * 4000 in text and "x" * 4097 not in text


def test_a_late_first_token_is_told_with_its_cause(toy_folder: Path, tmp_path: Path) -> None:
    model = write_toy_model(tmp_path / "slow", {"seconds": 0.02})
    options = {"log_format": "json", "enable_log_requests": False, "ttft_target_ms": 1}
    with running_server(model, **options) as server:
        body = {"prompt": SECRET, "max_tokens": 1}
        name = server.post("/v1/completions", body).json()["id"]

        def told() -> list[dict[str, Any]]:
            return [x for x in entries(server) if x["message"] == "first token late"]

        wait_until(told)
        (line,) = told()
        assert (line["response"], line["level"], line["target_ms"]) == (name, "warning", 1)
        assert line["request_id"].startswith("req-") and line["first_token_ms"] >= 20
        assert line["cause"] and line["why"] and "secret" not in json.dumps(line)


def test_text_logs_are_quiet_by_default(toy_folder: Path) -> None:
    with running_server(toy_folder) as server:
        server.post("/v1/completions", {"prompt": SECRET, "max_tokens": 1})
        server.wait_idle()
        assert not any("completions" in line for line in server.lines)


def test_the_engine_process_logs_in_the_same_form(toy_folder: Path, tmp_path: Path) -> None:
    model = write_toy_model(tmp_path / "faulty", {"at": 2, "broken_start": 1})
    with running_server(model, log_format="json") as server:
        server.post("/v1/completions", {"prompt": "x", "max_tokens": 5, "ignore_eos": True})
        wait_until(lambda: any(x["logger"] == "kvasir.engine" for x in entries(server)))
        entry = next(x for x in entries(server) if x["logger"] == "kvasir.engine")
        assert entry["level"] == "error" and "Traceback" in entry["exception"]
