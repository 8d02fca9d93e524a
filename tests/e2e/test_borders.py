"""Every registered route, asked with every kind of key, at every address, from every kind of page:
what comes back follows from what the route asks for (R101, R103)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvasir.serve.app import ADMIN_ROUTES, ROUTES, RouteSpec
from kvasir.serve.keys.key import SCOPES, Key, create
from kvasir.serve.keys.keyfile import KeyFile
from tests.e2e.harness import PATIENCE, Server, running_server
from tests.forms import IS_LONG

KEYS: dict[str, tuple[str, ...]] = {
    "inference": ("inference",),
    "state": ("state",),
    "metrics": ("metrics",),
    "admin": ("admin",),
    "every scope": SCOPES,
    "another": SCOPES,
    "expired": SCOPES,
}
CREDENTIALS = ("none", "wrong", *KEYS)
PAGES: dict[str, dict[str, str]] = {
    "plain": {},
    "own": {"sec-fetch-site": "same-origin"},
    "foreign origin": {"origin": "https://evil.example"},
    "foreign site": {"sec-fetch-site": "cross-site"},
    "foreign host": {"host": "evil.example"},
}
ASKED = [
    (credential, page)
    for credential in CREDENTIALS
    for page in PAGES
    if IS_LONG or page == "plain" or credential in ("none", "every scope")
]
"""Every credential from a plain page, every page with none and with the best; in the long form
every page with every credential."""
PLANES = ("port", "admin port", "admin socket")
TEXT = "/v1/completions"


@dataclass
class World:
    """A server with all three planes."""

    server: Server
    clients: dict[str, httpx.Client]
    secrets: dict[str, str]

    def ask(
        self,
        plane: str,
        method: str,
        path: str,
        credential: str,
        page: str = "plain",
        said: dict[str, Any] | None = None,
    ) -> httpx.Response:
        headers = dict(PAGES[page])
        if credential != "none":
            headers["authorization"] = f"Bearer {self.secrets.get(credential, 'wrong')}"
        body = (said or {}) if method in ("POST", "PUT", "PATCH") else None
        return self.clients[plane].request(method, path, json=body, headers=headers)


@pytest.fixture(scope="module")
def world(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("borders")
    file, socket, secrets = KeyFile(folder / "keys"), folder / "admin", {}
    for name, scopes in KEYS.items():
        key_id = name.replace(" ", "-")
        expires = int(time.time()) if name == "expired" else None
        key = Key(key_id, scopes, (), 0, expires)  # type: ignore[arg-type]
        secrets[name] = file.edit(lambda keys, key=key: create(keys, key))
    options = {"api_key_file": str(file.path), "admin_port": 0, "admin_uds": str(socket)}
    with running_server(toy_folder, **options) as server, ExitStack() as stack:
        found = [re.search(r"admin routes at (http\S+)", line) for line in server.lines]
        transport = httpx.HTTPTransport(uds=str(socket))
        patient: Any = {"trust_env": False, "timeout": PATIENCE}  # engines are started
        clients = {
            "port": httpx.Client(base_url=server.url, **patient),
            "admin port": httpx.Client(base_url=next(x[1] for x in found if x), **patient),
            "admin socket": httpx.Client(
                base_url="http://localhost", transport=transport, **patient
            ),
        }
        for client in clients.values():
            stack.enter_context(client)
        yield World(server, clients, secrets)


SAYS = {
    "foreign host": (403, "requests to the host 'evil.example' are not taken"),
    "foreign origin": (403, "comes from another site's page"),
    "foreign site": (403, "comes from another site's page"),
    "none": (401, "a valid API key is needed"),
    "wrong": (401, "a valid API key is needed"),
    "expired": (401, "this API key has expired"),
    "scope": (403, "it needs the scope"),
    "elsewhere": (404, "there is no route"),
}
"""What the borders answer, in the words of whichever dialect."""
LET_IN = "let in"
COMPUTES = ("/v1/batches",)
"""Routes of the state whose requests are computed: they need both scopes."""
UNDONE = {"/sleep": "/wake_up", "/pause": "/resume"}
"""What routes do that others would wait for, and what ends it."""


def expected(route: RouteSpec, plane: str, credential: str, page: str) -> str:
    """One of ``SAYS``, or that the handler answers."""
    is_there = (route in ROUTES) == (plane == "port")
    if is_there and route.access == "public":
        return LET_IN
    if page in SAYS:
        return page
    if plane != "admin socket" and credential in SAYS:
        return credential
    if not is_there:
        return "elsewhere"
    if plane != "admin socket" and route.access not in ("any", *KEYS[credential]):
        return "scope"
    if route.path in COMPUTES and "inference" not in KEYS[credential] and route.method == "POST":
        return "scope"
    return LET_IN


def check(reply: httpx.Response, wanted: str) -> None:
    if wanted == LET_IN:
        said = [name for name, (status, text) in SAYS.items() if text in reply.text]
        assert not said and reply.status_code not in (401, 403), reply.text[:200]
    else:
        status, text = SAYS[wanted]
        assert reply.status_code == status and text in reply.text, reply.text[:200]
    assert reply.status_code < 500, reply.text[:200]
    assert not [x for x in reply.headers if x.startswith("access-control")]
    if reply.status_code == 401:
        assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("route", [*ROUTES, *ADMIN_ROUTES], ids=lambda x: f"{x.method} {x.path}")
def test_r101_the_table(world: World, route: RouteSpec, plane: str) -> None:
    path = re.sub(r"\{[^}]*\}", "none", route.path)
    for credential, page in ASKED:
        reply = world.ask(plane, route.method, path, credential, page)
        try:
            check(reply, expected(route, plane, credential, page))
        except AssertionError as error:
            raise AssertionError(f"{credential}, {page}: {error}") from None
    if route.path in UNDONE:
        world.ask("admin socket", "POST", UNDONE[route.path], "none")


@pytest.mark.parametrize("plane", PLANES)
def test_no_method_and_no_spelling_goes_around_the_table(world: World, plane: str) -> None:
    methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
    for route in (*ROUTES, *ADMIN_ROUTES):
        if route.access == "public":
            continue
        path = re.sub(r"\{[^}]*\}", "none", route.path)
        spelled = (
            path,
            path + "/",
            "/" + path,
            path.upper(),
            path.replace("/", "/./"),
            path + "%00",
        )
        for method in methods:
            for form in spelled if IS_LONG or method in ("GET", "POST") else spelled[:1]:
                status = world.ask(plane, method, form, "none").status_code
                if plane == "admin socket":
                    assert status < 500
                else:
                    assert status in (400, 401), (method, form)


# What is another's


def a_completion(world: World, credential: str) -> str:
    secret = world.secrets[credential]
    headers = {"authorization": f"Bearer {secret}"}
    body = {"prompt": [5, 6], "max_tokens": 1}
    return str(world.server.post(TEXT, body, **headers).json()["id"])


def a_file(world: World, credential: str) -> str:
    headers = {"authorization": f"Bearer {world.secrets[credential]}"}
    form = {"files": {"file": ("a.jsonl", b"{}\n")}, "data": {"purpose": "user_data"}}
    return str(world.clients["port"].post("/v1/files", headers=headers, **form).json()["id"])


def a_batch(world: World, credential: str) -> str:
    """Of so many lines that it does not end before it is asked for."""
    headers = {"authorization": f"Bearer {world.secrets[credential]}"}
    line = '{"custom_id": "%d", "method": "POST", "url": "/v1/completions", "body": %s}'
    body = '{"model": "toy", "prompt": [5, 6], "max_tokens": 4}'
    data = "\n".join(line % (i, body) for i in range(5_000)).encode()
    form = {"files": {"file": ("a.jsonl", data)}, "data": {"purpose": "batch"}}
    port = world.clients["port"]
    file = port.post("/v1/files", headers=headers, **form).json()["id"]
    asked = {"input_file_id": file, "endpoint": TEXT, "completion_window": "24h"}
    return str(port.post("/v1/batches", headers=headers, json=asked).json()["id"])


def a_response(world: World, credential: str) -> str:
    headers = {"authorization": f"Bearer {world.secrets[credential]}"}
    body = {"input": "a", "background": True, "max_output_tokens": 1}
    return str(world.server.post("/v1/responses", body, **headers).json()["id"])


def a_chat(world: World, credential: str) -> str:
    headers = {"authorization": f"Bearer {world.secrets[credential]}"}
    talk = [{"role": "user", "content": "a"}]
    body = {"messages": talk, "store": True, "max_tokens": 1}
    return str(world.server.post("/v1/chat/completions", body, **headers).json()["id"])


def a_conversation(world: World, credential: str) -> str:
    headers = {"authorization": f"Bearer {world.secrets[credential]}"}
    port = world.clients["port"]
    return str(port.post("/v1/conversations", headers=headers, json={}).json()["id"])


def an_item(world: World, credential: str, conversation: str) -> str:
    headers = {"authorization": f"Bearer {world.secrets[credential]}"}
    items = {"items": [{"role": "user", "content": "a"}]}
    path = f"/v1/conversations/{conversation}/items"
    reply = world.clients["port"].post(path, headers=headers, json=items)
    return str(reply.json()["data"][0]["id"])


MADE: dict[str, Callable[[World, str], str]] = {
    "request_id": a_completion,
    "file_id": a_file,
    "batch_id": a_batch,
    "response_id": a_response,
    "completion_id": a_chat,
    "conversation_id": a_conversation,
}
"""Per parameter of a path, the first: makes what it names with a key's credential."""
NO_OWNER = {"model", "model:path", "key_id"}
INNER: dict[str, Callable[[World, str, str], str]] = {"item_id": an_item}
"""The same for what lies in what is named before it."""
SAID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions/{completion_id}": {"metadata": {"a": "b"}},
    "/v1/conversations/{conversation_id}": {"metadata": {"a": "b"}},
    "/v1/conversations/{conversation_id}/items": {"items": [{"role": "user", "content": "a"}]},
}
"""Bodies of routes that take no empty one."""


