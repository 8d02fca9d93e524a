"""/v1/files: uploads go to disk as they arrive, downloads come from it piece by piece."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvasir.core.errors import RequestError
from kvasir.serve.exchange import Exchange
from kvasir.serve.multipart import read_form
from kvasir.serve.query import page_in, read_query
from kvasir.serve.resolved import Json
from kvasir.serve.service import Service
from kvasir.serve.state.files import DAY_SECONDS, UPLOADED, Purpose
from kvasir.validation.warn import escaped

MAX_PAGE = 10_000
MIN_SECONDS, MAX_SECONDS = 3600, 30 * DAY_SECONDS
"""Of ``expires_after``."""
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
FORM: Json = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string", "enum": list(UPLOADED)},
        ANCHOR: {"type": "string", "enum": ["created_at"]},
        SECONDS: {"type": "integer", "minimum": MIN_SECONDS, "maximum": MAX_SECONDS},
    },
    "required": ["file", "purpose"],
}
"""Schema of an upload."""
DOWNLOAD = [(b"content-disposition", b"attachment"), (b"x-content-type-options", b"nosniff")]


async def post_file(service: Service, exchange: Exchange) -> None:
    content_type = exchange.header(b"content-type") or b""
    async with service.state.files.upload(service.owner(exchange)) as upload:
        form = await read_form(content_type, exchange.chunks(), upload.write)
        fields = dict(form.fields)
        purpose, seconds = _purpose(fields), _expires_after(fields)
        if fields:
            name = next(iter(fields))
            raise RequestError(f"unknown field '{escaped(name)}'", param=name[:64])
        file = await upload.keep(form.filename or "", purpose, seconds)
    await exchange.send_json(file)


async def get_files(service: Service, exchange: Exchange) -> None:
    query = read_query(exchange, ("after", "limit", "order", "purpose"))
    asked = page_in(query, default=MAX_PAGE, most=MAX_PAGE, label=query.get("purpose"))
    found, has_more = await service.state.files.page(service.owner(exchange), asked)
    await exchange.send_json(listed(found, has_more))


async def get_file(service: Service, exchange: Exchange) -> None:
    file_id = str(exchange.path_params["file_id"])
    await exchange.send_json(await service.state.files.get(file_id, service.owner(exchange)))


async def delete_file(service: Service, exchange: Exchange) -> None:
    file_id = str(exchange.path_params["file_id"])
    await service.state.files.delete(file_id, service.owner(exchange))
    await exchange.send_json({"id": file_id, "object": "file", "deleted": True})


async def get_content(service: Service, exchange: Exchange) -> None:
    files = service.state.files
    file = await files.get(str(exchange.path_params["file_id"]), service.owner(exchange))
    pieces = files.pieces(file.id, file.bytes)
    try:
        piece = await files.store.on_disk(lambda: next(pieces, b""))
        await exchange.start_bytes(file.bytes, DOWNLOAD)
        while piece:
            await exchange.send_events(piece)
            piece = await files.store.on_disk(lambda: next(pieces, b""))
        await exchange.end_events()
    finally:
        pieces.close()


def listed(found: Sequence[msgspec.Raw], has_more: bool) -> Json:
    """A page of objects that have ids, as OpenAI's clients read it."""
    ends: list[Json] = [msgspec.json.decode(raw) for raw in (*found[:1], *found[-1:])]
    first, last = (ends[0]["id"], ends[-1]["id"]) if ends else (None, None)
    return {
        "object": "list",
        "data": found,
        "first_id": first,
        "last_id": last,
        "has_more": has_more,
    }


def _purpose(fields: dict[str, str]) -> Purpose:
    said = fields.pop("purpose", None)
    purpose = next((known for known in UPLOADED if known == said), None)
    if purpose is None:
        given = "is missing" if said is None else f"is '{escaped(said)}'"
        raise RequestError(f"purpose {given}: use one of {', '.join(UPLOADED)}", param="purpose")
    return purpose


def _expires_after(fields: dict[str, str]) -> int | None:
    """Seconds."""
    anchor, said = fields.pop(ANCHOR, None), fields.pop(SECONDS, None)
    if anchor is None and said is None:
        return None
    if anchor != "created_at":
        raise RequestError(f"{ANCHOR} must be created_at", param="expires_after")
    is_number = said is not None and said.isascii() and said.isdigit() and len(said) < 9
    if said is None or not is_number or not MIN_SECONDS <= int(said) <= MAX_SECONDS:
        raise RequestError(
            f"{SECONDS} is {'missing' if said is None else escaped(said)!r}: "
            f"it goes from {MIN_SECONDS} to {MAX_SECONDS}",
            param="expires_after",
        )
    return int(said)
