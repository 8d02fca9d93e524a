"""GPT-2's printable character for each byte (Radford et al. 2019, released encoder)."""

from __future__ import annotations


def _byte_alphabet() -> tuple[str, ...]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return tuple(
        chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)
    )


CHARACTERS = _byte_alphabet()
"""By byte."""
_BYTES = {char: byte for byte, char in enumerate(CHARACTERS)}
_TABLE = {byte: char for byte, char in enumerate(CHARACTERS)}


def spelled_bytes(data: bytes) -> str:
    """``data``, a character for each byte."""
    return data.decode("latin-1").translate(_TABLE)


def bytes_of(piece: str) -> bytes:
    """What ``piece`` spells: its bytes, or its text where it has other characters."""
    try:
        return bytes([_BYTES[char] for char in piece])
    except KeyError:
        return piece.encode()
