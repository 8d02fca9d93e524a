"""Chunks of a text as llama-perplexity cuts it: as many tokens each, what the model puts before a
prompt in front of each, the second half scored."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from kvasir.checkpoints.loaded import LoadedModel
from kvasir.core.errors import ConfigError, ModelError
from kvasir.evaluation.reader import ChunkReader
from kvasir.tokenizer.load import load_tokenizer
from kvasir.tokenizer.tokenizer import Tokenizer

SELF = "self"
"""In place of a file: texts that a model writes."""
MIN_CHUNKS = 2
"""An error is one of several."""
_SELF_CHUNKS = 16
_MARK = -1

Chunks = list[list[int]]


def chunks_of_file(
    path: Path,
    model: LoadedModel,
    size: int,
    n: int | None,
    options: tuple[str, str] = ("--text", "--chunk-size or --chunks"),
) -> Chunks:
    """The first ``n`` chunks of a UTF-8 text, or all. ``options``: that name it and its chunks.
    Raises ConfigError for one that is none or too short."""
    option, others = options
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{option} {path}: byte {error.start} is no UTF-8 text") from None
    tokenizer = load_tokenizer(model.source)
    before = _before(tokenizer)
    ids = [*before, *tokenizer.encode(text, add_special=False, parse_special=False)]
    n_whole = len(ids) // size
    if n_whole < max(MIN_CHUNKS, n or 0):
        raise ConfigError(
            f"{option} {path} has {len(ids)} tokens, {n_whole} chunks of {size}: "
            f"{max(MIN_CHUNKS, n or 0)} need {max(MIN_CHUNKS, n or 0) * size}; give a longer text, "
            f"or a smaller {others}"
        )
    cut = [ids[i * size : (i + 1) * size] for i in range(n or n_whole)]
    return [[*before, *chunk[len(before) :]] for chunk in cut]


def chunks_written(
    reader: ChunkReader,
    model: LoadedModel,
    size: int,
    n: int | None,
    seed: int,
    kept: Path | None = None,
) -> Chunks:
    """What ``model`` writes, each from what it puts before a prompt; chunk i by ``seed`` + i.
    ``kept``: a file of this model's, to which each is added, and from which those are taken that
    are there."""
    first, wanted = _first(model), n or _SELF_CHUNKS
    if kept is None:
        return [reader.write(first, size, seed + i) for i in range(wanted)]
    found = _known(kept, size, model.config.vocab_size)[:wanted]
    kept.write_bytes(b"".join(json.dumps(x).encode() + b"\n" for x in found))
    with kept.open("ab") as stream:
        for i in range(len(found), wanted):
            found.append(reader.write(first, size, seed + i))
            stream.write(json.dumps(found[-1]).encode() + b"\n")
            stream.flush()
    return found


def _known(path: Path, size: int, n_ids: int) -> Chunks:
    """Those in front of the first that is none of ``size`` tokens below ``n_ids``."""
    found: Chunks = []
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
        try:
            ids = msgspec.json.decode(line, type=list[int])
        except msgspec.DecodeError:
            break
        if len(ids) != size or min(ids) < 0 or max(ids) >= n_ids:
            break
        found.append(ids)
    return found


def _before(tokenizer: Tokenizer) -> list[int]:
    ids = tokenizer.surround([_MARK])
    return ids[: ids.index(_MARK)]


def _first(model: LoadedModel) -> int:
    """Begin-of-text, or what ends one: another begins behind it."""
    try:
        tokenizer = load_tokenizer(model.source)
    except ModelError:
        return 0
    known = [x for x in (tokenizer.bos_id, *tokenizer.eos_ids) if x is not None]
    return known[0] if known else 0
