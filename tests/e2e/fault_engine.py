"""An engine process whose model folder says how it shall misbehave: on the fake executor, or on the
native one, both with the overlapped loop.

``faults.json``: ``seconds`` a step sleeps; ``nonfinite`` maps a seed to the output index with NaN
logits (fake only). A fault has a place: ``at``, the number of a step; or ``poison``, the seed of a
request, from its output ``output`` on. There it does ``what`` ("kill", "segfault", "raise",
"sleep": it never ends, "stop": SIGSTOP), ``when`` ("before", "inside" or "after" the step, or
"frame": in the middle of what is told of it), so many ``times`` (1; 0: every
time) over all lives of the engine.
``mask_seconds``: that each mask takes longer.
``start``: seconds that loading takes longer; ``broken_start``: starts after the first that fail.
``count``: a folder where each engine leaves, under its id, how many tokens it has drawn.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec.structs import replace as with_fields

from kvasir.config.options import EngineOptions
from kvasir.core.messages import Ready, StepEvents
from kvasir.core.plan import Copy, Move, StepPlan, StepResult
from kvasir.core.sizes import EngineSizes
from kvasir.engine.build import BuiltEngine, build_engine
from kvasir.engine.engine import Engine
from kvasir.exec.fake import FakeExecutor
from kvasir.exec.fake_backend import FAKE_FACTS
from kvasir.exec.local import LocalExecutor
from kvasir.grammar.masks import grammar_masks
from kvasir.sampling.masks import Bits, Masks
from kvasir.sched.scheduler import Scheduler
from kvasir.serve import frames
from kvasir.serve.engine_child import main
from kvasir.serve.outbox import Outbox
from tests.sizes import config_of


class Fault:
    """One fault, of which the model folder remembers how often it struck."""

    def __init__(self, faults: dict[str, Any], folder: Path) -> None:
        self._at = faults.get("at")
        self._poison = faults.get("poison")
        self._output = int(faults.get("output", 0))
        self._what = faults.get("what", "kill")
        self._when = faults.get("when", "before")
        self._times = int(faults.get("times", 1))
        self._struck = folder / "struck"
        self._poisoned: set[int] = set()
        """Slots."""

    @contextmanager
    def around(self, plan: StepPlan) -> Iterator[None]:
        for opening in plan.opens:
            self._poisoned.discard(opening.slot)
            if opening.params.seed == self._poison:
                self._poisoned.add(opening.slot)
        is_here = plan.step == self._at or any(
            row.slot in self._poisoned and row.n_logits and row.out_index >= self._output
            for row in plan.rows
        )
        when = self._when if is_here and self._is_left() else ""
        if when == "before":
            self._strike()
        if when == "inside":
            threading.Timer(0.0002, self._strike).start()
        yield
        if when == "inside":
            time.sleep(0.1)  # the step was shorter
        if when == "after":
            self._strike()
        if when == "frame":
            CutOutbox.strike = self._strike

    def _is_left(self) -> bool:
        n = len(self._struck.read_bytes()) if self._struck.exists() else 0
        return not self._times or n < self._times

    def _strike(self) -> None:
        with self._struck.open("ab") as file:
            file.write(b"x")
        if self._what == "raise":
            raise RuntimeError("injected")
        if self._what == "sleep":
            time.sleep(10_000)
        signals = {"kill": signal.SIGKILL, "segfault": signal.SIGSEGV, "stop": signal.SIGSTOP}
        os.kill(os.getpid(), signals[self._what])


class CutOutbox(Outbox):
    """Strikes with half a frame on its way."""

    strike: Callable[[], None] | None = None

    def step(self, said: StepEvents) -> None:
        if self.strike is not None and said.events:
            self._sock.sendall(frames.encode(said)[:9])
            CutOutbox.strike()  # type: ignore[misc]
        super().step(said)


class FaultyExecutor(LocalExecutor[Any]):
    """What ``inner`` does, and the faults."""

    def __init__(self, inner: LocalExecutor, faults: dict[str, Any], folder: Path) -> None:
        super().__init__(inner.sizes)
        self._inner = inner
        self.new_masks = inner.new_masks
        self._seconds_slept = float(faults.get("seconds", 0))
        self._fault = Fault(faults, folder)
        self._n_drawn = 0
        self._drawn = None
        if "count" in faults:
            path = Path(faults["count"], f"{os.getpid()}")
            self._drawn = os.open(path, os.O_CREAT | os.O_WRONLY)

    def run(self, plan: StepPlan) -> StepResult:
        began = time.monotonic()
        time.sleep(self._seconds_slept)
        self._inner.masks = self.masks
        with self._fault.around(plan):
            result = self._inner.run(plan)
        if self._drawn is not None:
            self._n_drawn += len(result.outputs)
            os.pwrite(self._drawn, b"%d" % self._n_drawn, 0)
        return with_fields(result, seconds=time.monotonic() - began, began=began)

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
        if self._drawn is not None:
            os.close(self._drawn)


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
            vectors=FAKE_FACTS.vectors,
        )


def build(options: EngineOptions) -> ToyEngine | BuiltEngine:
    folder = Path(options.model or ".")
    faults = json.loads((folder / "faults.json").read_text())
    _start(faults, folder)
    make = _fake if options.executor == "fake" else _native
    return make(options, faults, folder)


def _start(faults: dict[str, Any], folder: Path) -> None:
    time.sleep(float(faults.get("start", 0)))
    with (folder / "starts").open("ab") as file:
        file.write(b"x")
        n_starts = file.tell()
    if 1 < n_starts <= 1 + int(faults.get("broken_start", 0)):
        raise RuntimeError("no start")


SIZES: dict[str, Any] = {
    "max_num_seqs": 32,
    "max_num_batched_tokens": 512,
    "kv_memory": "16MiB",
    "threads": 2,
}
"""Of an engine that is told none."""


def _native(options: EngineOptions, faults: dict[str, Any], folder: Path) -> BuiltEngine:
    told = {name: value for name in SIZES if (value := getattr(options, name)) is not None}
    built = build_engine(replace(options, **{**SIZES, **told}))
    assert isinstance(built.executor, LocalExecutor)
    executor = FaultyExecutor(built.executor, faults, folder)
    scheduler = Scheduler(built.config.scheduler, None, built.key_root)
    masks = _masks(options, built.config.sizes, faults)
    engine = Engine(executor, scheduler, overlap=True, masks=masks)
    return with_fields(built, engine=engine, executor=executor)


def _fake(options: EngineOptions, faults: dict[str, Any], folder: Path) -> ToyEngine:
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
    executor = FaultyExecutor(FakeExecutor(config.sizes, nonfinite=nonfinite), faults, folder)
    masks = _masks(options, config.sizes, faults)
    engine = Engine(executor, Scheduler(config), overlap=True, masks=masks)
    return ToyEngine(engine, config.sizes)


def _masks(options: EngineOptions, sizes: EngineSizes, faults: dict[str, Any]) -> Masks:
    found = grammar_masks(options.model, sizes.vocab_size)
    fill, seconds = found.fill, float(faults.get("mask_seconds", 0))

    def slow(slot: int, path: Sequence[int], bits: Bits) -> None:
        time.sleep(seconds)
        fill(slot, path, bits)

    found.fill = slow  # type: ignore[method-assign]
    return found


if __name__ == "__main__":
    from kvasir.serve import engine_child

    engine_child.Outbox = CutOutbox  # type: ignore[misc]
    sys.exit(main(build))
