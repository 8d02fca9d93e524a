"""GBNF (llama.cpp's grammars): escapes that the grammar library's converter misreads."""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|.)", re.DOTALL)


def plain_escapes(text: str) -> str:
    r"""``text`` with characters themselves for \u, \U and \x; those of ASCII stay \x."""
    return _ESCAPE.sub(_plain, text)


def _plain(found: re.Match[str]) -> str:
    digits = found[1] or found[2] or found[3]
    if digits is None:
        return found[0]
    code = int(digits, 16)
    if code < 0x80:
        return f"\\x{code:02x}"
    return found[0] if code > 0x10FFFF or 0xD800 <= code < 0xE000 else chr(code)
