"""References of a schema into its own document, by JSON pointer (RFC 6901)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from kvasir.grammar.disjoint import Schema
from kvasir.grammar.errors import Path, unsupported
from kvasir.validation.warn import escaped

_ROOTS = ("#", "#/")
_ALL = ("allOf", "anyOf", "oneOf")
"""Lists whose only member must hold, and all of the first."""
_DEFINITIONS = ("$defs", "definitions")


class References:
    """What a schema names, and where it stands in the prepared one: other places than the root and
    its definitions may be rewritten away, so what they have is prepared again, in ``$defs``."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._moved: dict[str, str] = {}
        """The name in ``$defs``, by reference."""
        self._made: dict[str, str] = {}
        """The other way round."""
        self._ending: set[str] = set()
        """References behind which none leads back."""
        self._taken = set(root.get("$defs") or ()) if isinstance(root.get("$defs"), dict) else set()
        self._numbers = count()
        self.waiting: list[tuple[str, Schema, Path]] = []
        """Name, schema and place of what is to be prepared and put there."""

    def find(self, reference: object, path: Path = ()) -> Schema:
        """What the $ref at ``path`` names. Raises UnsupportedSchema."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise unsupported("$ref", path, "only references inside of the schema are followed")
        if reference not in _ROOTS and not reference.startswith("#/"):
            raise unsupported("$ref", path, "name the place as a JSON pointer")
        found: Any = self._root
        for part in _parts(reference):
            if isinstance(found, list) and part.isdigit() and int(part) < len(found):
                found = found[int(part)]
            elif isinstance(found, dict) and part in found:
                found = found[part]
            else:
                raise unsupported("$ref", path, f"{escaped(reference)} names nothing")
        return found

    def find_made(self, reference: object) -> Schema:
        """The same for a $ref of the prepared schema, which may be a renamed one."""
        named = self._made.get(reference) if isinstance(reference, str) else None
        return self.find(reference if named is None else named)

    def renamed(self, reference: object, path: Path) -> str:
        """The $ref of the prepared schema that names the same. Raises UnsupportedSchema."""
        target = self.find(reference, path)
        text = str(reference)
        self._check_end(text, path)
        parts = _parts(text)
        if not parts or (len(parts) == 2 and parts[0] in _DEFINITIONS):
            return text
        if text not in self._moved:
            name = next(n for i in self._numbers if (n := f"at{i}") not in self._taken)
            self._moved[text] = name
            self._made[f"#/$defs/{name}"] = text
            self.waiting.append((name, target, tuple(parts)))
        return f"#/$defs/{self._moved[text]}"

    def _check_end(self, reference: str, path: Path) -> None:
        """Raises UnsupportedSchema where references lead back to themselves with nothing of the
        value in between: whether it is valid is then said by nobody."""
        way = {reference: _beside(self.find(reference, path))}
        while way:
            last, others = next(reversed(way.items()))
            found = next(others, None)
            if found is None:
                self._ending.add(last)
                del way[last]
            elif found in way:
                raise unsupported("$ref", path, f"{escaped(found)} refers to itself alone")
            elif found not in self._ending:
                way[found] = _beside(self.find(found, path))


def _beside(schema: Schema) -> Iterator[str]:
    """References that must hold of the same value."""
    parts = [schema]
    while parts:
        part = parts.pop()
        if not isinstance(part, dict):
            continue
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for name in _ALL:
            others = part.get(name)
            if isinstance(others, list) and (name == "allOf" or len(others) == 1):
                parts += others


def _parts(reference: str) -> list[str]:
    if reference in _ROOTS:
        return []
    parts = reference[2:].split("/")
    return [part.replace("%25", "%").replace("~1", "/").replace("~0", "~") for part in parts]
