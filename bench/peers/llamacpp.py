"""Runs llama.cpp and Kvasir in turns on the same file, and writes both beside each other.

    python bench/peers/llamacpp.py --bin BUILD/bin --model MODEL.gguf --threads 2 --output NAME

writes bench/results/NAME.json and NAME.md. The engines take turns, so that a machine that is slower
for a minute is slower for both. Measured, all in tokens per second:

- decode: 128 tokens after a prompt of 32, one request (llama-bench -d 32 -n 128);
- prefill N: a prompt of N tokens, one request (llama-bench -p N);
- throughput: 64 requests x 128 in x 128 out, all at once, output tokens over the whole time,
  prefill included (llama-batched-bench -npp 128 -ntg 128 -npl 64).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvasir.bench.ceilings import measure_ceilings
from kvasir.bench.fingerprint import Meter, fingerprint

RESULTS = Path(__file__).parents[1] / "results"
TIMEOUT_SECONDS = 900
N_REQUESTS, N_IN, N_OUT = 64, 128, 128

Rates = dict[str, float]


@dataclass(frozen=True, slots=True)
class Peer:
    """llama.cpp's programs and what both engines get."""

    bin: Path
    model: Path
    threads: int
    prefill: tuple[int, ...]

    def version(self) -> str:
        done = subprocess.run(
            [self.bin / "llama-bench", "--version"], capture_output=True, text=True, check=False
        )
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "version" in line]
        return lines[0].strip() if lines else "unknown"

    def measure(self) -> Rates:
        """One turn of llama.cpp."""
        rates = {"decode": self._bench("-p", "0", "-n", "128", "-d", "32")}
        for n_prompt in self.prefill:
            rates[f"prefill {n_prompt}"] = self._bench("-p", str(n_prompt), "-n", "0")
        rates["throughput"] = self._batched()
        return rates

    def _bench(self, *words: str) -> float:
        common = [
            "-m",
            str(self.model),
            "-t",
            str(self.threads),
            "-r",
            "1",
            "-fa",
            "1",
            "-o",
            "json",
        ]
        return float(json.loads(run([self.bin / "llama-bench", *common, *words]))[0]["avg_ts"])

    def _batched(self) -> float:
        n_context = N_REQUESTS * (N_IN + N_OUT) + 512
        numbers = {"-t": self.threads, "-tb": self.threads, "-c": n_context, "-b": 2048, "-ub": 512}
        numbers |= {"-npp": N_IN, "-ntg": N_OUT, "-npl": N_REQUESTS}
        words = [word for flag, number in numbers.items() for word in (flag, str(number))]
        words += ["-m", str(self.model), "-fa", "on", "--output-format", "jsonl"]
        lines = run([self.bin / "llama-batched-bench", *words]).splitlines()
        row = [json.loads(line) for line in lines if line.startswith("{")][-1]
        return float(row["pl"] * row["tg"] / row["t"])


@dataclass(frozen=True, slots=True)
class Ours:
    """Kvasir with the same model and threads, each turn a process of its own, like the peer."""

    model: Path
    threads: int
    prefill: tuple[int, ...]

    def measure(self) -> Rates:
        """One turn of Kvasir."""
        lengths = [word for n in self.prefill for word in ("--prefill", str(n))]
        latency = self._bench("latency", *lengths)["results"]
        rates = {"decode": latency["decode"]["tokens_per_second"]["median"]}
        for n_prompt in self.prefill:
            rates[f"prefill {n_prompt}"] = latency[f"prefill_{n_prompt}"]["tokens_per_second"][
                "median"
            ]
        shape = ("--num-prompts", N_REQUESTS, "--input-len", N_IN, "--output-len", N_OUT)
        results = self._bench("throughput", *map(str, shape))["results"]
        rates["throughput"] = results["output_tokens_per_second"]["median"]
        return rates

    def _bench(self, kind: str, *words: str) -> dict[str, Any]:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            command = [
                sys.executable,
                "-m",
                "kvasir.cli.main",
                "bench",
                kind,
                str(self.model),
                *words,
            ]
            command += ["--threads", str(self.threads), "--repeat", "1", "--no-ceilings"]
            run([*command, "--output", file.name])
            found: dict[str, Any] = json.loads(Path(file.name).read_text(encoding="utf-8"))
        return found


def run(command: Sequence[str | Path]) -> str:
    """Standard output; exits with the end of the error output when the command fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    if done.returncode:
        sys.exit(f"{command[0]} failed with {done.returncode}: {done.stderr[-800:]}")
    return done.stdout


def turns(measure: dict[str, Callable[[], Rates]], repeat: int) -> dict[str, list[Any]]:
    """Engine -> its turns, each with the share of the machine that others took."""
    kept: dict[str, list[Any]] = {name: [] for name in measure}
    for _ in range(repeat):
        for name, once in measure.items():
            with Meter() as meter:
                rates = once()
            kept[name].append({**rates, "foreign": meter.foreign})
            print(name, kept[name][-1], file=sys.stderr)
    return kept


def medians(engine: list[dict[str, float]]) -> Rates:
    names = [name for name in engine[0] if name != "foreign"]
    return {name: round(statistics.median(turn[name] for turn in engine), 1) for name in names}


def table(document: dict[str, Any]) -> str:
    """Markdown; the last column is ours over theirs."""
    peer, ours = document["llama.cpp"]["median"], document["kvasir"]["median"]
    machine = document["machine"]
    foreign = [
        turn["foreign"] for name in ("llama.cpp", "kvasir") for turn in document[name]["turns"]
    ]
    versions = f"llama.cpp {document['llama.cpp']['version']}, Kvasir {machine['commit']}"
    where = f"{document['threads']} threads, {machine['cpu']} ({machine['cpu_family']})"
    lines = [
        f"{document['model']}, {where}, {machine['time']}, {versions}.",
        f"Medians of {len(document['kvasir']['turns'])} turns in tokens per second; "
        f"other processes took at most {max(foreign):.1%} of the machine.",
        "",
        "| | llama.cpp | Kvasir | ratio |",
        "|---|--:|--:|--:|",
        *(
            f"| {name} | {peer[name]} | {ours[name]} | {ours[name] / peer[name]:.2f} |"
            for name in ours
        ),
    ]
    return "\n".join(lines) + "\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="folder of llama-bench")
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prefill", type=int, nargs="*", default=(512, 2048))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--output", default="llamacpp", help="name below bench/results")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    peer = Peer(args.bin, args.model, args.threads, tuple(args.prefill))
    ours = Ours(args.model, args.threads, tuple(args.prefill))
    kept = turns({"llama.cpp": peer.measure, "kvasir": ours.measure}, args.repeat)
    document = {
        "model": args.model.name,
        "threads": args.threads,
        "machine": fingerprint(),
        "ceilings": measure_ceilings(args.threads),
        "llama.cpp": {
            "version": peer.version(),
            "median": medians(kept["llama.cpp"]),
            "turns": kept["llama.cpp"],
        },
        "kvasir": {"median": medians(kept["kvasir"]), "turns": kept["kvasir"]},
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=2) + "\n"
    (RESULTS / f"{args.output}.json").write_text(text, encoding="utf-8")
    (RESULTS / f"{args.output}.md").write_text(table(document), encoding="utf-8")
    print(table(document))


if __name__ == "__main__":
    main()
