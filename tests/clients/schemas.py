"""schemathesis: requests drawn from the server's own OpenAPI document, to a toy that computes.

``python -m tests.clients.schemas --output FILE`` sends more to all operations, and to those of what
is kept, and writes how many there were; ``--cases 1 --kept 1`` tries that it works. A run without
one of them (0), or with another ``--seed``, is one more part of the same FILE. What covers the
document is the same for every seed, so another one only draws.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvasir.bench.fingerprint import fingerprint
from kvasir.bench.report import command_line
from tests.e2e.harness import Server, running_server
from tests.e2e.toy_model import write_toy_model

PYTHON = Path(__file__).parents[2] / ".venv-clients" / "bin" / "python"
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance"
)
KEPT = "^/v1/(files|batches|responses|conversations|chat/completions)"
"""Paths of what outlives a request. What one of them made is asked for at the others, by the links
of the document; the requests draw sessions, too."""
SIZES = {"max_model_len": 128, "seed": 1}
SEED = 1
QUICK, LONG, LONG_KEPT = 1, 12, 600
"""Cases drawn for each operation, and chains of linked ones, beside those that cover its
document."""
MOST_SECONDS = 4 * 3600
"""Of a run, which fails beyond: others may stop it for most of that."""


@contextmanager
def toy_server() -> Iterator[Server]:
    with TemporaryDirectory() as folder:
        model, state = write_toy_model(Path(folder) / "toy"), str(Path(folder) / "state")
        with running_server(model, executor="cpu", engine=SIZES, state_dir=state) as server:
            yield server


def check(python: Path, server: Server) -> bool:
    """Whether the document is valid, no answer is a server's error and none lies outside of it."""
    found = run(python, server, QUICK)
    return is_valid(python, server) and found["exit_code"] == 0


def is_valid(python: Path, server: Server) -> bool:
    command = [str(python), "-m", "openapi_spec_validator", "-"]
    text = server.get("/openapi.json").text
    return subprocess.run(command, input=text, text=True, check=False).returncode == 0


def run(
    python: Path, server: Server, n_examples: int, paths: str = "", seed: int = SEED
) -> dict[str, Any]:
    """schemathesis's own report of a run over the operations whose path has ``paths``."""
    command = [str(python.parent / "schemathesis"), "run", server.url + "/openapi.json"]
    command += ["--checks", CHECKS, "--max-examples", str(n_examples), "--seed", str(seed)]
    command += ["--request-timeout", "60"]
    command += ["--include-path-regex", paths] if paths else []
    command += [] if seed == SEED else ["--phases", "fuzzing,stateful"]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command += ["--report-json-path", str(path)]
        print("$", *command, flush=True)
        subprocess.run(command, cwd=folder, check=False, timeout=MOST_SECONDS)
        found: dict[str, Any] = json.loads(path.read_text())
    return found


def counted(found: dict[str, Any]) -> dict[str, Any]:
    """What a result says of a run."""
    names = ("schemathesis_version", "seed", "running_time", "operations", "test_cases", "failures")
    return {name: found[name] for name in names}


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=LONG, help="of each operation")
    parser.add_argument("--kept", type=int, default=LONG_KEPT, help="of each, of what is kept")
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args(words)
    output: Path = args.output
    program = command_line("python -m tests.clients.schemas")
    parts = {"every operation": (args.cases, ""), "what is kept": (args.kept, KEPT)}
    results = json.loads(output.read_text())["results"] if output.exists() else {}
    runs = {}
    with toy_server() as server:
        results["document_is_valid"] = valid = is_valid(PYTHON, server)
        for name, (n_examples, paths) in parts.items():
            if n_examples:
                runs[name] = run(PYTHON, server, n_examples, paths, args.seed)
                part = name if args.seed == SEED else f"{name}, seed {args.seed}"
                results[part] = {"command": program, **counted(runs[name])}
    document = {
        "kind": "schemathesis",
        "command": program,
        "machine": fingerprint(),
        "engine": {"model": "toy", "options": SIZES},
        "results": {"checks": CHECKS.split(","), **results},
    }
    output.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return int(not valid or any(found["exit_code"] for found in runs.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
