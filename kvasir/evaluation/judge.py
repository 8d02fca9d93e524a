"""What ``kvasir quantize --require`` asks of a model before it gets its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from kvasir.checkpoints.loaded import load_model
from kvasir.config.options import EngineOptions
from kvasir.evaluation.chunks import SELF
from kvasir.evaluation.evaluate import Evaluation, evaluate
from kvasir.evaluation.gates import Requirement, UnmetError

_CHUNK = 512
_SEED = 1 << 20
"""Of texts that no method chose by."""


def judged_by(
    gates: Sequence[Requirement],
    origin: str,
    options: EngineOptions,
    told: Callable[[int, int], None],
    n_chunks: int | None = None,
) -> Callable[[Path], str]:
    """Of a model that was made of ``origin``: its divergence on texts that ``origin`` writes.
    Raises UnmetError."""

    def judge(made: Path) -> str:
        size = min(_CHUNK, load_model(str(made)).config.max_positions // 2 * 2)
        mine = replace(options, model=str(made))
        asked = Evaluation(mine, SELF, origin, size, n_chunks, _SEED)
        figures = evaluate(asked, told)
        faults = [fault for x in gates if (fault := x.fault(figures))]
        if faults:
            raise UnmetError(f"{'; '.join(faults)}: nothing is kept of it, take more bits")
        assert figures.against is not None
        kld = figures.against.kld
        return f"kld {kld.value:.6f} [{kld.low:.6f}, {kld.high:.6f}], {figures.tokens} tokens"

    return judge
