"""JSON read from model folders, within limits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from kvasir.core.errors import ModelError


def parse_object(text: bytes, what: str) -> dict[str, object]:
    """Parse one JSON object. Raises ModelError for bad JSON, duplicate keys or endless nesting."""
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ModelError(f"{what} is nested too deeply") from None
    except ValueError as error:
        raise ModelError(f"{what} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{what} holds a {type(value).__name__}, expected an object")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"'{counts.most_common(1)[0][0]}' appears twice")
    return table


def read_bounded(path: Path, limit: int) -> bytes:
    """The bytes of ``path``. Raises ModelError when missing, unreadable or above ``limit``."""
    try:
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except FileNotFoundError:
        raise ModelError(
            f"{path} is missing: download the complete model", code="model_not_found"
        ) from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > limit:
        raise ModelError(f"{path} is larger than the {limit} bytes allowed for such a file")
    return data


def read_object(path: Path, limit: int) -> Mapping[str, object]:
    """The JSON object in ``path``, of at most ``limit`` bytes. Raises ModelError."""
    return parse_object(read_bounded(path, limit), str(path))
