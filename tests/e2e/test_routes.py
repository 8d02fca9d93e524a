"""Every route with every kind of odd query and path, and what web pages may ask (R15)."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from kvasir.serve import app
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
ROUTES = [(route.method, route.path) for route in app.ROUTES]
PUBLIC = [route.path for route in app.ROUTES if route.access == "public"]
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
    assert found == {
        "{model:path}",
        "{model}",
        "{request_id}",
        "{file_id}",
        "{batch_id}",
        "{response_id}",
        "{completion_id}",
        "{conversation_id}",
        "{item_id}",
    }
    admin = {name for route in app.ADMIN_ROUTES for name in re.findall(r"\{[^}]*\}", route.path)}
    assert admin == {"{key_id}"}


@pytest.mark.parametrize(("method", "path"), [x for x in ROUTES if x[1] not in PUBLIC])
def test_r15_no_page_of_another_site_is_answered(toy: Server, method: str, path: str) -> None:
    """A preflight allows nothing; a name that was made to lead here is refused."""
    target = re.sub(r"\{[^}]*\}", "toy", path)
    wanted = ("Origin: https://evil.example", "Access-Control-Request-Method: POST")
    allowed = exchange(toy, head("OPTIONS", target, *wanted))
    assert allowed is not None and allowed.status == 403
    assert not any(name.startswith("access-control") for name in allowed.headers)
    rebound = exchange(toy, head(method, target, host="evil.example:8000"))
    assert rebound is not None and rebound.status == 403
    assert b"'evil.example' are not taken" in rebound.body


def test_r15_what_a_page_can_send_without_permission_is_no_json(toy: Server) -> None:
    body = b'{"model": "toy", "prompt": "x", "max_tokens": 1}'
    for media in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        fields = (f"Content-Type: {media}", f"Content-Length: {len(body)}")
        reply = exchange(toy, head("POST", "/v1/completions", *fields) + body)
        assert reply is not None and reply.status == 415


def test_a_route_that_is_not_here_is_no_response(toy: Server) -> None:
    for method in ("POST", "GET"):
        asked = head(method, "/v1/responses/compact", "Content-Length: 0")
        reply = exchange(toy, asked)
        assert reply is not None and reply.status == 404, method


def test_health_answers_under_any_name(toy: Server) -> None:
    for path in PUBLIC:
        reply = exchange(toy, head("GET", path, host="pod.cluster"))
        assert reply is not None and reply.status == 200


def test_r15_a_page_does_not_operate_the_server(toy_folder: Path) -> None:
    """Whatever a page sends: not even the key opens the admin port to it."""
    key = {"Authorization": "Bearer operator"}
    with running_server(toy_folder, admin_port=0, admin_key="operator") as server:
        found = [re.search(r"admin routes at (\S+)", line) for line in server.lines]
        url = next(match[1] for match in found if match) + "/reset_prefix_cache"
        for page in (
            {"Origin": "https://evil.example"},
            {"Origin": "null", "Content-Type": "text/plain"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Host": "evil.example"},
        ):
            refused = httpx.post(url, headers={**page, **key}, trust_env=False)
            assert refused.status_code == 403, page
        done = httpx.post(url, headers=key, trust_env=False)
        assert done.json() == {"status": "reset"}
