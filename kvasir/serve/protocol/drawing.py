"""The numbers that shape a draw, as clients of other servers send them: from the table of
``core.params``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal, TypeVar, cast

import msgspec

from kvasir.core.params import DrawParams
from kvasir.validation.sampling import Field, fields_of

Peer = Literal["llama", "ollama", "tgi"]
_Request = TypeVar("_Request", bound=msgspec.Struct)


@cache
def names_at(peer: Peer) -> dict[str, str]:
    """Our names of those that clients of ``peer`` send, and theirs."""
    return {field.name: field.peers.name(peer, field.name) for field in _sent_by(peer)}


def with_drawing(peer: Peer) -> Callable[[type[_Request]], type[_Request]]:
    """A request of ``peer`` gets these fields, by their names and defaults there."""

    def decorate(kind: type[_Request]) -> type[_Request]:
        fields = [
            (field.peers.name(peer, field.name), field.kind, field.kind(field.peers.default(peer)))
            for field in _sent_by(peer)
        ]
        made = msgspec.defstruct(
            kind.__name__,
            fields,
            bases=(kind,),
            module=kind.__module__,
            namespace={"__doc__": kind.__doc__},
            frozen=True,
            kw_only=True,
        )
        return cast(type[_Request], made)

    return decorate


def drawing_of(request: msgspec.Struct, peer: Peer) -> dict[str, Any]:
    """What ``request`` says of them, by our names."""
    return {own: getattr(request, theirs) for own, theirs in names_at(peer).items()}


def _sent_by(peer: Peer) -> list[Field]:
    return [field for field in fields_of(DrawParams) if field.peers.default(peer) is not None]
