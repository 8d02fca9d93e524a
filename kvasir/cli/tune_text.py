"""What ``kvasir tune`` says."""

from __future__ import annotations

import msgspec

from kvasir.bench.report import QUIET
from kvasir.bench.tune import TunedModel
from kvasir.exec.cpu.sites import class_name

NOWHERE = (
    "kept nowhere: --packed-cache is off or takes no file, or the model is one of the small ones "
    "whose packed weights are not kept either"
)


def tune_json(found: TunedModel) -> str:
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"


def tune_text(found: TunedModel) -> str:
    """A line for each matrix and class of rows."""
    lines = [f"{found.model}, in {found.seconds:.0f} s: {found.said}"]
    width = max([len(shape) for shape in found.choices] or [0])
    for shape, of_class in found.choices.items():
        for number, choice in sorted(of_class.items()):
            gain = f"{choice.gain:.0%} less time" if choice.gain else ""
            rows = class_name(number)
            lines.append(f"{shape:<{width}}  {rows:>5}  {choice.variant:<16} {gain}".rstrip())
    if found.unsettled:
        rows = ", ".join(map(str, found.unsettled))
        lines.append(
            f"time was too short for steps of {rows} rows: what was kept for them before stays, "
            "--minutes gives more"
        )
    if found.foreign > QUIET:
        lines.append(f"other processes took {found.foreign:.0%} of the machine: repeat it")
    lines.append(f"kept in {found.file}" if found.file else NOWHERE)
    return "\n".join(lines) + "\n"
