"""Tokens that no model makes of a text: special ones, and those that are only never split."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tokenizers
from tokenizers import AddedToken

from kvasir.formats.fields import get_str
from kvasir.tokenizer.vocabulary import CONTROL, UNKNOWN, USER_DEFINED, TokenList

END_NAMES = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>",
    "<turn|>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>", "[EOT]",
    "<｜end▁of▁sentence｜>", "<end_of_utterance>",
)  # fmt: skip
"""Tokens that end a turn by convention; files often name only one of theirs in the metadata."""

Strips = Callable[[str], tuple[bool, bool]]
"""Whether the spaces before and behind a token of that name are part of it."""

_MASK_PRE = ("jina-v2-de", "jina-v2-es", "jina-v2-code", "mmbert")
_MASK_ARCHITECTURES = ("nomic-bert-moe", "jina-bert-v3")
_PHI3_PLAIN = ("<unk>", "<s>", "<|endoftext|>")


def add_listed(
    backend: tokenizers.Tokenizer, vocabulary: TokenList, strips: Strips
) -> tuple[list[int], list[int]]:
    """Adds those that ``vocabulary`` lists; the ids of special ones, and of the others."""
    tokens, ends = vocabulary.tokens, frozenset(END_NAMES)
    kinds = (UNKNOWN, CONTROL)
    special = [i for i, kind in enumerate(vocabulary.types) if kind in kinds or tokens[i] in ends]
    taken = frozenset(special)
    plain = [i for i in vocabulary.ids(USER_DEFINED) if i not in taken]
    backend.add_special_tokens([_added(tokens[i], strips, True) for i in special])
    backend.add_tokens([_added(tokens[i], strips, False) for i in plain])
    return special, plain


def _added(name: str, strips: Strips, is_special: bool) -> AddedToken:
    left, right = strips(name)
    return AddedToken(name, lstrip=left, rstrip=right, normalized=False, special=is_special)


def strip_rules(config: Mapping[str, object]) -> Strips:
    """What GGUF metadata does not say, by the names of models, as llama.cpp has it."""
    name = (get_str(config, "general.name") or "").lower()
    pre = get_str(config, "tokenizer.ggml.pre") or ""
    if pre in _MASK_PRE or get_str(config, "general.architecture") in _MASK_ARCHITECTURES:
        return lambda token: (token == "<mask>", False)
    if "phi-3" in name or "phi3" in name:
        return lambda token: (False, token not in _PHI3_PLAIN)
    if "modern-bert" in name or "modernbert" in name:
        return lambda token: (token == "[MASK]", False)
    return lambda token: (False, False)
