"""A successor takes the state with the sockets: a batch goes on in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.e2e.harness import PATIENCE, running_server
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
            client.close()  # an idle connection is left open for half a minute
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
