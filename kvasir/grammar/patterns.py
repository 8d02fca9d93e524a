r"""Patterns of JSON Schema (ECMA 262) in the syntax of Rust's regex crate.

What both spell alike and mean otherwise is said anew: white space (\s there has U+0085 and lacks
U+FEFF) and classes, where "[", "&&", "--" and "~~" mean nothing to ECMA. \d and \w are ASCII's in
the grammar library too. What it cannot read it refuses.
"""

from __future__ import annotations

import re

_ALL = r"[\s\x{feff}\x{1c}-\x{1f}]"
_SURE = r"[\s&&[^\x{85}]]"
_TAKEN = {r"\s": _SURE, r"\S": r"[^\s\x{feff}\x{1c}-\x{1f}]"}
_LEFT_OUT = {r"\s": _ALL, r"\S": rf"[^{_SURE}]"}
"""White space for any of ECMA, Rust and Python, and for all: what is taken is taken by each."""
EVERY = frozenset(
    ("", "^", "$", ".*", "^.*", ".*$", "(.*)", r"[\s\S]*", r"^[\s\S]*", r"[\s\S]*$", r"^[\s\S]*$")
)
"""That every text matches somewhere. The library follows each token of the vocabulary through them,
where it knows what may stand in any string."""
_ATOM = re.compile(r"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[pP]\{[^}]*\}|c[a-zA-Z]|.)|.", re.DOTALL)


def translated(pattern: str) -> str:
    """Of a pattern that ends inside of a class the rest stays as it is."""
    atoms = _ATOM.findall(pattern)
    made: list[str] = []
    at = 0
    while at < len(atoms):
        if atoms[at] == "[":
            end = _class_end(atoms, at)
            made.append(_class(atoms[at + 1 : end]) if end < len(atoms) else "".join(atoms[at:]))
            at = end + 1
        else:
            made.append(_plain(atoms[at]))
            at += 1
    return "".join(made)


def _class_end(atoms: list[str], begin: int) -> int:
    """Where the class that begins at ``begin`` is closed; the number of atoms where it is not."""
    return next((i for i in range(begin + 1, len(atoms)) if atoms[i] == "]"), len(atoms))


def _class(atoms: list[str]) -> str:
    r"""Each member escaped; no "-" between two others but of a range."""
    sign = "^" if atoms[:1] == ["^"] else ""
    atoms = atoms[len(sign) :]
    if not atoms or {r"\s", r"\S"} <= set(atoms):
        is_all = bool(sign) != bool(atoms)
        return r"[\s\S]" if is_all else r"[^\s\S]"
    spaces = _LEFT_OUT if sign else _TAKEN
    made: list[str] = []
    at = 0
    while at < len(atoms):
        if len(atoms) > at + 2 and atoms[at + 1] == "-" and not _is_set(atoms[at], atoms[at + 2]):
            made.append(f"{_member(atoms[at])}-{_member(atoms[at + 2])}")
            at += 3
        else:
            made.append(spaces.get(atoms[at]) or _member(atoms[at]))
            at += 1
    return f"[{sign}{''.join(made)}]"


def _is_set(*atoms: str) -> bool:
    """Whether one of them stands for several characters, and so ends no range."""
    return any(re.match(r"\\[dDwWsSpP]", atom) for atom in atoms)


def _member(atom: str) -> str:
    if atom == r"\b":
        return r"\x{08}"
    return "\\" + atom if atom in ("[", "&", "~", "-", "^") else _plain(atom)


def _plain(atom: str) -> str:
    if len(atom) == 3 and atom.startswith(r"\c"):
        return f"\\x{{{ord(atom[2]) % 32:02x}}}"
    return _TAKEN.get(atom, atom)
