"""A server that is killed again and again, at random moments, answers what it was asked as if it
had not been. ``make kills`` is the long form."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.harness import PATIENCE, Server, running_server
from tests.e2e.test_batches import Line, begin, read, text_line, wait
from tests.e2e.test_files import official
from tests.e2e.toy_model import write_toy_model

IS_LONG = os.environ.get("KVASIR_KILLS") == "1"
N_KILLS, N_LINES = (20, 5000) if IS_LONG else (2, 200)
STEP_SECONDS = 0.01
MOST_TWICE = 0.05
"""Of all tokens, computed twice over 20 kills; a short form has a smaller whole."""


class Place:
    """A state, and what each engine draws that works on it."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.counts = folder / "counts"
        self.counts.mkdir(parents=True)
        faults = {"seconds": STEP_SECONDS, "count": str(self.counts)}
        self.model = write_toy_model(folder / "model", faults)

    @contextmanager
    def server(self) -> Iterator[Server]:
        with running_server(self.model, state_dir=str(self.state)) as running:
            yield running

    def n_drawn(self) -> int:
        return sum(int(path.read_bytes() or b"0") for path in self.counts.iterdir())


def batch_lines() -> list[Line]:
    """Greedy and sampled, alone and several, long and short, with logprobs and stop strings."""
    kinds: tuple[dict[str, Any], ...] = (
        {"max_tokens": 24},
        {"max_tokens": 40, "temperature": 0, "ignore_eos": True},
        {"max_tokens": 16, "n": 2, "logprobs": 3},
        {"max_tokens": 30, "stop": ["e", "zz"]},
        {"max_tokens": 12, "prompt": ["two prompts", "in a line"], "echo": True, "logprobs": 0},
    )
    return [text_line(i, **kinds[i % len(kinds)]) for i in range(N_LINES)]


def bodies(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    """What was answered, but for ids and times."""
    found = {}
    for custom_id, line in read(client, file_id).items():
        body = line["response"]["body"]
        found[custom_id] = (body["choices"], body["usage"]["completion_tokens"])
    return found


def undisturbed(folder: Path) -> tuple[dict[str, Any], int]:
    place = Place(folder)
    with place.server() as running:
        client = official(running)
        done = wait(client, begin(client, batch_lines()))
        answers = bodies(client, done.output_file_id)
    return answers, place.n_drawn()


@pytest.mark.timeout(3600 if IS_LONG else 300)
def test_a_batch_beside_kills(tmp_path: Path) -> None:
    wanted, n_needed = undisturbed(tmp_path / "quiet")
    place, chance = Place(tmp_path / "killed"), random.Random(11)
    batch_id, n_before = "", 0
    for i in range(N_KILLS):
        with place.server() as running:
            client = official(running)
            batch_id = batch_id or begin(client, batch_lines()).id
            share = N_LINES * (i + 1) // (N_KILLS + 1)
            n_before = reach(client, batch_id, max(share, n_before + 1))
            time.sleep(chance.random() / 2)
            running.process.kill()
            running.process.wait(PATIENCE)
    with place.server() as running:
        client = official(running)
        done = wait(client, client.batches.retrieve(batch_id))
        answers = bodies(client, done.output_file_id)
        assert (done.status, done.error_file_id) == ("completed", None)
    assert answers == wanted
    twice = place.n_drawn() / n_needed - 1
    print(json.dumps({"kills": N_KILLS, "lines": N_LINES, "twice": round(twice, 4)}))
    assert twice <= (MOST_TWICE if IS_LONG else 0.25)


def reach(client: openai.OpenAI, batch_id: str, n_lines: int) -> int:
    """Waits until so many lines are answered; how many are."""
    deadline = time.monotonic() + PATIENCE * 5
    while time.monotonic() < deadline:
        counts = client.batches.retrieve(batch_id).request_counts
        if counts is not None and counts.completed >= n_lines:
            return counts.completed
        time.sleep(0.02)
    raise AssertionError(f"no {n_lines} lines were answered in time")


def test_a_kill_while_lines_are_checked_begins_anew(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.server() as running:
        batch = begin(official(running), [text_line(i) for i in range(300)])
        running.process.kill()
    with place.server() as running:
        done = wait(official(running), official(running).batches.retrieve(batch.id))
        assert done.status == "completed"
        assert len(bodies(official(running), done.output_file_id)) == 300
