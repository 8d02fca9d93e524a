"""Responses in the background while their server is killed again and again: what is heard of them,
piece by piece, is what they would have said. ``make kills`` is the long form."""

from __future__ import annotations

import json
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.harness import MODEL, PATIENCE, Server, wait_until
from tests.e2e.test_state_kills import IS_LONG, Place

N_KILLS, N_RESPONSES = (20, 100) if IS_LONG else (2, 12)
CHANGES = re.compile(rb"(?:resp|msg|rs)_[0-9a-zA-Z]+|_at\":[0-9.]+|cached_tokens\":\d+")
"""Ids, times, and what was found computed, which is for who came just before to say."""


def asked(i: int) -> dict[str, Any]:
    """Greedy and sampled, long and short, with logprobs."""
    more = {"include": ["message.output_text.logprobs"]} if i % 3 == 0 else {}
    sizes = {
        "max_output_tokens": 100 + 7 * i % 100,
        "ignore_eos": True,
        "temperature": i % 2,
        "seed": i,
    }
    return {"model": MODEL, "input": f"text {i}", "background": True, **sizes, **more}


def begun(running: Server, i: int) -> str:
    return str(running.post("/v1/responses", asked(i)).json()["id"])


def follow(running: Server, response_id: str, heard: list[bytes]) -> None:
    """Adds to ``heard`` the events behind those that are there, until the server is killed or all
    is told."""
    after = f"&starting_after={len(heard) - 1}" if heard else ""
    path = f"{running.url}/v1/responses/{response_id}?stream=true{after}"
    rest = b""
    try:
        with httpx.stream("GET", path, timeout=PATIENCE, trust_env=False) as answer:
            if answer.status_code != 200:
                return
            for data in answer.iter_raw():
                *events, rest = (rest + data).split(b"\n\n")
                heard += [event for event in events if not event.startswith(b":")]
    except httpx.HTTPError:
        return


def is_told(heard: list[bytes]) -> bool:
    ends = (b"event: response.completed", b"event: response.incomplete")
    return bool(heard) and heard[-1].startswith(ends)


def listen(running: Server, stories: dict[str, list[bytes]], seconds: float) -> None:
    """To all that are not told, for so long after something new is; then the server is killed."""
    open_stories = [x for x in stories.items() if not is_told(x[1])]
    n_heard = sum(len(heard) for _, heard in open_stories)
    with ThreadPoolExecutor(N_RESPONSES) as pool:
        following = [pool.submit(follow, running, *story) for story in open_stories]
        wait_until(lambda: sum(len(heard) for _, heard in open_stories) > n_heard)
        time.sleep(seconds)
        running.process.kill()
        running.process.wait(PATIENCE)
        for one in following:
            one.result()


def undisturbed(place: Place) -> list[list[bytes]]:
    with place.server() as running:
        ids = [begun(running, i) for i in range(N_RESPONSES)]
        stories: list[list[bytes]] = [[] for _ in ids]
        for response_id, story in zip(ids, stories, strict=True):
            follow(running, response_id, story)
    return stories


@pytest.mark.timeout(1800 if IS_LONG else 300)
def test_responses_in_the_background_beside_kills(tmp_path: Path) -> None:
    """Each life of the server is asked for some more."""
    wanted = undisturbed(Place(tmp_path / "quiet"))
    assert all(map(is_told, wanted))
    place, chance = Place(tmp_path / "killed"), random.Random(5)
    stories: dict[str, list[bytes]] = {}
    n_cut = 0
    for life in range(N_KILLS):
        with place.server() as running:
            for i in range(len(stories), N_RESPONSES * (life + 1) // N_KILLS):
                stories[begun(running, i)] = []
            listen(running, stories, chance.random() / 2)
        n_cut += sum(bool(story) and not is_told(story) for story in stories.values())
    with place.server() as running:
        for response_id, story in stories.items():
            deadline = time.monotonic() + PATIENCE
            while not is_told(story) and time.monotonic() < deadline:
                follow(running, response_id, story)
            whole: list[bytes] = []
            follow(running, response_id, whole)
            assert story == whole, "byte for byte, without a gap"
    assert n_cut, "some were heard in pieces"
    for story, alone in zip(stories.values(), wanted, strict=True):
        assert [CHANGES.sub(b"", x) for x in story] == [CHANGES.sub(b"", x) for x in alone]
        numbers = [json.loads(x.partition(b"data: ")[2])["sequence_number"] for x in story]
        assert numbers == list(range(len(story)))
    print(json.dumps({"kills": N_KILLS, "responses": N_RESPONSES, "cut": n_cut}))
