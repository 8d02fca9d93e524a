"""The load generator, against a server that answers by rote."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kvasir.bench.datasets import LoadRequest, read_dataset
from kvasir.bench.http_client import TimedAnswer, target_of, tokens_so_far
from kvasir.bench.load import (
    LoadSettings,
    asked,
    delays,
    measure_load,
    percentiles,
    prompts,
    summarize,
)
from kvasir.cli.main import run_command
from kvasir.core.errors import ConfigError, KvasirError


class Handler(http.server.BaseHTTPRequestHandler):
    """Streams ``max_tokens`` tokens, or refuses prompts that start with an even id."""

    refuses: ClassVar[bool] = False
    seen: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        self._send(200, json.dumps({"data": [{"id": "tiny"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append(body)
        if self.refuses and body["prompt"][0] % 2 == 0:
            self._send(429, json.dumps({"error": {"message": "queue full"}}))
            return
        chunks = [
            {
                "choices": [{"text": "a"}],
                "usage": {"completion_tokens": count + 1, "prompt_tokens": 6},
            }
            for count in range(body["max_tokens"])
        ]
        lines = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
        self._send(200, lines + "data: [DONE]\n\n")

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None: ...


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 64
    """All clients of a test at once, also when this machine is busy: the default is 5."""


@pytest.fixture
def url() -> Iterator[str]:
    Handler.refuses = False
    Handler.seen.clear()
    with Server(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


def test_every_token_of_every_request_is_counted(url: str) -> None:
    settings = LoadSettings(num_prompts=4, input_len=6, output_len=5)
    results = measure_load(target_of(url), settings)
    assert (results["failed"], results["output_tokens"], results["model"]) == (0, 20, "tiny")
    assert results["output_tokens_per_second"] > 0
    assert results["seconds_to_first_token"]["max"] <= results["seconds_per_request"]["max"]
    sent = [body["prompt"] for body in Handler.seen[1:]]
    assert sorted(sent) == sorted(prompts(settings))


def test_failures_are_counted_and_shown(url: str) -> None:
    Handler.refuses = True
    settings = LoadSettings(num_prompts=16, input_len=3, output_len=2)
    n_bad = sum(ids[0] % 2 == 0 for ids in prompts(settings))
    results = measure_load(target_of(url), settings)
    assert 0 < n_bad < 16
    assert results["failed"] == n_bad
    assert "queue full" in results["first_error"]


def test_a_server_that_is_not_there_is_an_error() -> None:
    with pytest.raises(KvasirError, match=r"no answer from 127\.0\.0\.1:1"):
        measure_load(target_of("127.0.0.1:1"), LoadSettings(num_prompts=1))


def test_nothing_but_failures_is_an_error() -> None:
    with pytest.raises(KvasirError, match="all 1 requests failed, the first with: reset"):
        summarize([TimedAnswer(0.0, error="reset")], LoadSettings(num_prompts=1))


def test_the_trace_is_fixed_and_shares_its_prefix() -> None:
    settings = LoadSettings(num_prompts=3, input_len=8, prefix_len=5, request_rate=10.0)
    found = prompts(settings)
    assert found == prompts(settings)
    assert len({tuple(ids[:5]) for ids in found}) == 1
    assert len({tuple(ids[5:]) for ids in found}) == 3
    assert delays(settings)[0] == 0.0
    assert delays(settings) == sorted(delays(settings))
    assert delays(LoadSettings(num_prompts=2)) == [0.0, 0.0]


def test_tokens_are_counted_with_and_without_usage() -> None:
    assert tokens_so_far({"choices": [{"text": "x"}], "usage": {"completion_tokens": 7}}, 4) == 7
    assert tokens_so_far({"choices": [{"text": "x"}]}, 4) == 5
    assert tokens_so_far({"choices": [{"text": ""}]}, 4) == 4
    assert tokens_so_far({"choices": [], "usage": {"completion_tokens": 5}}, 5) == 5


def test_percentiles_of_nothing() -> None:
    assert percentiles([]) is None
    found = {"mean": 2.0, "p50": 2.0, "p90": 2.8, "p99": 2.98, "max": 3.0}
    assert percentiles([1.0, 2.0, 3.0]) == found


@pytest.mark.parametrize("url", ["ftp://x", "https://x", "http://"])
def test_only_plain_http_is_measured(url: str) -> None:
    with pytest.raises(ConfigError, match="http://host:port"):
        target_of(url)


def sharegpt(folder: Path) -> Path:
    turns = [
        [("human", "What is the capital of France?"), ("gpt", "It is Paris, as you know well.")],
        [("human", "short"), ("gpt", "left out")],
        [("human", "A question that nobody answered")],
        [("human", "And what of Spain, its neighbour?"), ("gpt", "Madrid")],
    ]
    said = [{"conversations": [{"from": x, "value": y} for x, y in each]} for each in turns]
    path = folder / "sharegpt.json"
    path.write_text(json.dumps(said))
    return path


def test_what_is_asked_may_lie_in_a_file(tmp_path: Path) -> None:
    path = sharegpt(tmp_path)
    found = read_dataset("sharegpt", path, 5, None, 0)
    assert len(found) == 5 and {each.output_len for each in found} == {7, 1}
    assert found == read_dataset("sharegpt", path, 5, None, 0)
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"prompt": "a", "output_tokens": 3}\n\n{"prompt": "b"}\n')
    with pytest.raises(ConfigError, match=r"lines.jsonl:3 has no output_tokens"):
        read_dataset("custom", lines, 2, None, 0)
    assert sorted(x.prompt for x in read_dataset("custom", lines, 2, 9, 0)) == ["a", "b"]
    lines.write_text("nonsense\n")
    with pytest.raises(ConfigError, match=r"lines.jsonl:1: expected"):
        read_dataset("custom", lines, 2, 9, 0)
    with pytest.raises(ConfigError, match="needs --dataset-path"):
        read_dataset("custom", None, 2, 9, 0)


def test_a_load_of_texts_in_turns(url: str, tmp_path: Path) -> None:
    settings = LoadSettings(
        4, dataset_name="sharegpt", dataset_path=sharegpt(tmp_path), fixed_len=2,
        max_concurrency=1, endpoint="/v1/chat/completions",
    )  # fmt: skip
    assert all(isinstance(each, LoadRequest) for each in asked(settings))
    results = measure_load(target_of(url), settings)
    assert results["failed"] == 0 and results["output_tokens"] == 8
    assert all(body["messages"][0]["role"] == "user" for body in Handler.seen)
    with pytest.raises(ConfigError, match="use --endpoint /v1/completions"):
        measure_load(target_of(url), LoadSettings(1, endpoint="/v1/chat/completions"))
    with pytest.raises(ConfigError, match="use one of /v1/completions, /v1/chat"):
        measure_load(target_of(url), LoadSettings(1, endpoint="/v1/nothing"))


def test_the_block_that_vllm_prints(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--base-url", url, "--num-prompts", "3", "--random-output-len", "4"]
    assert run_command(["bench", "serve", *words, "--request-rate", "inf"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert lines[-1] == "=" * 50
    said = dict(x.split(":", 1) for x in lines if ":" in x)
    assert said["Successful requests"].strip() == "3"
    assert said["Total generated tokens"].strip() == "12"
    assert said["Total input tokens"].strip() == "18"
    assert {"Mean TTFT (ms)", "P99 TPOT (ms)", "Median ITL (ms)"} <= said.keys()
    assert run_command(["bench", "serve", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"]["output_tokens"] == 12
