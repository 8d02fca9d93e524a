"""What is advised beside what is measured, of docs/choose-a-format.md."""

from __future__ import annotations

from typing import Any

from bench.figures.blocks import Blocks
from bench.figures.results import Refused, load


def table() -> str:
    found = load("advice-smollm2-2cores")
    dirty = [x for x in found["parts"] if (x["machine"]["commit"] or "+").endswith("+")]
    if dirty:
        raise Refused("advice-smollm2-2cores.json: a part is of a tree with changes")
    lines = [
        "SmolLM2-135M (F32), two cores of Zen 4 with AVX-512: what the advice of each of "
        f"{found['rounds']} turns says first, as a share of the fastest file's time (wanted: at "
        "most 1.05), and the seconds that it gives each format over those that its file took "
        "(medians of the turns; wanted: 0.85 to 1.15).",
        "",
        "| requests : prompt : answer | first choices | " + " | ".join(_names(found)) + " |",
        "|---|---|" + "--:|" * len(_names(found)),
    ]
    for part in found["parts"]:
        choices = ", ".join(f"{name} {share:.2f}" for name, share in part["choices"])
        ratios = [f"{x['advised_over_measured']['median']:.2f}" for x in part["formats"]]
        load_of = " : ".join(map(str, part["load"]))
        lines.append(f"| {load_of} | {choices} | {' | '.join(ratios)} |")
    return "\n".join(lines) + "\n"


def _names(found: dict[str, Any]) -> list[str]:
    return [x["format"] for x in found["parts"][0]["formats"]]


ADVICE: Blocks = {"advice": table}
