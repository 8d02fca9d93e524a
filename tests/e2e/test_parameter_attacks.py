"""R21 to R40 of the robustness list, while two streams sing: a bad parameter is a 400 that names it
in whatever dialect it is sent, and hurts nobody but its sender."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest

from kvasir.serve.app import ROUTES
from kvasir.serve.dialects.ollama import OllamaOptions
from kvasir.serve.dialects.tgi import TgiParameters
from kvasir.serve.openapi import PARAMETER
from kvasir.serve.protocol.sampling import SamplingFields
from tests.e2e.harness import (
    MODEL,
    Server,
    canaries,
    exchange,
    post_head,
    running_server,
)
from tests.e2e.test_document import ASKED, NEEDS_MODEL
from tests.e2e.test_requests import CHAT, TEXT, USER, answered, cached_tokens

HUGE = (2**63, -(2**63) - 1, 2**64, 10**400)
NO_NUMBERS = ("NaN", "Infinity", "-Infinity")
"""What some write into JSON; it is none then."""
BAD: dict[str, dict[str, tuple[Any, ...]]] = {
    "r21": {"n": (0, -1, 10**9, *HUGE)},
    "r22": {"max_tokens": (0, -1, *HUGE, 1.5)},
    "r23": {"temperature": (-1, -1e-9, 1e308, 10**400)},
    "r24": {"top_p": (0, -0.1, 1.1, 1e308)},
    "r25": {"top_k": (-5, 10**9, *HUGE, 0.5)},
    "r27": {
        "logit_bias": (
            {"256": 1},
            {"-1": 1},
            {str(2**64): 1},
            {"1": 1e9},
            {"1": "1"},
            {str(i): 0 for i in range(60_000)},
        )
    },
    "r28": {"stop": ("", [""], ["a"] * 10_000, "a" * 10**6, ["a", 1], 5)},
    "r29": {"allowed_token_ids": ([], [256], [-1]), "bad_words": ([""], ["a" * 257], "a")},
    "r30": {"seed": (1.5, 1e30, "7", True, 2**64, -(2**63) - 1, 10**400)},
    "r31": {"priority": (2**63, -(2**63), 1.5, "high", True)},
    "r32": {
        "repetition_penalty": (0, -1, 101, 1e308),
        "presence_penalty": (-2.1, 2.1, 1e308),
        "frequency_penalty": (-2.1, 2.1, -1e308, "a"),
    },
    "r33": {"truncate_prompt_tokens": (0, -1, -(2**63), 4097, *HUGE)},
    "r40": {"cache_salt": ("", "a" * 257, 7, ["a"], {"a": 1}, True)},
}
"""Values of each field, by the case of the list."""
NUMBERS = tuple(
    name for case in ("r22", "r23", "r24", "r25", "r30", "r31", "r32", "r33") for name in BAD[case]
)
LOWEST = (-3, -(2**63), -(2**64))
MEANT = {
    "keep_alive": LOWEST,
    "n_predict": LOWEST,
    "num_predict": LOWEST,
    "priority": (-3,),
    "seed": (-3, -(2**63)),
}
"""Negative numbers that say something, by the field: for ever, without end, earlier, a seed."""
NESTED: dict[str, tuple[str, type[msgspec.Struct]]] = {
    "/api/generate": ("options", OllamaOptions),
    "/api/chat": ("options", OllamaOptions),
    "/generate": ("parameters", TgiParameters),
    "/v2/models/{model}/generate": ("parameters", SamplingFields),
}
"""Where parameters lie in an object of the body, by path."""


class Field(NamedTuple):
    """A number that a body may hold: whole or not."""

    path: str
    inside: str
    """The object of the body that it lies in; "" for the body itself."""
    name: str
    is_whole: bool


@pytest.fixture(scope="module", params=["fake", "native"])
def patient(request: pytest.FixtureRequest, toy_folder: Path) -> Iterator[Server]:
    """A server on either executor that waits for heads: what is sent keeps this process busy."""
    with running_server(toy_folder, executor=request.param, max_body_bytes=2**20) as server:
        yield server


@pytest.fixture
def calm(patient: Server) -> Iterator[Server]:
    """With canaries singing during the test."""
    with canaries(patient):
        yield patient


def send(server: Server, path: str, body: bytes) -> httpx.Response:
    headers = {"content-type": "application/json"}
    return server.http.post(server.url + path, content=body, headers=headers)


def with_field(path: str, field: str, value: str) -> bytes:
    """A good request with one more field, whose value is JSON, or not even that."""
    basis: dict[str, Any] = {"model": MODEL, "max_tokens": 5}
    basis |= {"prompt": "x"} if path == TEXT else {"messages": [USER]}
    basis.pop(field, None)
    return f'{json.dumps(basis)[:-1]}, "{field}": {value}}}'.encode()


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_r21_to_r40_bad_parameters(calm: Server, path: str) -> None:
    for fields in BAD.values():
        for field, values in fields.items():
            for value in values:
                reply = send(calm, path, with_field(path, field, json.dumps(value)))
                shown = f"{field} = {str(value)[:80]}: {reply.text[:200]}"
                assert reply.status_code == 400, shown
                error = reply.json()["error"]
                assert error["type"] == "invalid_request_error", shown
                assert field in f"{error['param']} {error['message']}", shown
                assert len(error["message"]) < 400, shown


def test_r27_a_million_biases(calm: Server) -> None:
    """More than a body may hold: the bound of this server is a megabyte."""
    n_bytes = sum(len(f'"{i}":0,') for i in range(10**6))
    begin = with_field(TEXT, "logit_bias", "{")[: 2**10]
    reply = exchange(calm, post_head(TEXT, n_bytes) + begin)
    assert reply is not None and reply.status == 413


def test_r32_what_is_no_number(calm: Server) -> None:
    for field in NUMBERS:
        for value in NO_NUMBERS:
            reply = send(calm, TEXT, with_field(TEXT, field, value))
            assert reply.status_code == 400, (field, value)
            assert reply.json()["error"]["type"] == "invalid_request_error"


def numeric_fields() -> list[Field]:
    """Of every type that a request is read into, at one path that reads it."""
    asked = dict.fromkeys(path for path, _ in ASKED if path not in NEEDS_MODEL)
    found: dict[type[msgspec.Struct], list[Field]] = {}
    for route in ROUTES:
        path = PARAMETER.sub(r"{\1}", route.path)
        if route.request is not None and path in asked:
            found.setdefault(route.request, list(fields_of(path, "", route.request)))
    inner = [fields_of(path, name, kind) for path, (name, kind) in NESTED.items()]
    return [field for fields in (*found.values(), *inner) for field in fields]


def fields_of(path: str, inside: str, kind: type[msgspec.Struct]) -> Iterator[Field]:
    schema = msgspec.json.schema(kind)
    for name, told in schema["$defs"][kind.__name__]["properties"].items():
        kinds = {each.get("type") for each in (told, *told.get("anyOf", ()))}
        if kinds & {"integer", "number"}:
            yield Field(path, inside, name, "number" not in kinds)


def basis_of(path: str) -> dict[str, Any]:
    body = next(body for asked, body in ASKED if asked == path)
    return body if "{model}" in path else {"model": MODEL, **body}


def test_r34_negative_numbers_in_every_integer_field(calm: Server) -> None:
    """And numbers without measure in every other; of all dialects."""
    fields = numeric_fields()
    names = {field.name for field in fields}
    assert {"n", "max_output_tokens", "num_ctx", "max_new_tokens", "n_probs", "top_n"} <= names
    for path, inside, name, is_whole in fields:
        basis = basis_of(path)
        for value in LOWEST if is_whole else (-1e308, 1e308, -(2**64)):
            if value in MEANT.get(name, ()):
                continue
            sent = {name: value}
            more = {inside: {**basis.get(inside, {}), **sent}} if inside else sent
            body = json.dumps({**basis, **more}).encode()
            reply = send(calm, path.replace("{model}", MODEL), body)
            assert reply.status_code == 400, (path, name, value, reply.text)
            assert name in reply.text, (path, name, value, reply.text)


SALTS = (
    "\x00",
    "a\x00b",
    "a\r\nX: y",
    "🙂\u200d🙂",
    "\u202e",
    "%00",
    "../../x",
    "'\"\\",
    "é" * 256,
)


def test_r40_odd_salts_are_salts_like_any_other(calm: Server) -> None:
    """Each is its own, whatever is in it; the answer does not depend on any."""
    body = {"prompt": "of more than sixteen bytes, asked with salts", "max_tokens": 4, "seed": 1}
    plain = answered(calm, TEXT, body)["choices"]
    for salt in (*SALTS, "a", "é"):
        first, second = (answered(calm, TEXT, {**body, "cache_salt": salt}) for _ in range(2))
        assert first["choices"] == second["choices"] == plain, repr(salt)
        assert cached_tokens(first) == 0 and cached_tokens(second) >= 16, repr(salt)
    reply = send(calm, TEXT, with_field(TEXT, "cache_salt", '"\\ud800"'))
    assert reply.status_code == 400
