"""A model, and another beside it, on the same chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvasir.checkpoints.loaded import LoadedModel, load_model
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError, ModelError
from kvasir.engine.build import build_engine
from kvasir.evaluation.chunks import MIN_CHUNKS, SELF, Chunks, chunks_of_file, chunks_written
from kvasir.evaluation.figures import (
    Figures,
    Floats64,
    TokenScores,
    against,
    log_probabilities,
    losses,
    perplexity,
    scores,
)
from kvasir.evaluation.reader import STEP, ChunkReader
from kvasir.tokenizer.vocabularies import ModelWords, unlike, words_of

_ROWS = 16
"""That are in float64 together: of 150,000 words some 20 MB an array."""
Told = Callable[[int, int], None]


class Evaluation(msgspec.Struct, frozen=True):
    """What is evaluated, and on what."""

    options: EngineOptions
    """Of both models, but for the model itself."""
    text: str
    """A file, or ``self``."""
    reference: str | None = None
    chunk_size: int = 512
    n_chunks: int | None = None
    seed: int = 0


def evaluate(asked: Evaluation, told: Told = lambda done, n: None) -> Figures:
    """``told``: how many chunks of how many are done. Raises ConfigError and ModelError."""
    check(asked)
    model = _opened(asked.options.model)
    other = None if asked.reference is None else _opened(asked.reference)
    if other is not None and (why := unlike(_words(model), _words(other))):
        raise ConfigError(
            f"{model.source.name} and the reference {other.source.name} have other vocabularies: "
            f"{why}. Distributions over different tokens have no divergence: take a reference "
            "with the same tokenizer, or compare perplexities of each alone"
        )
    if asked.text != SELF:
        chunks = chunks_of_file(Path(asked.text), model, asked.chunk_size, asked.n_chunks)
    reader = _reader(model, asked)
    beside = None if other is None else _reader(other, asked)
    if asked.text == SELF:
        writer = (reader, model) if other is None or beside is None else (beside, other)
        chunks = chunks_written(*writer, asked.chunk_size, asked.n_chunks, asked.seed)
    found = _scored(chunks, reader, beside, told)
    ppl, error = perplexity(found.loss)
    return Figures(
        model=model.source.name,
        chunks=len(chunks),
        chunk_size=asked.chunk_size,
        tokens=found.loss.size,
        ppl=ppl,
        ppl_error=error,
        against=None if other is None else against(other.source.name, found),
    )


def _words(model: LoadedModel) -> ModelWords:
    return words_of(model.source, model.config.vocab_size)


def _opened(path: str | None) -> LoadedModel:
    model = load_model(path)
    if not model.config.writes:
        raise ConfigError(
            f"{model.source.name} makes vectors or labels of texts and writes none: only a model "
            "that writes has a perplexity"
        )
    return model


def check(asked: Evaluation) -> None:
    """Raises ConfigError."""
    if asked.chunk_size < 4 or asked.chunk_size % 2:
        raise ConfigError(f"--chunk-size is {asked.chunk_size}: expected an even number from 4 on")
    if asked.n_chunks is not None and asked.n_chunks < MIN_CHUNKS:
        raise ConfigError(f"--chunks is {asked.n_chunks}: an error needs at least {MIN_CHUNKS}")
    if asked.text != SELF and not Path(asked.text).is_file():
        raise ConfigError(
            f"--text {asked.text} is no file: give one of plain text in the model's language, or "
            f"'{SELF}' for texts that the model writes"
        )


def _reader(model: LoadedModel, asked: Evaluation) -> ChunkReader:
    options = replace(
        asked.options,
        model=str(model.source.origin),
        max_model_len=asked.chunk_size,
        max_num_seqs=1,
        max_num_batched_tokens=STEP,
        async_scheduling=False,
        enable_prefix_caching=False,
    )
    return ChunkReader(build_engine(options, loaded=model).executor)


def _scored(
    chunks: Chunks, reader: ChunkReader, beside: ChunkReader | None, told: Told
) -> TokenScores:
    """[chunks, scored tokens] each."""
    rows: list[TokenScores] = []
    for i, tokens in enumerate(chunks):
        parts = list(_parts(tokens, reader, beside))
        rows.append(TokenScores(*(np.concatenate(each) for each in zip(*parts, strict=True))))
        told(i + 1, len(chunks))
    return TokenScores(*(np.stack(each) for each in zip(*rows, strict=True)))


def _parts(
    tokens: list[int], reader: ChunkReader, beside: ChunkReader | None
) -> Iterator[TokenScores]:
    """Of the tokens behind the middle one, run by run."""
    half, size = len(tokens) // 2, len(tokens)
    for begin in range(0, size, STEP):
        end = min(begin + STEP, size)
        n = max(0, end - max(begin, half))
        logits = reader.read(tokens, begin, end, n)
        others = None if beside is None else beside.read(tokens, begin, end, n)
        targets = np.array(tokens[end - n + 1 : end + 1], np.int64)
        for at in range(0, len(targets), _ROWS):
            to = min(at + _ROWS, len(targets))
            other = None if others is None else others[at:to]
            yield _run(logits[at:to], other, targets[at:to])


def _run(
    logits: NDArray[np.float32], other: NDArray[np.float32] | None, targets: NDArray[np.int64]
) -> TokenScores:
    logp = _checked(logits, "model")
    if other is None:
        nothing: Floats64 = np.zeros(len(targets))
        return TokenScores(losses(logp, targets), nothing, nothing, nothing, nothing)
    return scores(logp, _checked(other, "reference"), targets)


def _checked(logits: NDArray[np.float32], whose: str) -> Floats64:
    """Log probabilities. Raises ModelError."""
    if not np.isfinite(logits.max(axis=1)).all():
        raise ModelError(f"the {whose} has logits that are no numbers: its weights are broken")
    return log_probabilities(logits)
