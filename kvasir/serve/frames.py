"""Messages between API process and engine process as frames: see ``framing``, in msgpack."""

from __future__ import annotations

import msgspec

from kvasir.core.messages import TokenLogprob
from kvasir.serve.framing import pack
from kvasir.serve.messages import FromEngine, ToEngine

_encoder = msgspec.msgpack.Encoder()
_from_engine = msgspec.msgpack.Decoder(FromEngine)
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_scores = msgspec.msgpack.Decoder(tuple[TokenLogprob, ...])


def encode(message: FromEngine | ToEngine) -> bytes:
    """Raises FrameError when the message exceeds ``MAX_FRAME``."""
    return pack(_encoder.encode(message))


def decode_to_engine(payload: bytes) -> ToEngine:
    """Raises msgspec.ValidationError or DecodeError."""
    message: ToEngine = _to_engine.decode(payload)
    return message


def decode_from_engine(payload: bytes) -> FromEngine:
    """Raises msgspec.ValidationError or DecodeError."""
    message: FromEngine = _from_engine.decode(payload)
    return message


def encode_scores(items: tuple[TokenLogprob, ...]) -> bytes:
    """``TokenEvent.scores``."""
    return _encoder.encode(items)


def decode_scores(scores: bytes) -> tuple[TokenLogprob, ...]:
    return _scores.decode(scores)
