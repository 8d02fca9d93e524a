"""``python -m tests.clients [SUITE …]``: clients and checkers of others, unmodified, against a
real server.

They live in environments of their own (``make test-clients`` makes them), whose packages are pinned
by hash. Each suite is a command that finds a server of its own in its environment; the exit status
says whether all passed. Needs the default model.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from kvasir.weights.default import default_model
from tests.clients import comply, schemas
from tests.e2e.harness import Server, running_server

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = ROOT / ".venv-clients" / "bin" / "python"
NODE_MODULES = ROOT / "build" / "clients" / "node_modules"
MODEL = "smollm2"
SIZES = {"max_model_len": 2048, "kv_memory": "256MiB"}
SEEDS = {"comply": 2}
"""With a seed every run draws the same: some checks hold only for answers that end by themselves,
which those of this seed do, or of 1 where a suite has none."""


def run(command: list[str | Path], server: Server, **environment: str) -> bool:
    """Whether ``command`` ended well."""
    told = {"KVASIR_URL": server.url, "KVASIR_MODEL": server.model, **environment}
    print("$", *command, flush=True)
    return (
        subprocess.run(command, env={**os.environ, **told}, cwd=ROOT, check=False).returncode == 0
    )


def python(server: Server) -> bool:
    files = sorted((HERE / "python").glob("client_*.py"))
    return run([PYTHON, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", HERE, *files], server)


def node(server: Server) -> bool:
    """Node finds packages in folders above a file alone, so the files lie beside theirs."""
    for path in (HERE / "node").glob("*.mjs"):
        (NODE_MODULES.parent / path.name).write_bytes(path.read_bytes())
    return run(["node", "--test", *sorted(NODE_MODULES.parent.glob("*.test.mjs"))], server)


SUITES: dict[str, Callable[[Server], bool]] = {
    "python": python,
    "node": node,
    "comply": lambda server: comply.check(PYTHON, server),
    "schemas": lambda server: schemas.check(PYTHON, server),
}


@contextmanager
def real_server(seed: int = 1) -> Iterator[Server]:
    with (
        TemporaryDirectory() as state,
        running_server(
            default_model(),
            executor="cpu",
            name=MODEL,
            engine={**SIZES, "seed": seed},
            state_dir=state,
            tool_format="hermes",
        ) as server,
    ):
        yield server


def check(name: str) -> bool:
    """Whether the suite passes."""
    is_toy = name == "schemas"
    with schemas.toy_server() if is_toy else real_server(SEEDS.get(name, 1)) as server:
        return SUITES[name](server)


def main(names: list[str]) -> int:
    """How many suites failed."""
    results = {name: check(name) for name in names or SUITES}
    for name, passed in results.items():
        print(f"{name}: {'passed' if passed else 'FAILED'}")
    return sum(not passed for passed in results.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
