"""What a process imports while somebody waits for it: before it has an engine process, next to
nothing, and in that process what it computes with."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("asyncio", "jinja2", "kvasir._native", "numpy", "starlette", "tokenizers", "uvicorn")
BEFORE_THE_ENGINE = {
    "run": ("kvasir.cli.run", "kvasir.cli.start_local"),
    "serve": ("kvasir.cli.serve", "kvasir.serve.server"),
}
NOT_OF_THE_ENGINE = (
    *("asyncio", "jinja2", "starlette", "tokenizers", "uvicorn"),
    *("kvasir.exec.fake", "kvasir.exec.reference", "kvasir.tokenizer", "kvasir.validation.params"),
)
"""Of the engine process before a grammar is asked for."""
NOT_OF_THE_API = (
    *("numpy", "psutil", "kvasir._native"),
    *(f"kvasir.{x}" for x in ("checkpoints", "engine", "exec", "ir", "kv", "models")),
    *("kvasir.sampling", "kvasir.sched"),
)


def imported(names: tuple[str, ...], by: str) -> list[str]:
    """Which of ``names`` a new process has after the program ``by``."""
    code = f"{by}\nimport sys\nprint(*(name for name in {names!r} if name in sys.modules))"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("command", BEFORE_THE_ENGINE)
def test_nothing_heavy_is_imported_before_the_engine_process_starts(command: str) -> None:
    modules = ", ".join(BEFORE_THE_ENGINE[command])
    assert imported(HEAVY, f"import kvasir.cli.main, {modules}") == []


def test_the_engine_process_brings_no_text_and_no_other_backend() -> None:
    program = "import kvasir.engine.build, kvasir.serve.engine_child\n"
    program += "from kvasir.exec.backends import backend_of\nbackend_of('cpu')"
    names = (*NOT_OF_THE_ENGINE, "kvasir.exec.cpu", "numpy")
    assert imported(names, program) == ["kvasir.exec.cpu", "numpy"]


def test_the_api_process_brings_nothing_that_computes() -> None:
    """NumPy and what decides steps, which takes 0.2 s and 25 MB; labels bring it, and a vocabulary
    without merges."""
    program = "import kvasir.cli.main, kvasir.serve.main\n"
    program += "from kvasir.tokenizer.load import load_tokenizer\n"
    program += "import kvasir.tokenizer.from_gguf, kvasir.tokenizer.from_folder"
    assert imported(NOT_OF_THE_API, program) == []


def test_a_conversation_on_this_machine_brings_nothing_that_computes() -> None:
    assert imported(NOT_OF_THE_API, "import kvasir.cli.main, kvasir.cli.local") == []
