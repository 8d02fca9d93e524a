"""Cached prefixes are found with the key and the salt that they were made with, and no other."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from kvasir.serve.admission import AdmissionLimits
from kvasir.serve.dialects.completions import COMPLETIONS
from kvasir.serve.jobs import Server, resolve_request
from kvasir.serve.keys.caller import ANYONE, Caller
from kvasir.serve.salt import block_salt
from kvasir.serve.slices import Slices
from kvasir.serve.trial import AskedCompiler
from tests.fake_run import INFO, idle_compiler, toy_text

ALICE, BOB = (Caller(name, frozenset(("inference",))) for name in ("alice", "bob"))


def test_r104_no_text_is_anothers_salt() -> None:
    pairs = [("", ""), ("", "a"), ("a", ""), ("a", "a"), ("a", "b"), ("b", "a"), ("ab", "")]
    salts = [block_salt(*pair) for pair in pairs]
    assert salts[0] == "" and len(set(salts)) == len(pairs)
    again = [block_salt(key_id, salt) for key_id in ("", "a", "c") for salt in salts[1:]]
    assert not set(again) & set(salts)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    text = toy_text(tmp_path_factory.mktemp("salt"))
    limits = AdmissionLimits(128, 10_000)
    return Server(text, INFO, limits, Slices(), lambda: 1, 10**6, AskedCompiler(idle_compiler()))


def salt_of(server: Server, cache_salt: str | None, **changes: object) -> str:
    body = {"model": "toy", "prompt": [5], "cache_salt": cache_salt, "user": "u"}
    asked = COMPLETIONS.read(body, strict=True)
    found = asyncio.run(resolve_request(asked, replace(server, **changes), "toy", 0.0))  # type: ignore[arg-type]
    return found.job.context.salt


def test_a_salt_is_the_keys_own_unless_keys_share(server: Server) -> None:
    callers = (ANYONE, ALICE, BOB)
    own = [salt_of(server, salt, caller=c) for c in callers for salt in (None, "a", "b")]
    assert len(set(own)) == 9
    shared = {salt_of(server, "a", caller=c, shares_prefixes=True) for c in callers}
    assert shared == {salt_of(server, "a", caller=ANYONE)}


def test_the_tenant_is_the_key(server: Server) -> None:
    def tenant(caller: Caller, user: str | None) -> str:
        body = {"model": "toy", "prompt": [5], "user": user}
        asked = COMPLETIONS.read(body, strict=True)
        found = asyncio.run(resolve_request(asked, replace(server, caller=caller), "toy", 0.0))
        return found.job.standing.tenant

    assert {tenant(ALICE, user) for user in (None, "u", "v", "bob")} == {"alice"}
    assert [tenant(ANYONE, user) for user in (None, "u")] == ["", "u"]
