"""docs/first-steps.md does what it says, over a hub on this machine."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiny
from tests.hub_standin import StandIn, serving
from tests.tiny import write_gguf_model

PAGE = Path(__file__).parents[2] / "docs" / "first-steps.md"
REPO = "bartowski/SmolLM2-135M-Instruct-GGUF"


@pytest.mark.skipif(not shutil.which("curl"), reason="the page uses curl")
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = (
        "".join(blocks)
        .replace("8000", str(port))
        .replace("top --once", f"top --once --url http://127.0.0.1:{port}")
    )
    script = script.replace("kvasir doctor\n", "kvasir doctor || true\n")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    command = bin_folder / "kvasir"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvasir "$@"\n')
    command.chmod(0o755)
    file = write_gguf_model(tiny.llama(), tmp_path / "SmolLM2-135M-Instruct-Q4_K_M.gguf", "Q8_0")
    with serving(StandIn({REPO: {file.name: file.read_bytes()}})) as hub:
        variables = {
            **os.environ,
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "HF_ENDPOINT": hub.url,
            "KVASIR_CACHE": str(tmp_path / "cache"),
            "no_proxy": "127.0.0.1",
        }
        variables.pop("HF_TOKEN", None)
        done = subprocess.run(
            ["bash", "-e", "-m", "-c", script],
            cwd=Path(__file__).parents[2],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"kvasir chat {REPO}:Q4_K_M" in done.stdout and '"choices"' in done.stdout
    assert "running 0" in done.stdout and "removed" in done.stdout
