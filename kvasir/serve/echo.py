"""The prompts of a completion as ``echo`` gives them back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from kvasir.serve.jobs import Ids, split_prompts
from kvasir.serve.protocol.completions import CompletionRequest
from kvasir.tokenizer.detokenize import Places
from kvasir.tokenizer.tokenizer import Tokenizer

INLINE_TOKENS = 128
"""Prompts up to this size are read on the event loop (about a millisecond, however many they are),
longer ones in a thread."""


@dataclass(frozen=True, slots=True)
class Echo:
    text: str
    begins: tuple[int, ...]
    """Where in ``text`` (characters) each token begins; empty unless logprobs are asked for."""


async def read_echoes(
    request: CompletionRequest, prompts: Sequence[Ids], tokenizer: Tokenizer
) -> tuple[Echo, ...]:
    """One for each of ``prompts``, the request's own as ids; none without ``echo``."""
    if not request.echo:
        return ()
    if sum(map(len, prompts)) <= INLINE_TOKENS:
        return _echoes(request, prompts, tokenizer)
    return await asyncio.to_thread(_echoes, request, prompts, tokenizer)


def _echoes(
    request: CompletionRequest, prompts: Sequence[Ids], tokenizer: Tokenizer
) -> tuple[Echo, ...]:
    needs_places = request.logprobs is not None
    echoes = []
    for written, ids in zip(split_prompts(request.prompt), prompts, strict=True):
        if isinstance(written, str):
            begins = tokenizer.begins(written, request.add_special_tokens) if needs_places else ()
            echoes.append(Echo(written, tuple(begins)))
        else:
            places = Places(tokenizer, skip_special=False)
            begins = [*map(places.next, ids)] if needs_places else ()
            echoes.append(Echo(tokenizer.decode(ids, skip_special=False), tuple(begins)))
    return tuple(echoes)
