"""References of a schema into its own document, by JSON pointer (RFC 6901)."""

from __future__ import annotations

from itertools import count
from typing import Any

from kvasir.grammar.disjoint import Schema
from kvasir.grammar.errors import Path, unsupported
from kvasir.validation.warn import escaped

_ROOTS = ("#", "#/")
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
        self._check_end(target, path)
        text = str(reference)
        parts = _parts(text)
        if not parts or (len(parts) == 2 and parts[0] in _DEFINITIONS):
            return text
        if text not in self._moved:
            name = next(n for i in self._numbers if (n := f"at{i}") not in self._taken)
            self._moved[text] = name
            self._made[f"#/$defs/{name}"] = text
            self.waiting.append((name, target, tuple(parts)))
        return f"#/$defs/{self._moved[text]}"

    def _check_end(self, target: Schema, path: Path) -> None:
        """Raises UnsupportedSchema where references lead to each other, and to nothing else."""
        seen: set[str] = set()
        while isinstance(target, dict) and isinstance(reference := target.get("$ref"), str):
            if reference in seen:
                raise unsupported("$ref", path, f"{escaped(reference)} refers to itself alone")
            seen.add(reference)
            target = self.find(reference, path)


def _parts(reference: str) -> list[str]:
    if reference in _ROOTS:
        return []
    parts = reference[2:].split("/")
    return [part.replace("%25", "%").replace("~1", "/").replace("~0", "~") for part in parts]
