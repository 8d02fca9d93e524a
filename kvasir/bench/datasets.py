"""What a load on a server asks: random ids, conversations of ShareGPT, or lines of one's own."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec

from kvasir.core.errors import ConfigError

DATASETS = ("random", "sharegpt", "custom")
MAX_BYTES = 4 << 30
MIN_TEXT = 16
"""Characters below which a turn of ShareGPT is left out."""
CHARACTERS = 4
"""Of a token, about: the length of a reply whose tokens are not counted."""


class LoadRequest(msgspec.Struct, frozen=True):
    """One request."""

    prompt: list[int] | str
    output_len: int


def read_dataset(
    name: str, path: Path | None, num_prompts: int, output_len: int | None, seed: int
) -> list[LoadRequest]:
    """``num_prompts`` of a file, the same for the same seed; it begins again where it is short.
    ``output_len``: of each; None: what the file says. Raises ConfigError."""
    if path is None:
        raise ConfigError(f"--dataset-name {name} needs --dataset-path")
    found = _sharegpt(path, output_len) if name == "sharegpt" else _custom(path, output_len)
    if not found:
        raise ConfigError(f"{path} has no prompts")
    random.Random(seed).shuffle(found)
    return [found[i % len(found)] for i in range(num_prompts)]


def _sharegpt(path: Path, output_len: int | None) -> list[LoadRequest]:
    """The first turn of each conversation, and the length of its reply."""
    found = []
    for entry in _conversations(path):
        turns = entry.get("conversations") or []
        if len(turns) < 2:
            continue
        said, reply = (str(turn.get("value") or "") for turn in turns[:2])
        if len(said) >= MIN_TEXT and reply:
            found.append(LoadRequest(said, output_len or max(1, len(reply) // CHARACTERS)))
    return found


def _custom(path: Path, output_len: int | None) -> list[LoadRequest]:
    """A JSON object on each line: ``prompt``, and ``output_tokens`` if there are any."""
    found = []
    for i, line in enumerate(_bytes(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = msgspec.json.decode(line, type=dict[str, Any])
            length = output_len or int(entry.get("output_tokens") or 0)
            found.append(LoadRequest(str(entry["prompt"]), length))
        except (msgspec.MsgspecError, KeyError, ValueError):
            raise ConfigError(f'{path}:{i}: expected {{"prompt": "…"}} on each line') from None
        if not length:
            raise ConfigError(f"{path}:{i} has no output_tokens: say --output-len")
    return found


def _conversations(path: Path) -> list[dict[str, Any]]:
    try:
        return msgspec.json.decode(_bytes(path), type=list[dict[str, Any]])
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is no list of conversations: {error}") from None


def _bytes(path: Path) -> bytes:
    if path.stat().st_size > MAX_BYTES:
        raise ConfigError(f"{path} has more than {MAX_BYTES} bytes")
    return path.read_bytes()
