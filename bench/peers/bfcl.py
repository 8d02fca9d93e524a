"""Tool calls of the Berkeley Function Calling Leaderboard, and who called rightly.

The data lie in the package ``bfcl-eval``; what counts as right follows its checker of syntax trees:
a call has the name and a listed value for each parameter, or leaves it out where that is listed.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.schemas.validity import fault

CATEGORIES = ("simple_python", "multiple", "parallel")
FOLDER = "bfcl_eval/data"
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
"""What its schemas call them that is called otherwise in JSON Schema."""
_SAID_ALIKE = re.compile(r"[ ,./\-_*^]")

Json = dict[str, Any]
Call = tuple[str, str]
"""Name and arguments."""


@dataclass(frozen=True)
class Entry:
    id: str
    messages: list[Json]
    tools: list[Json]
    truth: list[Json]
    """By call the name, and by parameter what may be given; an empty text: nothing."""


def entries(data: Path, category: str, limit: int) -> list[Entry]:
    """``limit`` of a category, spread over it. ``data``: the wheel of ``bfcl-eval``, or a folder
    with its content."""
    root = zipfile.Path(data) if data.is_file() else data
    asked = _lines(root / FOLDER / f"BFCL_v4_{category}.json")
    answers = _lines(root / FOLDER / "possible_answer" / f"BFCL_v4_{category}.json")
    truths = {one["id"]: one["ground_truth"] for one in answers}
    step = max(len(asked) // limit, 1)
    return [
        Entry(
            one["id"],
            one["question"][0],
            [_tool(each) for each in one["function"]],
            [{_name(name): given for name, given in call.items()} for call in truths[one["id"]]],
        )
        for one in asked[::step][:limit]
    ]


def _lines(path: zipfile.Path | Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _tool(given: Json) -> Json:
    return {
        "type": "function",
        "function": {
            "name": _name(given["name"]),
            "description": given["description"],
            "parameters": as_schema(given["parameters"]),
        },
    }


def _name(name: str) -> str:
    """Names of OpenAI's API have no dots."""
    return name.replace(".", "_")


def as_schema(given: Any) -> Any:
    """A type in JSON Schema's words; ``any`` is said by no type."""
    if isinstance(given, list):
        return [as_schema(item) for item in given]
    if not isinstance(given, dict):
        return given
    found = {name: as_schema(item) for name, item in given.items()}
    if isinstance(kind := given.get("type"), str):
        found["type"] = _TYPES.get(kind, kind)
        if kind == "any":
            del found["type"]
    return found


def wrong(call: Call, tools: Sequence[Json]) -> str | None:
    """Why ``call`` is not valid for any of ``tools``; None where it is."""
    name, arguments = call
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    if name not in schemas:
        return f"no tool is called {name!r}"
    try:
        return fault(schemas[name], json.loads(arguments))
    except ValueError as error:
        return f"not JSON: {error}"


def is_right(calls: Sequence[Call], truth: Sequence[Json]) -> bool:
    """As many calls as expected, each of them one of these, in any order."""
    left = list(calls)
    for expected in truth:
        found = next((call for call in left if _meets(call, expected)), None)
        if found is None:
            return False
        left.remove(found)
    return not left


def _meets(call: Call, expected: Json) -> bool:
    ((name, accepted),) = expected.items()
    try:
        given = json.loads(call[1])
    except ValueError:
        return False
    return call[0] == name and isinstance(given, dict) and _has(given, accepted)


def _has(given: Mapping[str, Any], accepted: Mapping[str, Any]) -> bool:
    return given.keys() <= accepted.keys() and all(
        any(is_alike(given[name], one) for one in values) if name in given else "" in values
        for name, values in accepted.items()
    )


def is_alike(given: Any, accepted: Any) -> bool:
    """Texts as far as letters and digits go, 1 for ``1.0``; objects list what each name may be."""
    if isinstance(accepted, dict):
        return isinstance(given, dict) and _has(given, accepted)
    if isinstance(accepted, list):
        return (
            isinstance(given, list)
            and len(given) == len(accepted)
            and all(is_alike(a, b) for a, b in zip(given, accepted, strict=True))
        )
    if isinstance(accepted, str) and isinstance(given, str):
        return _plain(given) == _plain(accepted)
    return isinstance(given, bool) == isinstance(accepted, bool) and bool(given == accepted)


def _plain(text: str) -> str:
    return _SAID_ALIKE.sub("", text).lower().replace("'", '"')
