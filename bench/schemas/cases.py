"""Schemas and instances that are known to be valid or not, as others publish them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

DRAFTS = {"draft7": "http://json-schema.org/draft-07/schema#", "draft2020-12": None}
"""Of the JSON-Schema-Test-Suite, by folder: the ``$schema`` of a schema that says none."""


@dataclass(frozen=True, slots=True)
class Instance:
    value: Any
    is_valid: bool
    description: str


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    schema: Any
    instances: tuple[Instance, ...]
    description: str = ""


def suite_cases(folder: Path, draft: str) -> Iterator[Case]:
    """Of the folder ``tests`` of the suite; names are those of its files."""
    for path in sorted((folder / draft).rglob("*.json")):
        name = path.relative_to(folder / draft).with_suffix("").as_posix()
        for given in json.loads(path.read_text("utf-8")):
            schema = given["schema"]
            if DRAFTS[draft] and isinstance(schema, dict):
                schema = {"$schema": DRAFTS[draft], **schema}
            yield Case(name, schema, _instances(given["tests"]), given["description"])


def sample_cases(path: Path) -> Iterator[Case]:
    """Of gzipped lines of JSON: ``id``, ``schema``, ``tests`` (``valid``, ``data``)."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            given = json.loads(line)
            yield Case(given["id"], given["schema"], _instances(given["tests"]))


def spread(cases: list[Case], limit: int | None) -> list[Case]:
    """``limit`` of them from the whole list; the same ones each time."""
    step = max(len(cases) // limit, 1) if limit else 1
    return list(islice(cases[::step], limit))


def _instances(tests: list[dict[str, Any]]) -> tuple[Instance, ...]:
    return tuple(Instance(t["data"], t["valid"], t.get("description", "")) for t in tests)
