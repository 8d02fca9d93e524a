"""Text of others where characters do things: a model's answers and names, requests, file names.

A terminal obeys control characters: they set the clipboard, move the cursor, rewrite what was
shown; a line feed in a log begins a line that nobody logged. Signs take their place there.
"""

from __future__ import annotations

import re

_ACTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""All control characters but line feed and tab, what ends lines or turns the direction of text
elsewhere, and halves of characters."""
DELETE = 0x7F


def harmless(text: str) -> str:
    """``text`` with a sign for each character that a terminal would obey: ESC is ␛. Character by
    character, so that pieces of a text may be shown one by one. Line feeds and tabs stay."""
    return _ACTIVE.sub(_sign, text)


def one_line(text: str) -> str:
    """The same, line feeds too."""
    return harmless(text).replace("\n", "␊")


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == DELETE else f"<U+{code:04X}>"
