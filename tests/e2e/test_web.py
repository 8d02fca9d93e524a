"""The page as a server sends it, and the routes that it reads."""

from __future__ import annotations

import gzip
import os
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx

from kvasir.serve.routes_web import POLICY
from kvasir.web.files import read_page
from tests.e2e.harness import Server, wait_until
from tests.e2e.test_keys import bearer, make

StartServer = Callable[..., AbstractContextManager[Server]]
HTML = {"accept": "text/html,application/xhtml+xml"}
TEXT = {"prompt": "some words", "max_tokens": 4, "temperature": 0}


def test_the_page_comes_whole_with_its_policy(toy: Server) -> None:
    index = toy.get("/ui/")
    assert index.status_code == 200
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    assert index.headers["content-encoding"] == "gzip"
    assert index.headers["content-security-policy"] == POLICY
    assert index.headers["cache-control"] == "no-cache"
    for name in re.findall(r'(?:src|href)="([^"#]+)"', index.text):
        file = toy.get(f"/ui/{name}")
        assert file.status_code == 200, name
        assert "immutable" in file.headers["cache-control"]
        assert file.headers["x-content-type-options"] == "nosniff"
        assert file.headers["content-security-policy"] == POLICY


def test_every_file_is_what_it_is_packed_or_not(toy: Server) -> None:
    page = read_page()
    for name, file in page.files.items():
        path = f"{toy.url}/ui/{page.version}/{name}"
        plain = toy.http.get(path, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.content == file.body
        assert gzip.decompress(file.packed) == file.body
        assert toy.http.get(path).content == file.body


def test_who_has_the_index_is_told_that_it_is_the_same(toy: Server) -> None:
    tag = toy.get("/ui/").headers["etag"]
    same = toy.http.get(toy.url + "/ui/", headers={"if-none-match": tag})
    assert (same.status_code, same.content) == (304, b"")
    assert toy.http.get(toy.url + "/ui/", headers={"if-none-match": '"x"'}).status_code == 200


def test_files_of_other_versions_and_places_are_not_there(toy: Server) -> None:
    version = toy.get("/ui/").headers["etag"].strip('"')
    for path in ("0000/app.js", f"{version}/nowhere.js", f"{version}/../files.py", f"{version}/"):
        assert toy.get(f"/ui/{path}").status_code == 404
    for raw in (f"/ui/{version}/%2e%2e/files.py", f"/ui/{version}/..%2ffiles.py"):
        assert toy.get(raw).status_code in (400, 404)


def test_browsers_are_led_to_it_and_programs_are_not(toy: Server) -> None:
    led = toy.http.get(toy.url + "/", headers=HTML)
    assert (led.status_code, led.headers["location"]) == (307, "ui/")
    assert toy.http.get(toy.url + "/ui", headers=HTML).headers["location"] == "ui/"
    assert toy.get("/").json()["server"] == "kvasir"
    assert toy.http.post(toy.url + "/ui/").status_code == 405


def test_files_are_public_and_data_are_not(server: StartServer) -> None:
    """Keys, and names that a foreign page could make lead here: no data without the one or by the
    other."""
    with server(api_key="secret") as own:
        assert own.get("/ui/").status_code == 200
        assert own.http.get(own.url + "/", headers=HTML).status_code == 307
        for path in ("/v1/page", "/v1/dashboard", "/v1/dashboard/history", "/v1/requests/x/why"):
            assert own.get(path).status_code == 401
            key = {"authorization": "Bearer secret"}
            foreign = own.http.get(own.url + path, headers={**key, "host": "evil.example"})
            assert foreign.status_code == 403
            site = own.http.get(own.url + path, headers={**key, "sec-fetch-site": "cross-site"})
            assert site.status_code == 403
        told = own.http.get(own.url + "/v1/page", headers={"authorization": "Bearer secret"})
        assert told.json()["scopes"] == ["inference", "metrics", "state"]


def test_without_the_page_nothing_of_it_is_there(server: StartServer) -> None:
    with server(web=False) as own:
        assert own.get("/ui/").status_code == 404
        assert own.http.get(own.url + "/", headers=HTML).json()["server"] == "kvasir"


def test_what_the_page_must_know(toy: Server) -> None:
    told = toy.get("/v1/page").json()
    fields = {field["name"]: field for field in told["fields"]}
    assert (fields["temperature"]["low"], fields["temperature"]["high"]) == (0, 100)
    assert fields["top_p"]["above_low"]
    assert fields["top_k"]["kind"] == "int"
    assert told["models"][0]["id"] == toy.model
    for name, field in fields.items():
        beyond = toy.post("/v1/completions", {**TEXT, name: field["high"] * 2 + 1})
        assert beyond.status_code == 400, name
        kept = field["low"] + (0.01 if field["above_low"] else 0)
        assert toy.post("/v1/completions", {**TEXT, name: kept}).status_code == 200, name
    assert toy.get("/v1/page?x=1").status_code == 400


def test_the_dashboard_says_what_metrics_say(toy: Server) -> None:
    body = toy.post("/v1/completions", {**TEXT, "n": 2}).json()
    assert body["usage"]["completion_tokens"] == 8
    time.sleep(0.6)
    told = toy.get("/v1/dashboard").json()
    hits, queries = toy.metrics(
        "kvasir_prefix_cache_hits_total", "kvasir_prefix_cache_queries_total"
    )
    assert (told["prefix_hits"], told["prefix_queries"]) == (hits, queries)
    assert told["kv"]["blocks"] == toy.metric("kvasir_kv_cache_blocks")
    assert told["finished"]["length"] == toy.metric(
        "kvasir_request_success_total", finished_reason="length"
    )
    assert told["windows"].keys() == {"60", "300", "3600"}
    assert told["windows"]["3600"]["ttft"]["count"] >= 1
    again = toy.get("/v1/dashboard").json()
    assert again["at"] == told["at"]  # one snapshot for all who watch
    history = toy.get("/v1/dashboard/history").json()
    assert len(history["at"]) == len(history["running"])


def test_requests_of_other_keys_are_counted_and_not_named(
    server: StartServer, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    alice, bob = (bearer(make(path, x, "inference", "metrics")) for x in ("alice", "bob"))
    with server(api_key_file=str(path), faults={"seconds": 0.05}) as own:
        asked = {**TEXT, "model": own.model, "max_tokens": 200, "ignore_eos": True, "stream": True}

        def ask(place: str, whose: dict[str, str]) -> httpx.Response:
            return httpx.get(own.url + place, headers=whose, trust_env=False)

        with own.http.stream(
            "POST", own.url + "/v1/completions", json=asked, headers=alice
        ) as answer:
            lines = answer.iter_lines()  # which ends the answer with itself
            found = re.search(r'"id":"([^"]+)"', next(x for x in lines if x))
            assert found is not None
            name = found[1]
            wait_until(lambda: bool(ask("/v1/dashboard", alice).json()["kv"]["requests"]))
            for whose, names, n_others in ((alice, [name], 0), (bob, [], 1)):
                told = ask("/v1/dashboard", whose)
                kv = told.json()["kv"]
                assert [row["id"] for row in kv["requests"]] == names
                assert kv["others"]["running"] == n_others
                assert (name in told.text) is bool(names)
            statuses = [ask(f"/v1/requests/{name}/why", x).status_code for x in (alice, bob)]
            assert statuses == [200, 404]


def test_why_an_answer_took_its_time(toy: Server) -> None:
    body = toy.post("/v1/completions", {**TEXT, "n": 2}).json()
    told = toy.get(f"/v1/requests/{body['id']}/why").json()
    assert (told["id"], len(told["choices"])) == (body["id"], 2)
    for choice in told["choices"]:
        assert choice["sentence"]
        parts = sum(part["seconds"] for part in choice["parts"])
        assert abs(parts - choice["seconds"]) <= 0.1 * choice["seconds"] + 0.01
    assert toy.get("/v1/requests/none/why").status_code == 404


def test_a_branch_goes_on_from_exactly_the_ids_before_it(toy: Server) -> None:
    """As the page branches: what was said behind a token is said again by who begins with it."""
    talk = {"messages": [{"role": "user", "content": "say something long"}], "temperature": 0}
    asked = {**talk, "max_tokens": 24, "return_token_ids": True, "ignore_eos": True}
    whole = toy.post("/v1/chat/completions", asked).json()
    prompt, ids = whole["prompt_token_ids"], whole["choices"][0]["token_ids"]
    for at in (1, 11, 23):
        more = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
        body = {**more, "prompt": prompt + ids[:at], "max_tokens": len(ids) - at}
        rest = toy.post("/v1/completions", body).json()["choices"][0]
        assert rest["token_ids"] == ids[at:]


def why_of(server: Server, response_id: str) -> Any:
    (choice,) = server.get(f"/v1/requests/{response_id}/why").json()["choices"]
    return choice


def test_causes_that_are_made_are_those_that_are_named(server: StartServer) -> None:
    """A place that another had, and an engine that died, with their seconds."""
    with server(faults={"seconds": 0.02}) as own:
        body = {**TEXT, "max_tokens": 60, "ignore_eos": True}
        with ThreadPoolExecutor() as pool:
            first = pool.submit(own.post, "/v1/completions", {**body, "n": 32})
            time.sleep(0.3)
            second = own.post("/v1/completions", {**body, "max_tokens": 2}).json()
            waited = why_of(own, second["id"])
            assert waited["cause"] == "slots", waited
            slots = sum(x["seconds"] for x in waited["parts"] if x["cause"] == "slots")
            assert slots > 0.5 * waited["seconds"]
            assert "--max-num-seqs" in waited["remedy"]
            told = own.get(f"/v1/requests/{first.result().json()['id']}/why").json()
            assert len(told["choices"]) == 32
            causes = [choice["cause"] for choice in told["choices"] if "cause" in choice]
            assert len(causes) == 4 and not {"slots", "restart"} & set(causes)
            third = pool.submit(own.post, "/v1/completions", body)
            time.sleep(0.4)
            os.kill(own.engine_pid(), signal.SIGKILL)
            restarted = why_of(own, third.result().json()["id"])
            assert restarted["cause"] == "restart", restarted


def test_what_prompts_have_in_common_is_told_to_their_key(
    server: StartServer, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    alice, bob = (bearer(make(path, x, "inference", "metrics")) for x in ("alice", "bob"))
    begin = list(range(10, 60))
    with server(api_key_file=str(path)) as own:
        for last in (1, 2):
            asked = {"model": own.model, "prompt": [*begin, last], "max_tokens": 1}
            own.http.post(f"{own.url}/v1/completions", json=asked, headers=alice).raise_for_status()

        def told(whose: dict[str, str]) -> dict[str, Any]:
            answer = own.http.get(f"{own.url}/v1/dashboard/prefixes", headers=whose)
            return dict(answer.raise_for_status().json())

        (shared,) = told(alice)["prefixes"]
        assert (shared["tokens"], shared["prompts"], shared["parent"]) == (50, 2, -1)
        assert shared["hits"] in (0, 1) and shared["text"]
        assert (told(bob)["prefixes"], told(bob)["prompts"], told(bob)["others"]) == ([], 0, 2)
