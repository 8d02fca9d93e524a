"""Whether a draft model has the tokens of its target, and which of them both have where not.

Shared tokens alone are drafted then, by their bytes (TLI: Timor et al., arXiv 2502.05202).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from kvasir.core.errors import ConfigError, ModelError, printable
from kvasir.ir.vocabulary import VocabMap
from kvasir.tokenizer.load import load_tokenizer
from kvasir.weights.source import ModelSource

MIN_SHARE = 0.25
"""Of the draft model's tokens, that the target must have: with fewer hardly a text is drafted."""
N_SHOWN = 3
"""Ids that an error names."""


class _Word(msgspec.Struct, frozen=True):
    """What an id stands for."""

    text: bytes
    is_special: bool
    """No text spells it."""


NOTHING = _Word(b"", True)


class DraftVocabulary(msgspec.Struct, frozen=True):
    ids: VocabMap | None
    """None: ids are the same."""
    reason: str
    """As the start-up report shows it."""


class ModelWords(msgspec.Struct, frozen=True):
    """Of a model."""

    name: str
    size: int
    """Of its table of embeddings, which may be padded."""
    words: list[_Word] | None
    """By id; None where there is no tokenizer."""


def words_of(source: ModelSource, size: int) -> ModelWords:
    """``size``: rows of its table of embeddings."""
    name = printable(source.name)
    try:
        tokenizer = load_tokenizer(source)
    except ModelError:
        return ModelWords(name, size, None)
    specials, n = tokenizer.special_ids, tokenizer.vocab_size
    return ModelWords(
        name, size, [_Word(tokenizer.token_bytes(i), i in specials) for i in range(n)]
    )


def draft_vocabulary(target: ModelWords, draft: ModelWords, *, may_differ: bool) -> DraftVocabulary:
    """``may_differ``: shared tokens are enough. Models without a tokenizer are compared by their
    counts. Raises ConfigError with counts, some of the ids that differ, and what to do."""
    sizes = target.size, draft.size
    if target.words is None or draft.words is None:
        return _by_counts(target, draft, may_differ=may_differ)
    wide = _filled(target.words, sizes[0]), _filled(draft.words, sizes[1])
    differing = _differing(*wide)
    if differing and not may_differ:
        raise _refusal(target, draft, differing, wide)
    if differing:
        return _shared(target, draft, *wide)
    if sizes[0] == sizes[1]:
        return DraftVocabulary(None, f"the target's {sizes[0]} tokens")
    n = min(sizes)
    own = [i if i < n else 0 for i in range(sizes[0])]
    of_target = [i if i < n else -1 for i in range(sizes[1])]
    reason = f"the target's, in a table of {sizes[1]} tokens in place of {sizes[0]}"
    return DraftVocabulary(_map(own, of_target), reason)


def unlike(one: ModelWords, other: ModelWords) -> str:
    """How the vocabularies of two models differ; empty where they are equal, tables of embeddings
    included. Models without a tokenizer are compared by their counts."""
    if one.size != other.size:
        return f"{one.size} and {other.size} tokens"
    if one.words is None or other.words is None:
        return ""
    differing = _differing(one.words, other.words)
    shown = "; ".join(_difference(i, one.words, other.words) for i in differing[:N_SHOWN])
    return f"{len(differing)} ids stand for other texts ({shown})" if differing else ""


def _filled(words: Sequence[_Word], n: int) -> list[_Word]:
    """``n`` of them: models pad their tables."""
    return [*words[:n], *[NOTHING] * (n - len(words))]


def _differing(target: Sequence[_Word], draft: Sequence[_Word]) -> list[int]:
    """Ids of texts that stand for other texts; those that no text spells may be called
    otherwise."""
    n = max(len(target), len(draft))
    pairs = zip(_filled(target, n), _filled(draft, n), strict=True)
    return [
        i
        for i, (one, other) in enumerate(pairs)
        if one.text != other.text and (_is_text(one) or _is_text(other))
    ]


def _is_text(word: _Word) -> bool:
    return bool(word.text) and not word.is_special


def _by_counts(target: ModelWords, draft: ModelWords, *, may_differ: bool) -> DraftVocabulary:
    n, own = target.size, draft.size
    if n != own and may_differ:
        raise ConfigError(
            f"use_heterogeneous_vocab needs the tokenizers of {target.name} and {draft.name}: one "
            "has none that can be read, put its tokenizer.json beside it"
        )
    if n != own:
        raise ConfigError(
            f"{target.name} has {n} tokens and the draft model {draft.name} {own}: take a draft "
            "model with the same tokenizer, or drop the draft model, or use the methods suffix or "
            "ngram"
        )
    return DraftVocabulary(None, f"as many tokens as the target, {n}; no tokenizer to compare")


def _refusal(
    target: ModelWords,
    draft: ModelWords,
    differing: Sequence[int],
    words: Sequence[Sequence[_Word]],
) -> ConfigError:
    shown = "; ".join(_difference(i, *words) for i in differing[:N_SHOWN])
    more = f"; and {len(differing) - N_SHOWN} more" if len(differing) > N_SHOWN else ""
    n, own = len(words[0]), len(words[1])
    return ConfigError(
        f"{target.name} has {n} tokens and the draft model "
        f"{draft.name} {own}: {len(differing)} ids stand for other texts "
        f"({shown}{more}). Take a draft model with the same tokenizer, or draft with the tokens "
        "that both have: use_heterogeneous_vocab"
    )


def _difference(i: int, target: Sequence[_Word], draft: Sequence[_Word]) -> str:
    one, other = (_name(each[i]) if i < len(each) else "nothing" for each in (target, draft))
    return f"{i} is {one} and {other}"


def _name(word: _Word) -> str:
    return repr(printable(word.text.decode("utf-8", "replace"))) if word.text else "nothing"


def _shared(
    target: ModelWords, draft: ModelWords, words: Sequence[_Word], own_words: Sequence[_Word]
) -> DraftVocabulary:
    """By texts; of tokens with one text the last counts: bytes come before pieces."""
    ids = {word: i for i, word in enumerate(words) if word.text}
    own_ids = {word: i for i, word in enumerate(own_words) if word.text}
    of_target = [
        ids.get(word, -1) if own_ids.get(word) == i else -1 for i, word in enumerate(own_words)
    ]
    n_shared = sum(i >= 0 for i in of_target)
    share = n_shared / max(1, len(own_ids))
    told = f"{n_shared} of its {len(own_ids)} tokens are the target's ({share:.0%})"
    if share < MIN_SHARE:
        raise ConfigError(
            f"the draft model {draft.name} beside "
            f"{target.name}: {told}, at least {MIN_SHARE:.0%} are needed: take "
            "a draft model with a tokenizer nearer to the target's, or use the methods suffix or "
            "ngram"
        )
    ends = {word.text: i for word, i in own_ids.items() if not word.is_special}
    own = [own_ids.get(word, _end_of(word, ends)) for word in words]
    return DraftVocabulary(_map(own, of_target), told)


def _end_of(word: _Word, ends: dict[bytes, int]) -> int:
    """The longest end of a text that the draft model has as one token: of what it does not know,
    the newest bytes say most of what follows."""
    if not _is_text(word):
        return 0
    cuts = (word.text[i:] for i in range(len(word.text)))
    return next((ends[cut] for cut in cuts if cut in ends), 0)


def _map(own: Sequence[int], of_target: Sequence[int]) -> VocabMap:
    return VocabMap(np.array(own, np.float32), np.array(of_target, np.float32))
