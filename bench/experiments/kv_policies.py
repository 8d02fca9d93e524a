"""Paged and contiguous KV memory of the same size under the same requests.

A contiguous allocation reserves the longest possible request for every sequence. That is a block
as long as the context, so that both run on the same scheduler and executor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.experiments.base import Settings
from bench.experiments.drive import Run, at_once, drive
from bench.experiments.engines import FAKE_VOCAB, Made, fake_engine, greedy, tokens
from bench.experiments.lengths import Lengths, sharegpt_like
from kvasir.config.resolved import SchedulerConfig
from kvasir.core.sizes import EngineSizes

CONTEXT = 2048
N_CONTIGUOUS = 16
"""Sequences that the memory holds when each reserves the context."""
BLOCK = 16


@dataclass(slots=True)
class Usage:
    """Sums over the steps of a run in which requests waited for memory."""

    used: int = 0
    """KV entries that hold a computed token."""
    allocated: int = 0
    n_steps: int = 0
    n_sequences: int = 0
    peak: int = 0
    prompts: dict[int, int] = field(default_factory=dict)

    @property
    def waste(self) -> float:
        return 1 - self.used / self.allocated

    @property
    def mean_sequences(self) -> float:
        return self.n_sequences / self.n_steps


def requests_of(settings: Settings) -> list[Lengths]:
    """The workload of both policies."""
    context = settings.pick(CONTEXT, 256)
    return sharegpt_like(settings.pick(240, 12), context)


def run_policy(
    settings: Settings, lengths: Sequence[Lengths], block: int | None
) -> tuple[Run, Usage]:
    """All requests at once; ``block`` None: contiguous."""
    context = settings.pick(CONTEXT, 256)
    n_slots = settings.pick(N_CONTIGUOUS, 4) * context
    size = block or context
    # The scheduler leaves a block free for each running request to grow into. A contiguous sequence
    # never needs it, so these come on top and do not count as memory.
    n_blocks = n_slots // size * (1 if block else 2)
    config = SchedulerConfig(
        EngineSizes(
            vocab_size=FAKE_VOCAB,
            max_model_len=context,
            max_num_seqs=256 if block else n_slots // context,
            max_num_batched_tokens=n_slots,  # every known token of every request
            n_blocks=n_blocks,
            block_size=size,
        ),
        enable_prefix_caching=False,
    )
    made = fake_engine(config)
    prompts = [tokens(FAKE_VOCAB, item.prompt, 1, i) for i, item in enumerate(lengths)]
    requests = [
        greedy(i, prompt, item.output)
        for i, (prompt, item) in enumerate(zip(prompts, lengths, strict=True))
    ]
    usage = Usage(prompts={i: len(prompt) for i, prompt in enumerate(prompts)})
    run = drive(made.engine, at_once(requests), made.clock, lambda run: _watch(run, made, usage))
    return run, usage


def _watch(run: Run, made: Made, usage: Usage) -> None:
    """All running requests are in every step, because the budget fits all their tokens."""
    stats = made.engine.stats()
    if not stats.n_waiting:
        return
    (record,) = made.engine.timeline.recent(1)
    ids = [*record.decodes, *(request_id for request_id, _, _ in record.chunks)]
    live = [i for i in ids if run.traces[i].finish is None]
    usage.used += sum(usage.prompts[i] + len(run.traces[i].tokens) - 1 for i in live)
    n_used = stats.blocks_total - stats.blocks_free - stats.blocks_cached
    usage.allocated += n_used * made.sizes.block_size
    usage.n_steps += 1
    usage.n_sequences += len(live)
    usage.peak = max(usage.peak, len(live))


LENGTHS = (
    "lengths log-normal with ShareGPT's mean 161 prompt and 338 output tokens (Kwon et al. 2023), "
    "sigma 1.0 assumed, at most 2048 together, seed 1; steps in which requests wait for memory"
)
