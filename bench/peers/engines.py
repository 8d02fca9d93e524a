"""The engines, each able to measure one turn in processes of its own."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.peers.shapes import N_DECODE, N_DECODE_PROMPT, REPEAT, WARM_OUT, Rates, Shapes
from kvasir.bench.fingerprint import fingerprint

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 900


@dataclass(frozen=True)
class Turn:
    """``rates``: the same names for every engine."""

    version: str
    rates: Rates


class Engine(Protocol):
    """``name`` says what runs and on which file."""

    @property
    def name(self) -> str: ...

    def turn(self, shapes: Shapes) -> Turn: ...


@dataclass(frozen=True)
class Kvasir:
    """``options``: further words for its command line."""

    name: str
    model: Path
    options: tuple[str, ...] = ()

    def turn(self, shapes: Shapes) -> Turn:
        lengths = [word for n in shapes.prefill for word in ("--prefill", str(n))]
        latency = self._bench("latency", shapes, REPEAT, *lengths)
        rates = {"decode": float(latency["decode"]["tokens_per_second"]["median"])}
        for n in shapes.prefill:
            rates[f"prefill {n}"] = float(latency[f"prefill_{n}"]["tokens_per_second"]["median"])
        count, n_in, n_out = map(str, shapes.batch)
        words = ("--num-prompts", count, "--input-len", n_in, "--output-len", n_out)
        batch = self._bench("throughput", shapes, 1, *words)
        rates["batch"] = float(batch["output_tokens_per_second"]["median"])
        return Turn(f"Kvasir {fingerprint()['commit']}", rates)

    def _bench(self, kind: str, shapes: Shapes, repeat: int, *words: str) -> dict[str, Any]:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            command = [sys.executable, "-m", "kvasir", "bench", kind, str(self.model)]
            command += ["--threads", str(shapes.threads), "--repeat", str(repeat)]
            command.append("--no-ceilings")
            run([*command, *words, *self.options, "--output", file.name])
            results: dict[str, Any] = json.loads(Path(file.name).read_text("utf-8"))["results"]
        return results


@dataclass(frozen=True)
class LlamaCpp:
    """``bin``: the folder of llama-bench and llama-batched-bench."""

    name: str
    bin: Path
    model: Path

    def _version(self) -> str:
        done = subprocess.run(
            [self.bin / "llama-bench", "--version"], capture_output=True, text=True, check=False
        )
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "version" in line]
        return f"llama.cpp {lines[0].strip()}" if lines else "llama.cpp, version unknown"

    def turn(self, shapes: Shapes) -> Turn:
        depth = str(N_DECODE_PROMPT)
        rates = {"decode": self._bench(shapes, "-p", "0", "-n", str(N_DECODE), "-d", depth)}
        for n in shapes.prefill:
            rates[f"prefill {n}"] = self._bench(shapes, "-p", str(n), "-n", "0")
        rates["batch"] = self._batched(shapes)
        return Turn(self._version(), rates)

    def _bench(self, shapes: Shapes, *words: str) -> float:
        common = ("-m", str(self.model), "-t", str(shapes.threads), "-r", str(REPEAT), "-fa", "1")
        found = json.loads(run([self.bin / "llama-bench", *common, "-o", "json", *words]))
        return float(statistics.median(found[0]["samples_ts"]))

    def _batched(self, shapes: Shapes) -> float:
        """Of two batches: the first, of few outputs, warms up."""
        count, n_in, n_out = shapes.batch
        numbers = {"-t": shapes.threads, "-tb": shapes.threads, "-b": 2048, "-ub": 512}
        numbers |= {"-c": count * (n_in + n_out) + 512, "-npp": n_in, "-npl": count}
        words = [word for flag, number in numbers.items() for word in (flag, str(number))]
        words += [
            "-ntg",
            f"{WARM_OUT},{n_out}",
            "-m",
            str(self.model),
            "-fa",
            "on",
            "--output-format",
            "jsonl",
        ]
        lines = run([self.bin / "llama-batched-bench", *words]).splitlines()
        row = [json.loads(line) for line in lines if line.startswith("{")][-1]
        if (row["pl"], row["tg"]) != (count, n_out):
            sys.exit(f"llama-batched-bench measured {row['pl']} requests of {row['tg']} tokens")
        return float(row["pl"] * row["tg"] / row["t"])


@dataclass(frozen=True)
class Child:
    """An engine that is called inside another Python: ``module`` of this package is its script."""

    name: str
    python: Path
    module: str
    model: Path

    def turn(self, shapes: Shapes) -> Turn:
        module = f"bench.peers.{self.module}"
        output = run(
            [self.python, "-m", module, str(self.model), shapes.encode()], {"PYTHONPATH": str(ROOT)}
        )
        lines = [line for line in output.splitlines() if line.startswith('{"version"')]
        found: dict[str, Any] = json.loads(lines[-1])
        return Turn(found["version"], {name: float(x) for name, x in found["rates"].items()})


def run(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> str:
    """Standard output; exits with the end of the error output when the command fails."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
    )
    if done.returncode:
        sys.exit(f"{command[0]} failed with {done.returncode}: {done.stderr[-800:]}")
    return done.stdout
