"""Ctrl-C, threads, forks and the end of an LLM, with the native engine."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvasir import LLM
from tests import tiny
from tests.interrupts import CALLS, PARAMS, PROMPTS, Sender, interrupt, words

N_INTERRUPTS = int(os.environ.get("KVASIR_INTERRUPTS", "60"))
"""Of both loops together; ``make interrupts`` sends 1,000."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.write_hf(tiny.llama(), tmp_path_factory.mktemp("model")))


def load(model: str, **options: object) -> LLM:
    return LLM(model, max_model_len=128, max_num_seqs=4, threads=1, **options)


@pytest.mark.timeout(120 + 2 * N_INTERRUPTS)
@pytest.mark.parametrize("overlap", [True, False])
def test_an_interrupt_at_any_moment_is_one(model: str, overlap: bool, tmp_path: Path) -> None:
    sender = Sender(tmp_path)
    with load(model, async_scheduling=overlap) as llm:
        n_before = interrupt(llm, sender, N_INTERRUPTS // 2, seed=int(overlap))
    sender.close()
    assert n_before < 4 * N_INTERRUPTS


@pytest.mark.parametrize("overlap", [True, False])
def test_threads_wait_for_each_other(model: str, overlap: bool) -> None:
    names = ["generate", "chat", "beams"] * 32
    with load(model, async_scheduling=overlap) as llm, ThreadPoolExecutor(8) as pool:
        expected = {name: words(call(llm)) for name, call in CALLS.items()}
        found = pool.map(lambda name: words(CALLS[name](llm)), names)
        assert list(found) == [expected[name] for name in names]


def test_asyncio_awaits_calls_in_threads(model: str) -> None:
    with load(model) as llm:
        expected = words(llm.generate(PROMPTS, PARAMS, use_tqdm=False))

        async def both() -> list[object]:
            ask = (asyncio.to_thread(llm.generate, PROMPTS, PARAMS, False) for _ in range(2))
            return [words(outputs) for outputs in await asyncio.gather(*ask)]

        assert asyncio.run(both()) == [expected, expected]
