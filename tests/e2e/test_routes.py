"""Every route with every kind of odd query and path, and what web pages may ask (R15)."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from kvasir.serve.app import ADMIN_POST, GET, POST, PUBLIC
from tests.e2e.harness import Server, exchange, head, post_bytes, running_server

ODD = (
    "9" * 27,
    "9" * 5000,
    "-1",
    "1e400",
    "000000001" + "9" * 18,
    "\x1b[2J",
    "\x00",
    "\r\nX: y",
    "\u202e",
    "é" * 1000,
    "\U0001f600",
    "a/../b",
    "' OR 1=1",
)
ROUTES = [("GET", path) for path in (*PUBLIC, *GET)] + [("POST", path) for path in POST]
QUERIES = ("", "steps={}", "steps=5&steps={}", "{}", "{}={}", "model={}&steps={}&id={}", "steps")
TAKES_QUERY = ("/v1/timeline",)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_odd_parameters_are_never_a_server_error(toy: Server, method: str, path: str) -> None:
    for odd in ODD:
        value = quote(odd, safe="")
        target = re.sub(r"\{[^}]*\}", value, path)
        for query in QUERIES:
            asked = f"{target}?{query.replace('{}', value)}" if query else target
            data = post_bytes(asked, b"{}") if method == "POST" else head(method, asked)
            reply = exchange(toy, data)
            assert reply is not None and reply.status < 500, asked
            if path in TAKES_QUERY and query:
                assert reply.status in (400, 414), asked
            if reply.status >= 400:
                assert len(reply.body) < 2048
                assert not re.search(rb"[\x00-\x1f\x7f]", reply.body)


def test_every_parameter_of_a_path_is_in_the_table() -> None:
    """A new one belongs among those that the test above fills in."""
    found = {name for _, path in ROUTES for name in re.findall(r"\{[^}]*\}", path)}
    assert found == {"{model:path}", "{request_id}"}
    assert not any("{" in path for path in ADMIN_POST)


@pytest.mark.parametrize("path", [*GET, *POST])
def test_r15_no_page_of_another_site_is_answered(toy: Server, path: str) -> None:
    """A preflight allows nothing; a name that was made to lead here is refused."""
    target = re.sub(r"\{[^}]*\}", "toy", path)
    wanted = ("Origin: https://evil.example", "Access-Control-Request-Method: POST")
    allowed = exchange(toy, head("OPTIONS", target, *wanted))
    assert allowed is not None and allowed.status == 405
    assert not any(name.startswith("access-control") for name in allowed.headers)
    method = "GET" if path in GET else "POST"
    rebound = exchange(toy, head(method, target, host="evil.example:8000"))
    assert rebound is not None and rebound.status == 403
    assert rebound.json()["error"]["code"] == "foreign_host"


def test_r15_what_a_page_can_send_without_permission_is_no_json(toy: Server) -> None:
    body = b'{"model": "toy", "prompt": "x", "max_tokens": 1}'
    for media in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        fields = (f"Content-Type: {media}", f"Content-Length: {len(body)}")
        reply = exchange(toy, head("POST", "/v1/completions", *fields) + body)
        assert reply is not None and reply.status == 415


def test_health_answers_under_any_name(toy: Server) -> None:
    for path in PUBLIC:
        reply = exchange(toy, head("GET", path, host="pod.cluster"))
        assert reply is not None and reply.status == 200


def test_r15_a_page_does_not_operate_the_server(toy_folder: Path) -> None:
    """The admin port on loopback without a key takes what curl sends, and nothing from a page."""
    with running_server(toy_folder, admin_port=0) as server:
        found = [re.search(r"admin routes at (\S+)", line) for line in server.lines]
        url = next(match[1] for match in found if match) + "/reset_prefix_cache"
        for page in (
            {"Origin": "https://evil.example"},
            {"Origin": "null", "Content-Type": "text/plain"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Host": "evil.example"},
        ):
            refused = httpx.post(url, headers=page, trust_env=False)
            assert refused.status_code == 403, page
        assert httpx.post(url, trust_env=False).json() == {"status": "reset"}