def test_whatever_a_path_names_has_an_owner() -> None:
    named = {
        name
        for route in (*ROUTES, *ADMIN_ROUTES)
        for name in re.findall(r"\{([^}]*)\}", route.path)
    }
    assert named == {*MADE, *INNER, *NO_OWNER}


@pytest.mark.parametrize(
    "route", [x for x in ROUTES if re.search("|".join(MADE), x.path)], ids=lambda x: x.path
)
def test_what_is_another_keys_is_not_there(world: World, route: RouteSpec) -> None:
    """No answer says that it is: it is the one for what never was."""
    name, *inner = re.findall(r"\{([^}]*)\}", route.path)
    made, template, said = MADE[name](world, "every scope"), route.path, SAID.get(route.path)
    for one in inner:
        template = template.replace("{" + one + "}", INNER[one](world, "every scope", made))
    path = template.replace("{" + name + "}", made)
    never = template.replace("{" + name + "}", "never")
    foreign = world.ask("port", route.method, path, "another", said=said)
    assert foreign.status_code == 404
    unknown = world.ask("port", route.method, never, "another", said=said)
    assert foreign.text.replace(made, "never") == unknown.text
    assert world.ask("port", route.method, path, "every scope", said=said).status_code == 200


# Pages of other origins


def test_allowed_origins_get_cors_and_no_others_do(toy_folder: Path) -> None:
    page, evil = "https://app.example", "https://evil.example"
    options = {"allowed_origins": f"{page},http://localhost:3000", "api_key": "secret"}
    with running_server(toy_folder, **options) as server:
        wanted = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
        }
        with httpx.Client(base_url=server.url, trust_env=False) as http:
            preflight = http.options(TEXT, headers={"Origin": page, **wanted})
            assert preflight.status_code == 200
            assert preflight.headers["access-control-allow-origin"] == page
            assert "POST" in preflight.headers["access-control-allow-methods"]
            allowed = preflight.headers["access-control-allow-headers"]
            assert {"authorization", "content-type", "x-stainless-os"} <= {
                x.strip() for x in allowed.split(",")
            }
            assert "Origin" in preflight.headers["vary"]
            assert "access-control-allow-credentials" not in preflight.headers
            asked = {"model": server.model, "prompt": [5], "max_tokens": 1}
            own = {"Authorization": "Bearer secret", "Sec-Fetch-Site": "cross-site"}
            answer = http.post(TEXT, json=asked, headers={"Origin": page, **own})
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == page
            assert "retry-after" in answer.headers["access-control-expose-headers"].lower()
            keyless = http.post(TEXT, json=asked, headers={"Origin": page})
            assert keyless.status_code == 401
            assert keyless.headers["access-control-allow-origin"] == page
            for origin in (evil, "null", page + ".evil.example", "https://app.example:8443"):
                for refused in (
                    http.options(TEXT, headers={"Origin": origin, **wanted}),
                    http.post(TEXT, json=asked, headers={"Origin": origin, **own}),
                ):
                    assert refused.status_code == 403
                    assert not [x for x in refused.headers if x.startswith("access-control")]
            stream = http.post(
                TEXT, json={**asked, "stream": True}, headers={"Origin": page, **own}
            )
            assert stream.headers["access-control-allow-origin"] == page
            assert stream.text.endswith("data: [DONE]\n\n")
