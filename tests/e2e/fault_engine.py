"""An engine process whose model folder says how it shall misbehave: on the fake executor, or on the
native one, both with the overlapped loop.

``faults.json``: ``seconds`` a step sleeps; ``nonfinite`` maps a seed to the output index with NaN
logits (fake only); ``die_at`` is the step that kills the process; ``fail_at`` the step that raises.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvasir.config.options import EngineOptions
from kvasir.core.messages import Ready
from kvasir.core.plan import Copy, Move, StepPlan, StepResult
from kvasir.core.sizes import EngineSizes
from kvasir.engine.build import BuiltEngine, build_engine
from kvasir.engine.engine import Engine
from kvasir.exec.fake import FakeExecutor
from kvasir.exec.local import LocalExecutor
from kvasir.sched.scheduler import Scheduler
from kvasir.serve.engine_child import main
from tests.sizes import config_of


class FaultyExecutor(LocalExecutor):
    """What ``inner`` does, and the faults."""

    def __init__(self, inner: LocalExecutor, faults: dict[str, Any]) -> None:
        super().__init__(inner.sizes)
        self._inner = inner
        self._seconds_slept = float(faults.get("seconds", 0))
        self._die_at = faults.get("die_at")
        self._fail_at = faults.get("fail_at")

    def run(self, plan: StepPlan) -> StepResult:
        began = time.monotonic()
        time.sleep(self._seconds_slept)
        if plan.step == self._die_at:
            os.kill(os.getpid(), 9)
        if plan.step == self._fail_at:
            raise RuntimeError("injected")
        result = self._inner.run(plan)
        return replace(result, seconds=time.monotonic() - began, began=began)

    def read_block(self, group: int, block: int) -> bytes:
        return self._inner.read_block(group, block)

    def write_block(self, group: int, block: int, data: bytes) -> None:
        self._inner.write_block(group, block, data)

    def move(self, move: Move) -> None:
        self._inner.move(move)

    def copy(self, copy: Copy) -> None:
        self._inner.copy(copy)

    def close(self) -> None:
        super().close()
        self._inner.close()


@dataclass(frozen=True)
class ToyEngine:
    engine: Engine
    sizes: EngineSizes

    def ready(self) -> Ready:
        return Ready(
            model="toy",
            vocab_size=self.sizes.vocab_size,
            max_model_len=self.sizes.max_model_len,
            n_blocks=self.sizes.n_blocks,
            block_size=self.sizes.block_size,
            numerics_id="fake",
            key_root="toy",
            max_num_seqs=self.sizes.max_num_seqs,
        )


def build(options: EngineOptions) -> ToyEngine | BuiltEngine:
    faults = json.loads((Path(options.model or ".") / "faults.json").read_text())
    return _fake(options, faults) if options.executor == "fake" else _native(options, faults)


def _native(options: EngineOptions, faults: dict[str, Any]) -> BuiltEngine:
    sizes = {"max_num_seqs": 32, "max_num_batched_tokens": 512, "kv_memory": "16MiB", "threads": 2}
    built = build_engine(replace(options, **sizes))
    assert isinstance(built.executor, LocalExecutor)
    executor = FaultyExecutor(built.executor, faults)
    scheduler = Scheduler(built.config.scheduler, None, built.key_root)
    engine = Engine(executor, scheduler, overlap=True)
    return replace(built, engine=engine, executor=executor)


def _fake(options: EngineOptions, faults: dict[str, Any]) -> ToyEngine:
    length = options.max_model_len or 4096
    n_blocks = int(faults.get("n_blocks", 2 * length // 16))
    config = config_of(
        max_model_len=length,
        max_num_seqs=32,
        max_num_batched_tokens=512,
        n_blocks=n_blocks,
        block_size=16,
        enable_prefix_caching=True,
    )
    nonfinite = {int(seed): int(at) for seed, at in faults.get("nonfinite", {}).items()}
    executor = FaultyExecutor(FakeExecutor(config.sizes, nonfinite=nonfinite), faults)
    engine = Engine(executor, Scheduler(config), overlap=True)
    return ToyEngine(engine, config.sizes)


if __name__ == "__main__":
    sys.exit(main(build))
