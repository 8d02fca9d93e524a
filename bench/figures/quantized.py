"""What rounding by a text wins, of docs/quantize.md."""

from __future__ import annotations

from bench.figures.blocks import Blocks
from bench.figures.results import load


def table() -> str:
    found = load("quantized-smollm2", is_timed=False)
    tokens, figures = found["tokens"], found["figures"]
    lines = [
        f"SmolLM2-135M, moved off the grid of its file, {tokens['calibration']:,} tokens of "
        f"calibration and {tokens['scored']:,} scored, all written by the model; 4 bits in groups "
        f"of {found['group']}.",
        "",
        "| method | KLD | beside | share, with its 95 % interval | wanted at most |",
        "|---|--:|---|---|--:|",
    ]
    for each in found["ratios"]:
        kld, share = figures[each["method"]]["kld"]["value"], each["kld"]
        over = f"{each['over']}, {figures[each['over']]['kld']['value']:.4f}"
        lines.append(
            f"| `{each['method']}` | {kld:.4f} | {over} | {share['value']:.3f} "
            f"[{share['low']:.3f}, {share['high']:.3f}] | {each['bar']:g} |"
        )
    return "\n".join(lines) + "\n"


QUANTIZED: Blocks = {"quantized": table}
