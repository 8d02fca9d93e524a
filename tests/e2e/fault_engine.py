"""An engine process on the fake executor whose model folder says how it shall misbehave.

``faults.json``: ``seconds`` a step sleeps; ``nonfinite`` maps a seed to the output index with NaN
logits;
``die_at`` is the step that kills the process; ``fail_at`` the step that raises.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from kvasir.config.options import EngineOptions
from kvasir.config.resolved import SchedulerConfig
from kvasir.core.messages import Ready
from kvasir.core.plan import StepPlan, StepResult
from kvasir.engine.engine import Engine
from kvasir.exec.base import ExecutorSpec
from kvasir.exec.fake import FakeExecutor
from kvasir.sched.scheduler import Scheduler
from kvasir.serve.engine_child import main


class FaultyExecutor(FakeExecutor):
    def __init__(self, spec: ExecutorSpec, faults: dict[str, object]) -> None:
        nonfinite = faults.get("nonfinite", {})
        assert isinstance(nonfinite, dict)
        super().__init__(spec, nonfinite={int(k): int(v) for k, v in nonfinite.items()})
        self._seconds_slept = float(str(faults.get("seconds", 0)))
        self._die_at = faults.get("die_at")
        self._fail_at = faults.get("fail_at")

    def run(self, plan: StepPlan) -> StepResult:
        began = time.perf_counter()
        time.sleep(self._seconds_slept)
        if plan.step == self._die_at:
            os.kill(os.getpid(), 9)
        if plan.step == self._fail_at:
            raise RuntimeError("injected")
        result = super().run(plan)
        return replace(result, seconds=time.perf_counter() - began)


@dataclass(frozen=True)
class ToyEngine:
    engine: Engine
    spec: ExecutorSpec

    def ready(self) -> Ready:
        return Ready(
            model="toy",
            vocab_size=self.spec.vocab_size,
            max_model_len=self.spec.max_model_len,
            n_blocks=self.spec.n_blocks,
            block_size=self.spec.block_size,
            numerics_id=self.spec.numerics_id,
            key_root="toy",
            max_num_seqs=self.spec.max_num_seqs,
        )


def build(options: EngineOptions) -> ToyEngine:
    length = options.max_model_len or 4096
    faults = json.loads((Path(options.model or ".") / "faults.json").read_text())
    n_blocks = int(faults.get("n_blocks", 2 * length // 16))
    spec = ExecutorSpec(256, length, 32, 512, n_blocks, 16, "fake")
    config = SchedulerConfig(
        max_model_len=length,
        max_num_seqs=32,
        max_num_batched_tokens=512,
        n_blocks=n_blocks,
        block_size=16,
        enable_prefix_caching=True,
    )
    engine = Engine(FaultyExecutor(spec, faults), Scheduler(config), overlap=False)
    return ToyEngine(engine, spec)


if __name__ == "__main__":
    sys.exit(main(build))
