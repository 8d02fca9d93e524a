"""A successor takes the state with the sockets: a batch goes on in it, and no Idempotency-Key is
answered twice."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.harness import PATIENCE, Server, n_known, running_server, wait_until
from tests.e2e.test_batches import begin, read, text_line, wait
from tests.e2e.test_files import official
from tests.e2e.toy_model import write_toy_model


def test_a_batch_goes_on_in_a_successor(tmp_path: Path) -> None:
    folder = write_toy_model(tmp_path / "toy", {"seconds": 0.01})
    options: dict[str, Any] = {
        "handover": str(tmp_path / "handover"),
        "state_dir": str(tmp_path / "state"),
        "batch_lines": 4,
    }
    lines = [text_line(i, ignore_eos=True) for i in range(90)]
    with running_server(folder, **options) as old:
        client = official(old)
        batch = begin(client, lines)
        wait(client, batch, lambda x: bool(x.request_counts and x.request_counts.completed > 8))
        with running_server(folder, **options) as new:
            client.close()
            assert new.port == old.port and old.process.wait(PATIENCE) == 0
            client = official(new)
            done = wait(client, client.batches.retrieve(batch.id))
            answers = read(client, done.output_file_id)
            assert (done.status, len(answers)) == ("completed", 90)
            alone = client.completions.create(**{k: v for k, v in lines[7]["body"].items()
                                                 if k != "ignore_eos"},
                                              extra_body={"ignore_eos": True})  # fmt: skip
            assert (
                answers["id-7"]["response"]["body"]["choices"][0]["text"] == alone.choices[0].text
            )


def has_accepted(old: Server) -> bool:
    """Whether a successor is the one who accepts: requests go to ``old`` before."""
    return any("a successor accepts" in line for line in old.lines)


def test_a_key_that_both_servers_are_asked_with_is_answered_once(tmp_path: Path) -> None:
    """Without a seed: who computes it twice answers otherwise."""
    folder = write_toy_model(tmp_path / "toy", {"seconds": 0.05})
    options: dict[str, Any] = {
        "handover": str(tmp_path / "handover"),
        "state_dir": str(tmp_path / "state"),
    }
    asked = {"prompt": "once", "max_tokens": 400, "ignore_eos": True}
    key = {"Idempotency-Key": "at both"}
    with running_server(folder, **options) as old, ThreadPoolExecutor(2) as pool:
        first = pool.submit(old.post, "/v1/completions", asked, **key)
        wait_until(lambda: n_known(old) == 1)
        with running_server(folder, **options) as new:
            wait_until(lambda: has_accepted(old))
            again = pool.submit(new.post, "/v1/completions", asked, **key)
            others = new.post("/v1/completions", asked, **{"Idempotency-Key": "another"})
            assert first.result().status_code == again.result().status_code == 200
            assert again.result().content == first.result().content != others.content
            replayed = ["idempotent-replayed" in x.result().headers for x in (first, again)]
            assert replayed == [False, True]
            assert old.process.wait(PATIENCE) == 0


def test_a_key_whose_server_is_killed_is_answered_by_the_next(tmp_path: Path) -> None:
    folder = write_toy_model(tmp_path / "toy", {"seconds": 0.02})
    options: dict[str, Any] = {
        "handover": str(tmp_path / "handover"),
        "state_dir": str(tmp_path / "state"),
    }
    asked = {"prompt": "once", "max_tokens": 3000, "ignore_eos": True}
    key = {"Idempotency-Key": "killed"}
    with running_server(folder, **options) as old, ThreadPoolExecutor(2) as pool:
        first = pool.submit(old.post, "/v1/completions", asked, **key)
        wait_until(lambda: n_known(old) == 1)
        with running_server(folder, **options) as new:
            wait_until(lambda: has_accepted(old))
            again = pool.submit(new.post, "/v1/completions", {**asked, "max_tokens": 3}, **key)
            time.sleep(0.5)
            assert not again.done(), again.result().text
            old.process.kill()
            assert isinstance(first.exception(), httpx.HTTPError)
            assert again.result().status_code == 200
