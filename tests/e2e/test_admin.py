"""The admin port: what only the operator may do, on a listener and with a key of its own."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from kvasir.config.serving import ServeOptions
from kvasir.core.errors import ConfigError
from kvasir.serve.listen import open_admin_listener
from tests.e2e.harness import Server, running_server

PROMPT = list(range(2, 66))
RESET = "/reset_prefix_cache"


def _cached(server: Server) -> int:
    answer = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}).json()
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def _admin_url(server: Server) -> str:
    found = [re.search(r"admin routes at (\S+)", line) for line in server.lines]
    return next(match[1] for match in found if match)


def test_a_reset_forgets_what_was_computed(toy_folder: Path) -> None:
    with running_server(toy_folder, admin_port=0, admin_key="operator") as server:
        admin = _admin_url(server)
        assert _cached(server) == 0
        assert _cached(server) == len(PROMPT) - 1
        refused = httpx.post(admin + RESET, trust_env=False)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert _cached(server) == len(PROMPT) - 1
        key = {"Authorization": "Bearer operator"}
        done = httpx.post(admin + RESET, headers=key, trust_env=False)
        assert (done.status_code, done.json()) == (200, {"status": "reset"})
        flushed = httpx.post(admin + "/flush_cache", headers=key, trust_env=False)
        assert flushed.json() == done.json()
        assert _cached(server) == 0
        images = httpx.post(admin + "/reset_mm_cache", headers=key, trust_env=False)
        assert (images.status_code, images.json()) == (200, {"status": "reset"})
        assert _cached(server) == len(PROMPT) - 1
        assert httpx.get(admin + RESET, headers=key, trust_env=False).status_code == 405
        assert httpx.get(admin + "/metrics", headers=key, trust_env=False).status_code == 404


def test_clients_have_no_admin_routes(toy_folder: Path) -> None:
    with running_server(toy_folder, admin_port=0, admin_key="operator") as server:
        assert server.post(RESET, {}).status_code == 404


def test_an_open_admin_port_is_refused() -> None:
    """On loopback too: any process and any web page of this machine reaches it."""
    for host in ("0.0.0.0", "127.0.0.1"):
        options = ServeOptions(admin_port=0, admin_host=host)
        with pytest.raises(ConfigError, match=rf"every process that reaches {host}: set --admin-"):
            open_admin_listener(options)


def test_a_pinned_prefix_outlives_eviction(toy_folder: Path) -> None:
    small = {"max_model_len": 128, "max_num_seqs": 1, "kv_memory": "16KiB"}
    flood = {"max_tokens": 1, "prompt": list(range(10, 74))}
    cached = []
    for pinned in ({}, {"cache_ttl": 600}):
        with running_server(toy_folder, engine=small) as server:
            server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1, **pinned})
            for i in range(4):
                server.post("/v1/completions", {**flood, "cache_salt": f"other {i}"})
            cached.append(_cached(server))
            refused = server.post("/v1/completions", {"prompt": PROMPT, "cache_ttl": 10**6})
            assert refused.status_code == 400
    assert cached == [0, len(PROMPT) - 1]
