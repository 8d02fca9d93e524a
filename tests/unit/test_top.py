"""What ``kvasir top`` makes of two looks at a server."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import ClassVar

import pytest

from kvasir.cli.main import run_command
from kvasir.cli.top_keys import TopView, pressed
from kvasir.cli.top_text import (
    ORDERS,
    READ,
    ROWS,
    WIDTH,
    ServerLook,
    as_text,
    figures,
    quantile,
    read_metrics,
    shown_ids,
    to_json,
)
from kvasir.cli.why_text import why_text
from kvasir.core.messages import EngineStats
from kvasir.core.request import ALIKE
from kvasir.serve.metric_table import METRICS
from kvasir.serve.metrics import Metrics
from scripts.levels import levels

TEXT = """\
# HELP kvasir_generation_tokens_total Tokens generated.
kvasir_generation_tokens_total{model_name="m"} 100
kvasir_num_requests_running{model_name="m"} 3
kvasir_request_errors_total{code="a"} 1
kvasir_request_errors_total{code="b"} 2
kvasir_time_to_first_token_seconds_bucket{model_name="m",priority_class="standard",le="0.1"} 5
kvasir_time_to_first_token_seconds_bucket{model_name="m",priority_class="batch",le="0.1"} 5
kvasir_time_to_first_token_seconds_bucket{model_name="m",priority_class="standard",le="0.5"} 10
kvasir_time_to_first_token_seconds_bucket{model_name="m",priority_class="batch",le="0.5"} 10
kvasir_time_to_first_token_seconds_bucket{model_name="m",priority_class="standard",le="+Inf"} 10
kvasir_time_to_first_token_seconds_bucket{model_name="m",priority_class="batch",le="+Inf"} 10
vllm:generation_tokens_total{model_name="m"} 100
"""


def seen(at: float, text: str = TEXT, **held: object) -> ServerLook:
    return ServerLook(at, *read_metrics(text), held)


def test_rates_and_levels() -> None:
    later = TEXT.replace('tokens_total{model_name="m"} 100', 'tokens_total{model_name="m"} 160')
    said = figures(seen(1.0), seen(3.0, later))
    assert (said["output_tokens_per_second"], said["running"], said["errors"]) == (30.0, 3, 3)
    assert said["first_token_p50"] is None and said["acceptance_rate"] is None


def test_what_is_asked_for_is_all_that_is_shown() -> None:
    metrics = Metrics("both")
    measured = metrics.of("m", lambda: EngineStats(n_running=3, output_tokens=7, n_drafted=4))
    measured.first_token(ALIKE, 0.2)
    metrics.count_error("x")
    names = [f"kvasir_{name}" for name in READ]
    assert set(names) <= {info.exposed for info in METRICS}
    whole, asked = metrics.text().decode(), metrics.text(names).decode()
    assert len(asked) < len(whole) / 5
    assert asked.count("# TYPE") == len(names)
    before = seen(0.0, "")
    assert figures(before, seen(1.0, asked)) == figures(before, seen(1.0, whole))
    assert metrics.text(["nobody"]) == b""


def test_quantiles_are_of_what_is_new() -> None:
    nothing = seen(0.0, "")
    name = "time_to_first_token_seconds"
    assert quantile(nothing, seen(1.0), name, 0.5) == pytest.approx(0.1)
    assert quantile(nothing, seen(1.0), name, 0.75) == pytest.approx(0.3)
    assert quantile(nothing, seen(1.0), "no_such_histogram", 0.5) is None


def test_a_screen() -> None:
    rows = [{"id": f"chatcmpl-{i}", "tokens": 20 * i, "blocks": i} for i in range(ROWS + 3)]
    text = as_text(seen(0.0), seen(1.0, TEXT, requests=rows, block_size=16))
    lines = text.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= WIDTH
    assert "running 3" in text and "and 3 more" in text and f"chatcmpl-{ROWS + 2}" in text
    assert json.loads(to_json(seen(0.0), seen(1.0)))["running"] == 3
    by_id = as_text(seen(0.0), seen(1.0, TEXT, requests=rows, block_size=16), "id")
    assert "chatcmpl-0 " in by_id and "chatcmpl-0 " not in text


@pytest.mark.parametrize(
    ("flags", "built"),
    [
        ("fpu", ["scalar"]),
        ("avx2 fma f16c bmi2", ["avx2"]),
        ("avx2 fma f16c bmi2 avx_vnni", ["avx2", "avx2_vnni"]),
        (
            "avx2 fma f16c bmi2 avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16",
            ["avx512", "avx512_vnni", "avx512_bf16"],
        ),
        (None, ["scalar", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx"]),
    ],
)
def test_levels_whose_kernels_are_built(flags: str | None, built: list[str]) -> None:
    assert levels("" if flags is None else f"processor\t: 0\nflags\t\t: {flags}\n") == built


class Routes(http.server.BaseHTTPRequestHandler):
    """A server that may know causes."""

    knows: ClassVar[bool] = True

    def do_GET(self) -> None:
        why = {
            "id": "chatcmpl-1",
            "choices": [
                {
                    "index": 0,
                    "seconds": 2.0,
                    "alone_seconds": 0.5,
                    "sentence": "It waited for a slot.",
                    "remedy": "--max-num-seqs",
                    "parts": [{"cause": "slots", "seconds": 1.5}],
                }
            ],
        }
        spans = [
            {"kind": "decode", "at": 1.0, "seconds": 0.5},
            {"kind": "queued", "at": 0.0, "seconds": 1.0},
            {"kind": "end", "at": 1.5},
        ]
        timeline = {"id": "chatcmpl-1", "choices": [{"index": 0, "state": "x", "spans": spans}]}
        found = {"/v1/requests/a/timeline": timeline}
        if self.knows:
            found["/v1/requests/a/why"] = why
        body = json.dumps(found.get(self.path, {"error": {"message": "none"}})).encode()
        self.send_response(200 if self.path in found else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), Routes) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


def test_why_an_answer_was_slow(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_command(["why", "a", "--url", url]) == 0
    shown = capsys.readouterr().out
    assert "2.000 s, 0.500 s alone" in shown and "It waited for a slot." in shown
    assert "1500.0 ms  slots" in shown
    monkeypatch.setattr(Routes, "knows", False)
    assert run_command(["why", "a", "--url", url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[2:]] == ["queued", "decode"]
    assert run_command(["why", "b", "--url", url]) == 1


def test_what_kept_drafts_off_is_told() -> None:
    off = [{"reason": "unpaid", "steps": 12, "sentence": "drafts were not expected to pay"}]
    told = why_text({"id": "a", "choices": [{"index": 0, "seconds": 1.0, "undrafted": off}]})
    assert told.splitlines()[-1] == "  not drafted in 12 steps: drafts were not expected to pay"


def test_choices_that_are_not_explained_are_named() -> None:
    """Of many the first few are explained, and old ones are forgotten."""
    choices = [
        {"index": 0, "state": "finished", "seconds": 1.0, "sentence": "Nothing slowed it down."},
        {"index": 4, "state": "finished"},
        {"index": 5, "state": "forgotten"},
    ]
    told = why_text({"id": "cmpl-1", "choices": choices}).splitlines()
    assert told[-2:] == [
        "choice 4: finished, not explained",
        "choice 5: forgotten, not explained",
    ]


def test_keys_of_the_screen() -> None:
    ids = ["a", "b", "c"]
    view = TopView()
    for key in ("j", "\x1b[B", "\x1b[B", "\x1b[B", "k"):
        view = pressed(view, key, ids)
    assert view.chosen == "b"
    assert pressed(view, "\r", ids).explains and not pressed(TopView(), "\r", ids).explains
    assert not pressed(pressed(view, "\r", ids), "\x1b", ids).explains
    orders = [view.order]
    for _ in ORDERS:
        view = pressed(view, "s", ids)
        orders.append(view.order)
    assert orders == [*ORDERS, "blocks"]
    assert pressed(view, "q", ids).ends and pressed(view, "x", ids) == view
    assert pressed(TopView(), "j", []) == TopView()


def test_what_is_told_takes_the_place_of_the_requests() -> None:
    rows = [{"id": "a", "tokens": 1, "blocks": 1}]
    look = seen(1.0, TEXT, requests=rows, block_size=16)
    assert "> a" in as_text(seen(0.0), look, "blocks", "a") and shown_ids(look, "id") == ["a"]
    told = as_text(seen(0.0), look, "blocks", "a", "waited\x1b[2J\n" * 50)
    assert "waited␛[2J" in told and "> a" not in told and len(told.splitlines()) <= 24
