"""What ``kvasir evaluate`` says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

import msgspec

from kvasir.evaluation.figures import Figures, Interval


def progress(stream: TextIO, what: str) -> Callable[[int, int], None]:
    """Counts on a terminal, and nowhere else."""
    is_seen = stream.isatty()

    def told(done: int, n: int) -> None:
        if is_seen:
            end = "\n" if done == n else ""
            print(f"\r{what} {done} of {n}", end=end, file=stream, flush=True)

    return told


def figures_json(figures: Figures) -> str:
    return msgspec.json.format(msgspec.json.encode(figures), indent=2).decode() + "\n"


def figures_text(figures: Figures) -> str:
    """A line for each figure; what differs from a reference with its 95 % interval."""
    chunks = f"{figures.chunks} chunks of {figures.chunk_size}"
    lines = [
        f"{figures.model}: {figures.tokens} tokens scored, the second half of {chunks}",
        f"{'perplexity':<22}{figures.ppl:.4f} +- {figures.ppl_error:.4f} (standard error)",
    ]
    found = figures.against
    if found is None:
        return "\n".join(lines) + "\n"
    lines += [
        f"beside {found.reference}, with 95 % intervals:",
        f"{'its perplexity':<22}{found.ppl:.4f} +- {found.ppl_error:.4f} (standard error)",
        f"{'perplexity ratio':<22}{_text(found.ppl_ratio, 4)}",
        f"{'KL divergence':<22}{_text(found.kld, 6)} nats; "
        f"median {found.kld_median:.6f}, largest {found.kld_max:.6f}",
        f"{'same likeliest token':<22}{_share(found.top1)}",
        f"{'RMS of dp':<22}{100 * found.rms_dp:.3f} %",
    ]
    return "\n".join(lines) + "\n"


def _text(x: Interval, digits: int) -> str:
    return f"{x.value:.{digits}f} [{x.low:.{digits}f}, {x.high:.{digits}f}]"


def _share(x: Interval) -> str:
    return f"{100 * x.value:.2f} % [{100 * x.low:.2f}, {100 * x.high:.2f}]"
