"""SGLang's sessions: POST /open_session and /close_session."""

from __future__ import annotations

from typing import Annotated

import msgspec

from kvasir.serve.exchange import Exchange
from kvasir.serve.protocol.parse import parse_request
from kvasir.serve.resolved import Json
from kvasir.serve.service import Service
from kvasir.validation.standing import check_session

MAX_CHARS = 2**31


class SessionToOpen(msgspec.Struct, frozen=True, kw_only=True):
    capacity_of_str_len: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHARS)]
    """Characters of the longest prompt."""
    session_id: str | None = None
    """None: one is drawn."""


class SessionToClose(msgspec.Struct, frozen=True, kw_only=True):
    session_id: str


async def post_open_session(service: Service, exchange: Exchange) -> None:
    """Opens a session, and answers with its name."""

    def read(body: Json) -> SessionToOpen:
        return parse_request(SessionToOpen, body, {}, strict=True)[0]

    async with exchange.reading(read) as asked:
        session = check_session(asked.session_id)
    owner = service.owner(exchange)
    name = service.sessions.open(owner, session, asked.capacity_of_str_len)
    await exchange.send_json(name)


async def post_close_session(service: Service, exchange: Exchange) -> None:
    """Closes a session: what it left in the cache is not kept for it any more."""

    def read(body: Json) -> SessionToClose:
        return parse_request(SessionToClose, body, {}, strict=True)[0]

    async with exchange.reading(read) as asked:
        session = check_session(asked.session_id)
    for ran in service.sessions.close(service.owner(exchange), session):
        service.models[ran.model].client.let_go(ran.ids)
    await exchange.send_json({"session_id": session, "closed": True})
