"""The README's figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from bench.figures.blocks import Blocks
from bench.figures.limits import over_same_file
from bench.figures.machines import machine_of
from bench.figures.results import load

ROWS = {
    "decode": "one request, decode",
    "prefill 512": "prefill of 512",
    "prefill 2048": "prefill of 2,048",
    "prefill 8000": "prefill of 8,000",
}


def speed(name: str) -> str:
    """The engines of a peers' result, ours first, and how many times the best other one it is."""
    document = load(name)
    engines = document["engines"]
    n, n_in, n_out = document["shapes"]["batch"]
    rows = {**ROWS, "batch": f"{n} requests at once, {n_in} in, {n_out} out"}
    lines = [
        f"| | {' | '.join(short(engine['name']) for engine in engines)} | over the best |",
        f"|---|{'--:|' * (len(engines) + 1)}",
    ]
    for key, title in rows.items():
        if key not in engines[0]["median"]:
            continue
        rates = [engine["median"][key] for engine in engines]
        cells = " | ".join(f"{rate:,.0f}" for rate in rates)
        lines.append(f"| {title} | {cells} | {rates[0] / max(rates[1:]):.1f} |")
    return "\n".join([about(document, len(engines[0]["turns"])), "", *lines]) + "\n"


def short(name: str) -> str:
    """``llama.cpp, Model.Q4_1.gguf`` is ``llama.cpp, Q4_1``."""
    engine, file = name.split(", ")
    return f"{engine}, {re.split('[.-]', file.removesuffix('.gguf'))[-1]}"


def about(document: dict[str, Any], n_turns: int) -> str:
    machine = document["machine"]
    level = machine["isa_levels"][-1]
    return (
        f"{document['shapes']['threads']} threads, {machine['cpu']} ({machine['cpu_family']}, "
        f"{level}), all engines in turns, medians of {n_turns}, tokens per second:"
    )


def by_machine(results: Sequence[str]) -> str:
    """Of each result of peers how many times llama.cpp on the same file we are, the best first."""
    found = []
    for name in results:
        document = load(name)
        ratios = [over_same_file(key)(document) for key in ("decode", "prefill 512")]
        found.append((ratios, machine_of(document)))
    lines = ["| over llama.cpp on the same file | one request, decode | prefill of 512 |"]
    lines += ["|---|--:|--:|"]
    for ratios, machine in sorted(found, reverse=True):
        lines.append(f"| {machine} | {' | '.join(f'{ratio:.1f}' for ratio in ratios)} |")
    return "\n".join(lines) + "\n"


def costs() -> str:
    """Start, memory, and what the prefix cache saves."""
    start, memory = load("start-2cores")["results"], load("memory-2cores")["results"]
    run, serve = (start[way]["seconds_to_first_token"]["median"] for way in ("run", "serve"))
    prefix = load("experiments/e5-shared-prefix")["results"]["summary"]["ratio"]
    talk = load("experiments/e7-long-conversation")["results"]["summary"]
    return (
        f"- From process start to the first token, weights packed and cached: `kvasir run` "
        f"{run:.2f} s, `kvasir serve` {serve:.2f} s over HTTP.\n"
        f"- Both processes of a server hold {memory['beyond_weights'] / 1e6:.0f} MB beyond "
        "weights and KV cache.\n"
        f"- With the prefix cache, 500 shared tokens of 550 bring the first token {prefix:.2f} "
        f"times sooner; the tenth turn of a conversation comes {talk['kept_ratio']:.0f} times "
        f"sooner, {talk['restart_ratio']:.1f} times after a restart.\n"
    )


README: Blocks = {
    "speed": lambda: speed("peers-smollm2-2cores"),
    "machines-speed": lambda: by_machine(("peers-smollm2-2cores", "peers-zen4-2cores")),
    "costs": costs,
}
