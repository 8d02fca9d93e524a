"""Routes of the operator for API keys: what ``kvasir keys`` does to the file, in a running
server."""

from __future__ import annotations

import time
from functools import partial

import msgspec

from kvasir.serve.exchange import Exchange
from kvasir.serve.keys import key as keys
from kvasir.serve.keys.key import DEFAULT_SCOPES, UNLIMITED, Key, KeyLimits, Name, Scope, Time
from kvasir.serve.protocol.parse import parse_request
from kvasir.serve.resolved import Json
from kvasir.serve.service import Service


class KeyRequest(msgspec.Struct, frozen=True, kw_only=True):
    id: Name
    scopes: tuple[Scope, ...] = DEFAULT_SCOPES
    expires: Time | None = None
    """Unix time, seconds."""
    limits: KeyLimits = UNLIMITED


class RotationRequest(msgspec.Struct, frozen=True, kw_only=True):
    overlap: Time = 0
    """Seconds that older secrets hold on for."""


async def get_keys(service: Service, exchange: Exchange) -> None:
    """Those of the file, revoked ones too."""
    now = time.time()
    found = [keys.described(key, now) for key in service.keys.keys.values()]
    await exchange.send_json({"object": "list", "data": found})


async def post_key(service: Service, exchange: Exchange) -> None:
    """A new key. The answer alone holds its secret. Raises RequestError (400, 409)."""

    def read(body: Json) -> KeyRequest:
        return parse_request(KeyRequest, body, {}, strict=True)[0]

    now = int(time.time())
    async with exchange.reading(read) as asked:
        made = Key(asked.id, asked.scopes, (), now, asked.expires, None, asked.limits)
    secret = await service.keys.edit(partial(keys.create, made=made))
    answer = keys.described(service.keys.keys[made.id], now)
    await exchange.send_json({**answer, "key": secret}, 201)


async def post_rotation(service: Service, exchange: Exchange) -> None:
    """Another secret for a key. Raises RequestError (400, 404, 409)."""

    def read(body: Json) -> RotationRequest:
        return parse_request(RotationRequest, body, {}, strict=True)[0]

    key_id, now = str(exchange.path_params["key_id"]), int(time.time())
    async with exchange.reading(read) as asked:
        overlap = asked.overlap
    change = partial(keys.rotate, key_id=key_id, overlap=overlap, now=now)
    secret = await service.keys.edit(change)
    await exchange.send_json({**keys.described(service.keys.keys[key_id], now), "key": secret})


async def delete_key(service: Service, exchange: Exchange) -> None:
    """It holds no longer; requests that run go on. Raises RequestError (404)."""
    key_id, now = str(exchange.path_params["key_id"]), int(time.time())

    revoked = await service.keys.edit(partial(keys.revoke, key_id=key_id, now=now))
    await exchange.send_json(keys.described(revoked, now))
