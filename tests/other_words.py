"""A tiny model in the words of another vocabulary: rows of its matrices and tokens in another
order, some left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests import tiny
from tests.tiny import TinyModel

_MATRICES = ("model.embed_tokens.weight", "lm_head.weight")


def reordered(n_left: int = tiny.VOCAB, n_same: int = len(tiny.SPECIAL)) -> list[int]:
    """Of each token its id before: ``n_left`` in all, the first ``n_same`` where they were."""
    return [*range(n_same), *reversed(range(n_same, n_left))]


def write_other(model: TinyModel, folder: Path, order: Sequence[int]) -> Path:
    """``model`` with its token ``order[i]`` as ``i``."""
    chosen = list(order)
    tensors = {x: t[chosen] if x in _MATRICES else t for x, t in model.tensors.items()}
    config = {**model.config, "vocab_size": len(chosen)}
    tiny.write_hf(replace(model, config=config, tensors=tensors), folder)
    tokenizer_of(chosen).save(str(folder / "tokenizer.json"))
    return folder


def tokenizer_of(order: Sequence[int]) -> Tokenizer:
    """As ``tiny.tokenizer``, whose token ``order[i]`` is ``i``."""
    pieces, merges = tiny.pieces()
    vocab = {pieces[old]: new for new, old in enumerate(order)}
    kept = [pair for pair in merges if "".join(pair) in vocab]
    made = Tokenizer(models.BPE(vocab, kept))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(tiny.SPECIAL))
    return made
