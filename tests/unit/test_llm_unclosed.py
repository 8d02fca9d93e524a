"""An LLM that nobody closes: its process ends well, and its memory goes with it."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from kvasir import LLM
from tests import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_hf(tiny.llama(), tmp_path_factory.mktemp("model"))


UNCLOSED = """
import sys
import threading
import weakref
from kvasir import LLM
made = LLM(sys.argv[1], max_model_len=96, threads=1, executor="cpu", kv_memory="512MiB")
"""


def test_a_script_that_closes_nothing_ends_well(folder: Path) -> None:
    command = [sys.executable, "-c", UNCLOSED, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, "terminate" in done.stderr) == (0, False), done.stderr


def test_an_llm_that_is_dropped_is_gone(folder: Path) -> None:
    """However much of its memory has no pages yet."""
    made = LLM(str(folder), max_model_len=96, threads=1, executor="cpu", kv_memory="512MiB")
    executor = weakref.ref(made._has().built.executor)
    del made
    gc.collect()
    assert executor() is None
    assert "kvasir-touch" not in {thread.name for thread in threading.enumerate()}
