"""POST /tokenize and /detokenize."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from kvasir.core.errors import RequestError
from kvasir.core.messages import Ready
from kvasir.serve.conversation import chat_prompt
from kvasir.serve.echo import INLINE_TOKENS
from kvasir.serve.exchange import Exchange
from kvasir.serve.protocol.parse import parse_request
from kvasir.serve.protocol.tokens import (
    UNSUPPORTED_TOKENIZE,
    DetokenizeRequest,
    TokenizePiece,
    TokenizeRequest,
)
from kvasir.serve.protocol.tools import read_tools
from kvasir.serve.resolved import Json
from kvasir.serve.service import Service
from kvasir.serve.text import Rendering, TextModel
from kvasir.tokenizer.messages import ChatMessage, Conversation, read_messages
from kvasir.tokenizer.spelling import TextPiece
from kvasir.validation.params import check_prompt
from kvasir.validation.warn import warned


async def post_tokenize(service: Service, exchange: Exchange) -> None:
    read = partial(_read, strict=service.options.strict)
    async with exchange.reading(read) as (request, warnings, (messages, notes)):
        text, info = await service.model_of(request.model).open()
        ids = await _ids(request, messages, text, info, service.options.tool_format)
    names = await asyncio.to_thread(_names, text, ids) if request.return_token_strs else None
    pieces = await asyncio.to_thread(_pieces, text, ids) if request.with_pieces else None
    answer: Json = {
        "count": len(ids),
        "max_model_len": info.max_model_len,
        "tokens": ids if pieces is None else pieces,
        "token_strs": names,
    }
    await exchange.send_json({**answer, **warned(warnings + notes)})


async def post_detokenize(service: Service, exchange: Exchange) -> None:
    def read(body: Json) -> tuple[DetokenizeRequest, tuple[str, ...]]:
        return parse_request(DetokenizeRequest, body, {}, strict=service.options.strict)

    async with exchange.reading(read) as (request, warnings):
        text, info = await service.model_of(request.model).open()
        if len(request.tokens) <= INLINE_TOKENS:
            prompt = _decode(request.tokens, text, info)
        else:
            prompt = await asyncio.to_thread(_decode, request.tokens, text, info)
    await exchange.send_json({"prompt": prompt, **warned(warnings)})


def _read(body: Json, *, strict: bool) -> tuple[TokenizeRequest, tuple[str, ...], Conversation]:
    """Raises RequestError (400)."""
    request, warnings = parse_request(TokenizeRequest, body, UNSUPPORTED_TOKENIZE, strict=strict)
    asked = request.prompt, request.content, request.messages, request.pieces
    if sum(each is not None for each in asked) != 1:
        raise RequestError("send one of prompt, content, messages and pieces", param="prompt")
    if request.tools and request.messages is None:
        raise RequestError("tools belong to messages: send these", param="tools")
    said = read_messages(request.messages) if request.messages is not None else ((), ())
    return request, warnings, said


def _decode(tokens: Sequence[int], text: TextModel, info: Ready) -> str:
    if tokens:
        check_prompt(
            tokens, vocab_size=info.vocab_size, max_model_len=info.max_model_len, name="tokens"
        )
    return text.tokenizer.decode(tokens, skip_special=False)


def _pieces(text: TextModel, ids: Sequence[int]) -> list[Json]:
    return [{"id": i, "piece": _piece(text.tokenizer.token_bytes(i))} for i in ids]


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


def _names(text: TextModel, ids: Sequence[int]) -> list[str | None]:
    return [text.tokenizer.piece(i) for i in ids]


async def _ids(
    request: TokenizeRequest,
    messages: Sequence[ChatMessage],
    text: TextModel,
    info: Ready,
    tool_format: str,
) -> tuple[int, ...]:
    said = request.add_special if request.add_special_tokens is None else request.add_special_tokens
    special = request.prompt is not None if said is None else said
    limit, pieces = info.max_model_len, request.pieces
    prompt = request.content if request.prompt is None else request.prompt
    if prompt is not None and request.parse_special:
        return await text.encode(prompt, add_special=special, limit=limit, param="prompt")
    if prompt is not None:
        pieces = [TokenizePiece(text=prompt, special=False)]
    if pieces is not None:
        return await text.spell(
            [TextPiece(piece.text, piece.special) for piece in pieces],
            add_special=special,
            continues=request.continues,
            limit=limit,
        )
    tools = read_tools(request.tools, None, parallel=True)
    return await chat_prompt(
        messages,
        text,
        limit,
        Rendering(
            add_generation_prompt=request.add_generation_prompt,
            continues_last=request.continue_final_message,
            add_special=special,
            tools=() if tools is None else tuple(tools.shown()),
        ),
        tool_format=tool_format,
    )
