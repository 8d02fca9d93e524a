"""Ollama's routes that change what models there are: on the admin plane, over the library."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvasir.library.links import link
from kvasir.library.shelf import Shelf
from tests import tiny
from tests.e2e.harness import running_server
from tests.e2e.test_admin import _admin_url
from tests.gguf_writer import write_gguf
from tests.hub_standin import StandIn, serving
from tests.tiny import write_gguf_model

REPO = "org/tiny-GGUF"
KEY = {"Authorization": "Bearer operator"}


def test_models_come_and_go(
    toy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVASIR_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    data = write_gguf_model(tiny.llama(), tmp_path / "x.gguf", "Q8_0").read_bytes()
    files = {REPO: {"tiny.Q8_0.gguf": data}}
    with serving(StandIn(files)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with running_server(toy_folder, admin_port=0, admin_key="operator") as server:
            url = _admin_url(server)

            def ask(method: str, path: str, body: dict[str, Any]) -> httpx.Response:
                return httpx.request(
                    method, url + path, json=body, headers=KEY, trust_env=False, timeout=60
                )

            assert server.post("/api/pull", {"model": REPO}).status_code == 404
            lines = [
                json.loads(x) for x in ask("POST", "/api/pull", {"model": REPO}).text.splitlines()
            ]
            assert lines[0] == {"status": "pulling manifest"}
            assert lines[-1] == {"status": "success"}
            name = f"{REPO}:Q8_0"
            assert Shelf().is_whole(Shelf().known(name))
            whole = ask("POST", "/api/pull", {"model": REPO, "stream": False})
            assert (whole.status_code, whole.json()) == (200, {"status": "success"})
            bad = ask("POST", "/api/pull", {"model": "org/none", "stream": False})
            assert bad.status_code == 500 and "has no org/none" in bad.json()["error"]
            assert ask("POST", "/api/pull", {"model": "-x"}).status_code == 400
            copied = {"source": name, "destination": "mine"}
            assert ask("POST", "/api/copy", copied).status_code == 200
            assert ask("POST", "/api/copy", copied).status_code == 400
            said = {"model": "brief", "from": "mine", "system": "be brief", "stream": False}
            assert ask("POST", "/api/create", said).json() == {"status": "success"}
            assert Shelf().known("brief").defaults.system == "be brief"
            refused = ask("POST", "/api/create", {**said, "quantize": "q4_0"})
            assert refused.status_code == 400 and "quantize" in refused.json()["error"]
            for wrong in (
                {"parameters": {"num_ctx": "long"}},
                {"messages": [{"role": "tool", "content": "x"}]},
            ):
                assert ask("POST", "/api/create", {**said, **wrong}).status_code == 400
            assert Shelf().known("brief").defaults.system == "be brief"
            files[REPO]["tiny.Q4_0.gguf"] = data + bytes(8)
            other = {"model": f"{REPO}:Q4_0", "stream": False}
            assert ask("POST", "/api/pull", other).json() == {"status": "success"}
            assert ask("POST", "/api/create", {**said, **other}).json() == {"status": "success"}
            assert Shelf().known(f"{REPO}:Q4_0").defaults.system == "be brief"
            assert not Shelf().orphans()
            for each in (f"{REPO}:Q4_0", name, "mine", "brief"):
                assert ask("DELETE", "/api/delete", {"model": each}).status_code == 200
            assert ask("DELETE", "/api/delete", {"model": "mine"}).status_code == 404
            assert not Shelf().models() and not Shelf().orphans()


def test_a_pull_ends_with_its_client(
    toy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came so far stays, and the next one goes on."""
    monkeypatch.setenv("KVASIR_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    metadata, tensors = tiny.gguf_parts(tiny.llama(), "Q8_0")
    padded = {**metadata, "tiny.padding": "x" * (12 << 20)}
    write_gguf(tmp_path / "x.gguf", padded, tensors)
    data = (tmp_path / "x.gguf").read_bytes()
    with serving(StandIn({REPO: {"tiny.Q8_0.gguf": data}})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with running_server(toy_folder, admin_port=0, admin_key="operator") as server:
            url = _admin_url(server) + "/api/pull"
            body = {"model": REPO}
            hub.faults.pause = 0.01
            asked = {"json": body, "headers": KEY, "trust_env": False, "timeout": 60}
            with httpx.stream("POST", url, **asked) as answer:
                lines = answer.iter_lines()
                assert json.loads(next(lines)) == {"status": "pulling manifest"}
                assert "completed" in json.loads(next(lines))
                hub.faults.pause = 0.1
            time.sleep(1.0)
            sent = hub.sent
            time.sleep(1.0)
            assert hub.sent - sent < 1 << 20
            assert not Shelf().is_whole(Shelf().known(f"{REPO}:Q8_0"))
            hub.faults.pause = 0.0
            again = httpx.post(url, **asked)
            assert json.loads(again.text.splitlines()[-1]) == {"status": "success"}
            assert Shelf().is_whole(Shelf().known(f"{REPO}:Q8_0"))


def test_what_is_served_keeps_its_files(
    toy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that is started again opens them again."""
    monkeypatch.setenv("KVASIR_CACHE", str(tmp_path / "cache"))
    write_gguf_model(tiny.llama(), tmp_path / "x.gguf", "Q8_0")
    shelf = Shelf()
    path = shelf.path(link(shelf, toy_folder, "mine"))
    with running_server(path, admin_port=0, admin_key="operator") as server:
        url, asked = _admin_url(server), {"headers": KEY, "trust_env": False, "timeout": 60}

        def delete(name: str) -> httpx.Response:
            body = {"model": name}
            return httpx.request("DELETE", url + "/api/delete", json=body, **asked)

        def create(body: dict[str, Any]) -> httpx.Response:
            return httpx.post(url + "/api/create", json=body, **asked)

        refused = delete("mine")
        assert refused.status_code == 409 and "mine is served" in refused.json()["error"]
        assert path.exists()
        shelf.copy("mine", "other")
        link(shelf, tmp_path / "x.gguf", "third")
        make = {"from": "third", "stream": False}
        assert create({**make, "model": "mine"}).status_code == 200 and path.exists()
        assert create({**make, "model": "other"}).status_code == 409 and path.exists()
        assert create({"model": "other", "from": "other"}).status_code == 200
        assert delete("mine").status_code == 200 and path.exists()
        assert delete("other").status_code == 409
    assert shelf.is_whole(shelf.known("other"))
