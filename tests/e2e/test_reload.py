"""R108: SIGHUP reads the file of options again, under requests that run."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests import tiny
from tests.e2e.harness import PATIENCE, ROOT, wait_until

SMALL = ("--max-model-len", "128", "--kv-memory", "1MiB", "--threads", "1")
TEXT = {"prompt": "a text", "max_tokens": 2, "model": "model"}


@contextmanager
def serving(
    model: Path, config: Path, sock: Path
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """``kvasir serve`` itself, and what it logs."""
    words = ("serve", str(model), "--config", str(config), "--uds", str(sock), *SMALL)
    lines: list[str] = []
    command = [sys.executable, "-m", "kvasir", *words]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        reader = threading.Thread(target=lines.extend, args=(process.stderr,))
        reader.start()
        try:
            wait_until(lambda: any("serving" in line for line in lines) or process.poll())
            yield process, lines
        finally:
            process.terminate()
            process.wait(PATIENCE)
            reader.join()


def test_r108_limits_change_under_a_running_server(tmp_path: Path) -> None:
    model = tiny.write_hf(tiny.llama(), tmp_path / "model")
    config, sock = tmp_path / "serve.toml", tmp_path / "sock"
    config.write_text("max_body_bytes = 200000\n")
    large = {**TEXT, "metadata": {name: 500 * "x" for name in "abcd"}}
    transport = httpx.HTTPTransport(uds=str(sock))
    with (
        serving(model, config, sock) as (process, lines),
        httpx.Client(transport=transport, base_url="http://localhost", timeout=PATIENCE) as client,
    ):

        def reload(text: str, says: str) -> str:
            n_lines = len(lines)
            config.write_text(text)
            process.send_signal(signal.SIGHUP)
            wait_until(lambda: any(says in line for line in lines[n_lines:]))
            return "".join(lines[n_lines:])

        def status(body: dict[str, object]) -> int:
            headers = {"connection": "close"}
            return client.post("/v1/completions", json=body, headers=headers).status_code

        assert (status(TEXT), status(large)) == (200, 200)
        text = "max_body_bytes = 1000\nstrict = true\nport = 9000\nmax_num_seqs = 3\n"
        said = reload(text, "hold from the next start on")
        assert "the options were read again: max_body_bytes = 1000, strict = True" in said
        assert "max_num_seqs, port changed too" in said
        assert (status(TEXT), status(large)) == (200, 413)
        assert status({**TEXT, "odd": 1}) == 400  # --strict
        reload("max_body_bytes = -5\n", "the options stay as they were")
        reload("no_such_option = 5\n", "the options stay as they were")
        assert (status(TEXT), status(large)) == (200, 413)
        reload("", "the options were read again: max_body_bytes = 16777216, strict = False")
        assert (status(large), status({**TEXT, "odd": 1})) == (200, 200)
