"""The table of targets: what was wanted, what a result says, and whether that is enough."""

from __future__ import annotations

from typing import Any

from bench.experiments.registry import EXPERIMENTS
from bench.figures.blocks import Blocks
from bench.figures.grammars import GRAMMARS
from bench.figures.rates import rates
from bench.figures.results import RESULTS, load
from bench.figures.serving import SERVING
from bench.figures.target import Read, Target, table


def over_best(key: str) -> Read:
    """Our rate over the best other engine's."""

    def read(document: dict[str, Any]) -> float:
        ours, *others = (float(engine["median"][key]) for engine in document["engines"])
        return ours / max(others)

    return read


def over_same_file(key: str) -> Read:
    """Our rate over llama.cpp's on the same file."""

    def read(document: dict[str, Any]) -> float:
        ours, *others = document["engines"]
        file = ours["name"].split(", ")[1]
        (same,) = (x for x in others if x["name"] == f"llama.cpp, {file}")
        return float(ours["median"][key] / same["median"][key])

    return read


def peers(result: str) -> list[Target]:
    """What was wanted beside other engines."""
    what = "SmolLM2-135M Q4_1, AVX-512: "
    return [
        Target(what + "one stream, over llama.cpp on the same file", result,
               over_same_file("decode"), 3.0),
        Target(what + "one stream, over the best engine", result, over_best("decode"), 1.9),
        Target(what + "prefill 512, over the best", result, over_best("prefill 512"), 1.4),
        Target(what + "prefill 2048, over the best", result, over_best("prefill 2048"), 1.35),
        Target(what + "64 requests of 128 + 128, over the best", result, over_best("batch"), 1.8),
    ]  # fmt: skip


def first_token(way: str) -> Read:
    """Seconds from the start of the process."""
    return lambda d: float(d["results"][way]["seconds_to_first_token"]["median"])


TARGETS = (
    *peers("peers-smollm2-2cores"),
    Target("the same on a Zen 4: one stream, over llama.cpp on the same file", "peers-zen4-2cores",
           over_same_file("decode"), 2.7),
    Target("time outside of the native call, one request", "latency-smollm2-2cores",
           lambda d: d["results"]["decode"]["outside_native"], 0.1, "{:.1%}", True),
    Target("the same, 64 requests", "throughput-smollm2-2cores",
           lambda d: d["results"]["outside_native"], 0.05, "{:.1%}", True),
    Target("process start to first token, `run`", "start-2cores",
           first_token("run"), 0.4, "{:.2f} s", True),
    Target("process start to first token, `serve`", "start-2cores",
           first_token("serve"), 0.7, "{:.2f} s", True),
    Target("memory of both processes beyond weights and KV, of what is allowed", "memory-2cores",
           lambda d: d["results"]["beyond_weights"] / d["results"]["limit"], 1.0, "{:.0%}", True),
    Target("64 streams over HTTP, lost against offline", "streaming-2cores",
           lambda d: d["results"]["lost"], 0.1, "{:.1%}", True),
    *(Target(f"another process takes half a CPU, {what}: loss over the stolen share", name,
             lambda d: d["results"]["factor"], 1.3, "{:.2f}x", True)
      for name, what in (("disturbed-one-2cores", "one stream"),
                         ("disturbed-2cores", "16 streams"))),
)  # fmt: skip


def missed_experiments() -> str:
    """A line for every experiment below its target."""
    lines = []
    for path in sorted((RESULTS / "experiments").rglob("*.json")):
        name = path.relative_to(RESULTS).with_suffix("").as_posix()
        document = load(name)
        if not document["results"]["met"]:
            row = document["row"]
            lines.append(f"- [{name}]({name}.json): {row['measured']}. Wanted: {row['target']}.\n")
    return "".join(lines) or "None.\n"


def experiments() -> str:
    """Which there are."""
    head = [
        "| name | claim of the literature | target | runs | about |",
        "|---|---|---|---|--:|",
    ]
    rows = [
        f"| `{x.name}` | {x.claim} | {x.target} | {'model' if x.uses_model else 'virtual time'} | "
        f"{x.seconds} s |"
        for x in EXPERIMENTS
    ]
    return "\n".join([*head, *rows]) + "\n"


LIMITS: Blocks = {
    "targets": lambda: table(TARGETS),
    "serving": lambda: table(SERVING),
    "grammars": lambda: table(GRAMMARS),
    "rates": rates,
    "missed-experiments": missed_experiments,
    "experiments": experiments,
}
