"""The prompts of a completion as ``echo`` gives them back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kvasir.serve.asked import Asked
from kvasir.serve.resolved import Echo, Ids
from kvasir.tokenizer.detokenize import Places
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.validation.params import n_alternatives

INLINE_TOKENS = 128
"""Prompts up to this size are read on the event loop (about a millisecond, however many they are),
longer ones in a thread."""


async def read_echoes(
    asked: Asked, prompts: Sequence[Ids], tokenizer: Tokenizer
) -> tuple[Echo, ...]:
    """One for each of ``prompts``, those of ``asked`` as ids; none where none is asked for."""
    if not asked.echoes:
        return ()
    if sum(map(len, prompts)) <= INLINE_TOKENS:
        return _echoes(asked, prompts, tokenizer)
    return await asyncio.to_thread(_echoes, asked, prompts, tokenizer)


def _echoes(asked: Asked, prompts: Sequence[Ids], tokenizer: Tokenizer) -> tuple[Echo, ...]:
    needs_places = n_alternatives(asked.params) is not None
    echoes = []
    for written, ids in zip(asked.prompts, prompts, strict=True):
        if isinstance(written, str) and asked.params.truncate_prompt_tokens is None:
            begins = tokenizer.begins(written, asked.add_special) if needs_places else ()
            echoes.append(Echo(written, tuple(begins)))
        else:
            places = Places(tokenizer, skip_special=False)
            begins = [*map(places.next, ids)] if needs_places else ()
            echoes.append(Echo(tokenizer.decode(ids, skip_special=False), tuple(begins)))
    return tuple(echoes)
