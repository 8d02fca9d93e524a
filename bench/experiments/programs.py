"""What experiments with programs have in common."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import numpy as np

import kvasir.lang as sgl
from bench.experiments.base import Json, Settings
from bench.experiments.engines import SEED
from kvasir.bench.report import describe_engine
from kvasir.checkpoints.loaded import load_model
from kvasir.config.options import EngineOptions
from kvasir.offline.llm import LLM
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.validation.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


@sgl.function
def continued(s: sgl.ProgramState, text: str, n_out: int) -> str:
    """One call."""
    s += text + sgl.gen("x", n_out)
    return s["x"]


@contextmanager
def opened(settings: Settings, **changes: Any) -> Iterator[LLM]:
    given = {field.name: getattr(settings.options, field.name) for field in fields(EngineOptions)}
    plain = EngineOptions()
    chosen = {name: value for name, value in given.items() if value != getattr(plain, name)}
    with LLM(**{**chosen, **changes}) as llm:
        yield llm


def described(settings: Settings, llm: LLM) -> Json:
    built = llm.session().opened().built
    return describe_engine(load_model(settings.options.model), built)


def asked(llm: LLM, texts: list[str], params: SamplingParams) -> tuple[float, list[list[int]]]:
    """Seconds that the first answer of each took together, and their tokens."""
    began = time.perf_counter()
    outputs = llm.generate(texts, params, use_tqdm=False)
    seconds = time.perf_counter() - began
    return seconds, [list(output.outputs[0].token_ids) for output in outputs]


class Vocabulary:
    """Words of one token each, where the tokenizer has them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        found = (tokenizer.decode([i], continues=True) for i in range(tokenizer.vocab_size))
        words = [text for text in found if text[:1] == " " and text[1:].isascii()]
        words = [text for text in words if len(text) > 3 and text[1:].isalpha()]
        self._words = [
            text for text in words if len(tokenizer.encode(text, add_special=False)) == 1
        ] or [" a"]

    def text(self, n: int, *key: int) -> str:
        """``n`` random words, the same for the same ``key``."""
        chosen = np.random.default_rng((SEED, *key)).integers(0, len(self._words), n)
        return "".join(self._words[i] for i in chosen)
