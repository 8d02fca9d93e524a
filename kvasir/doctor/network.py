"""The hub: whether it can be asked, and lets this user have the model. Nothing is asked unless a
model is wanted from there."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import NamedTuple

from kvasir.core.errors import ModelError
from kvasir.doctor.finding import Finding, Scene
from kvasir.library.hub import Hub, open_hub
from kvasir.library.names import hub_name
from kvasir.library.shelf import Shelf

SECONDS = 1.5
"""For each question."""
PROXIES = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")


class HubAnswer(NamedTuple):
    status: int
    """0: nothing was said."""
    text: str


def offline(scene: Scene) -> Iterator[Finding]:
    if is_wanted(scene) and scene.variables.get("HF_HUB_OFFLINE", "") not in ("", "0"):
        yield Finding(
            "blocks",
            "HF_HUB_OFFLINE is set",
            "the variable is set, and the model is not here",
            "nothing is fetched",
            "unset HF_HUB_OFFLINE",
        )


def hub(scene: Scene) -> Iterator[Finding]:
    place = _hub(scene)
    if place is None:
        return
    said = _ask(f"{place.endpoint}/api/models?limit=1", None)
    if said.status == 0:
        proxy = next((x for x in PROXIES if scene.variables.get(x)), None)
        yield Finding(
            "blocks",
            f"{place.endpoint} does not answer",
            f"{said.text}" + (f", through {proxy}" if proxy else ""),
            "nothing is fetched",
            f"check {proxy}={_shown(scene.variables[proxy])}, or unset it"
            if proxy
            else "check the network; behind a firewall set HTTPS_PROXY, or HF_ENDPOINT to a mirror",
        )


def token(scene: Scene) -> Iterator[Finding]:
    place = _hub(scene)
    if place is None or place.token is None:
        return
    said = _ask(f"{place.endpoint}/api/whoami-v2", place.token)
    if said.status == http.client.UNAUTHORIZED:
        yield Finding(
            "blocks",
            "the hub does not know the token",
            f"{place.endpoint}/api/whoami-v2 answers 401",
            "every question is refused, those about public models too",
            "hf auth login, or set HF_TOKEN to another, or unset it",
        )


def gate(scene: Scene) -> Iterator[Finding]:
    place, name = _hub(scene), hub_name(scene.model or "")
    if place is None or name is None:
        return
    said = _ask(f"{place.endpoint}/api/models/{name.repo}", place.token)
    if said.status in (401, 403, 404):
        is_gated = said.status == http.client.FORBIDDEN or _is_gated(said.text)
        yield Finding(
            "blocks",
            f"{name.repo} wants consent to its licence" if is_gated else f"there is no {name.repo}",
            f"the hub answers {said.status}",
            "it cannot be fetched",
            f"agree at {place.endpoint}/{name.repo}, with the account of the token"
            if is_gated
            else "check the name; a private model needs HF_TOKEN",
        )


def is_wanted(scene: Scene) -> bool:
    """Whether a model of the hub is asked for that is not here."""
    if scene.asks:
        return True
    if scene.model is None or hub_name(scene.model) is None:
        return False
    shelf = Shelf(scene.cache / "library")
    found = shelf.find(scene.model)
    return found is None or not shelf.is_whole(found)


def _hub(scene: Scene) -> Hub | None:
    if not is_wanted(scene):
        return None
    try:
        return open_hub(scene.variables)
    except ModelError:
        return None


def _ask(url: str, token: str | None) -> HubAnswer:
    request = urllib.request.Request(url, headers={"User-Agent": "kvasir"})
    if token is not None:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return HubAnswer(answer.status, "")
    except urllib.error.HTTPError as error:
        with error:
            return HubAnswer(error.code, error.read(4096).decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return HubAnswer(0, str(getattr(error, "reason", error)) or type(error).__name__)


def _is_gated(text: str) -> bool:
    try:
        return "gated" in str(json.loads(text).get("error", "")).lower()
    except (ValueError, AttributeError):
        return False


def _shown(address: str) -> str:
    """Without what says who asks."""
    return address.rpartition("@")[2].rpartition("://")[2]
