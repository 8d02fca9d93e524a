"""What ``kvasir profile`` says."""

from __future__ import annotations

import msgspec

from kvasir.bench.op_times import StepTimes, chrome_trace
from kvasir.bench.profile import HELPS, ModelProfile, knee, operating_point
from kvasir.bench.report import QUIET
from kvasir.core.errors import ConfigError

BAR = 24
LEAST_SHARE = 0.01
"""Of a step, for shares of ceilings."""


def profile_json(found: ModelProfile) -> str:
    said = msgspec.to_builtins(found)
    phases = zip(said["phases"], found.phases, strict=True)
    said["phases"] = [{**values, "bound": each.bound} for values, each in phases]
    return msgspec.json.format(msgspec.json.encode(said), indent=2).decode() + "\n"


def profile_trace(found: ModelProfile) -> bytes:
    """JSON of Chrome's trace events. Raises ConfigError where no op was timed."""
    steps = {each.name: each.step for each in found.phases if each.step is not None}
    if not steps:
        raise ConfigError("--trace: this executor does not time its ops")
    return msgspec.json.encode(chrome_trace(steps))


def profile_text(found: ModelProfile, *, with_ops: bool = False) -> str:
    """A line for each phase, the verdict, the ops of each, and the curve of the load."""
    lines = [
        f"{found.model}, in {found.arithmetic}; shares of what this machine was measured to do"
    ]
    if found.kernels:
        lines.append(f"kernels: {found.kernels}; kvasir tune measures and keeps them")
    head = f"{'':<16} {'tok/s':>9}  memory  compute  bound by"
    lines += [head]
    for each in found.phases:
        shares = f"{_share(each.memory):>7}  {_share(each.compute):>7}"
        lines.append(f"{each.name:<16} {each.tokens_per_second:>9.1f} {shares}  {each.bound}")
    for bound in dict.fromkeys(each.bound for each in found.phases):
        names = ", ".join(each.name for each in found.phases if each.bound == bound)
        lines.append(f"{names}: {HELPS[bound]}")
    for each in found.phases if with_ops else ():
        if each.step is not None:
            lines += _ops(each.name, each.step)
    if found.load:
        lines += _load(found)
    if found.foreign > QUIET:
        lines.append(f"other processes took {found.foreign:.0%} of the machine: repeat it")
    return "\n".join(lines) + "\n"


def _ops(name: str, step: StepTimes) -> list[str]:
    total = sum(op.seconds for op in step.ops)
    width = max(len(op.name) for op in step.ops)
    lines = ["", f"{name}: {1e6 * total:.0f} us a step, median of {step.n_steps}"]
    head = f"{'of a step':>9} {'us':>8} share {'MB':>8} {'GOP':>8}  memory  compute"
    lines.append(f"{'':<{width}} {head}")
    for op in step.ops:
        is_long = op.share >= LEAST_SHARE  # what is shorter reads caches
        shares = [_share(x if is_long else None) for x in (op.memory, op.compute)]
        lines.append(
            f"{op.name:<{width}} {op.count:>9} {1e6 * op.seconds:>8.1f} {op.share:>5.0%} "
            f"{op.bytes / 1e6:>8.2f} {op.flops / 1e9:>8.3f} {shares[0]:>7}  {shares[1]:>7}"
        )
    return lines


def _load(found: ModelProfile) -> list[str]:
    most = max(point.tokens_per_second for point in found.load)
    turn, run = knee(found.load), operating_point(found.load)
    lines = ["", f"{'at a time':>9} {'tok/s':>9} {'ms a token':>11}"]
    for point in found.load:
        bar = "#" * round(BAR * point.tokens_per_second / most)
        notes = [x for x, at in (("knee", turn), ("75 % of the most", run)) if at == point]
        lines.append(
            f"{point.n:>9} {point.tokens_per_second:>9.1f} "
            f"{1e3 * point.seconds_between_tokens:>11.2f} {bar:<{BAR}} {', '.join(notes)}".rstrip()
        )
    lines.append(
        f"a server of {run.n} requests at a time has room for bursts: --max-num-seqs {turn.n}"
    )
    return lines


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
