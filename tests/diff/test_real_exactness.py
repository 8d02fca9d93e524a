"""One answer with the default model: 64 streams of mixed lengths, each as it is alone.

``KVASIR_LONG=1`` (``make test-long``): longer prompts and answers, in more ways; minutes.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as with_fields

from kvasir.core.request import EngineRequest
from kvasir.core.sizes import EngineSizes
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.tokenizer.load import load_tokenizer
from kvasir.weights.source import open_model
from tests.exactness import Answer, Sizes, Variant, run
from tests.forms import IS_LONG
from tests.loading import Loaded, load
from tests.native import BEST
from tests.request_sets import make_requests
from tests.smollm2 import smollm2

DOCS = Path(__file__).parents[2] / "docs"
N_STREAMS, MAX_LEN = 64, 4096 if IS_LONG else 2304
LENGTHS = (2100, 2600, 3100, 3600) if IS_LONG else (2100,)
"""Of the long prompts. The kinds of their requests score no prompt."""
MAX_PROMPT, MAX_TOKENS = (400, 64) if IS_LONG else (24, 5)
SHORT = (Variant("64 streams, overlapped", n_seqs=64, chunk=512, overlap=True, order=1),)
LONG = (
    replace(SHORT[0], name="chunks of 64, staggered", chunk=64, stagger=1),
    replace(SHORT[0], name="cached", cache=True, stagger=2, order=2),
    replace(SHORT[0], name="preempted", n_spare_blocks=40, order=3),
    replace(SHORT[0], name="plain", overlap=False, order=4),
)
ALONE = Variant("alone", n_seqs=1, chunk=512)


class Case:
    def __init__(self) -> None:
        self.model: Loaded = load(smollm2(), "auto", max_positions=MAX_LEN)
        self.sizes = Sizes(self.model.config.vocab_size, max_model_len=MAX_LEN)
        self.requests = make_streams(self.model.config.vocab_size)
        self.expected: dict[int, Answer] = run(self.make, self.requests, self.sizes, ALONE).answers

    def make(self, sizes: EngineSizes) -> CpuExecutor:
        settings = CpuSettings(2, BEST, hashes=True)
        return CpuExecutor(self.model.program, self.model.binding, sizes, settings)


def make_streams(vocab: int) -> list[EngineRequest]:
    """Of all kinds; prompts are pieces of the documentation, at every eighth request a long one
    while there are lengths."""
    text = "\n".join(path.read_text() for path in sorted(DOCS.glob("*.md")))
    tokens = load_tokenizer(open_model(smollm2())).encode(text)
    assert len(tokens) > 2 * MAX_LEN
    rng = random.Random(64)
    lengths = dict(zip(range(0, N_STREAMS, 8), LENGTHS, strict=False))
    streams = []
    for one in make_requests(
        N_STREAMS, vocab, seed=64, max_prompt=MAX_PROMPT, max_tokens=MAX_TOKENS
    ):
        n = lengths.get(one.id, len(one.prompt))
        start = rng.randrange(len(tokens) - n)
        streams.append(with_fields(one, prompt=tuple(tokens[start : start + n])))
    return streams


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


@pytest.mark.timeout(3000 if IS_LONG else 120)
@pytest.mark.parametrize("variant", SHORT + LONG * IS_LONG, ids=lambda variant: variant.name)
def test_64_streams_are_what_each_is_alone(case: Case, variant: Variant) -> None:
    found = run(case.make, case.requests, case.sizes, variant).answers
    for one in case.requests:
        assert found[one.id] == case.expected[one.id], (one.id, len(one.prompt), one.params)
    assert sum(sum(map(bool, answer.hashes)) for answer in found.values()) > 100
    assert max(len(one.prompt) for one in case.requests) > 2048
