"""Odd values for fields of files and requests, chosen by a seeded generator."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

INTEGERS = (
    *(0, 1, 2, 3, 5, 7, 8, 16, 17, 31, 32, 33, 64, 100, 255, 256, 319, 320, 321, 511, 512, 999999),
    *(1 << 24, (1 << 24) + 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 53) + 1),
    *((1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 10**30, 10**400, -1, -2, -(1 << 31)),
    *(-(1 << 63), -(1 << 64)),
)
FLOATS = (
    *(0.0, -0.0, 0.5, 1.0, -1.0, 1.5, 2.0, 1e-3, 1e-30, 5e-324, 1e-45, 3.4e38, 1e30, 1e31, 1e300),
    *(float("nan"), float("inf"), float("-inf"), 0.999999, 1.0000001, 16777217.0, -1e-9, 100.0001),
)
TEXTS = (
    *("", " ", "a", "default", "none", "linear", "llama3", "yarn", "gpt2", "llama", "<|eos|>"),
    *(
        "\x00",
        "\x1b]52;c;aGk=\x07",
        "\u2581",
        "\u205e1",
        "e\u0301",
        "\U0001f600",
        "\ufffd",
        "a" * 300,
    ),
    *(
        "<0x41>",
        "<0xZZ>",
        "{{ 1/0 }}",
        "{% for i in range(9) %}",
        "../x",
        "x.safetensors",
        "[EMPTY_3]",
    ),
    *("[PAD]", "<|im_end|>", "null", "1", "-1", "1e400", "model.norm.weight"),
)


def scalar(rng: random.Random) -> Any:
    kind = rng.randrange(8)
    if kind < 3:
        return rng.choice(INTEGERS)
    if kind < 5:
        return rng.choice(FLOATS)
    if kind < 7:
        return rng.choice(TEXTS)
    return rng.choice((None, True, False))


def value(rng: random.Random, depth: int = 2) -> Any:
    """Anything that JSON can say, seldom deep."""
    if depth == 0 or rng.random() < 0.75:
        return scalar(rng)
    n = rng.choice((0, 1, 2, 3, 9))
    if rng.random() < 0.6:
        return [value(rng, depth - 1) for _ in range(n)]
    return {rng.choice(TEXTS): value(rng, depth - 1) for _ in range(n)}


def near(rng: random.Random, old: Any) -> Any:
    """Something of the same kind as ``old``, or anything."""
    if rng.random() < 0.3:
        return value(rng)
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return rng.choice((old + 1, old - 1, old * 2, -old, old // 2, rng.choice(INTEGERS)))
    if isinstance(old, float):
        return rng.choice((old * 2, -old, old / 1e9, rng.choice(FLOATS)))
    if isinstance(old, str):
        at = rng.randrange(len(old) + 1)
        return rng.choice((old[:at], old[:at] + rng.choice(TEXTS) + old[at:], rng.choice(TEXTS)))
    if isinstance(old, list | tuple):
        return changed_list(rng, list(old))
    return value(rng)


def changed_list(rng: random.Random, items: list[Any]) -> list[Any]:
    """One entry changed, gone, twice or new."""
    at = rng.randrange(len(items)) if items else 0
    ways: list[Callable[[], list[Any]]] = [
        lambda: [*items[:at], near(rng, items[at]) if items else 1, *items[at + 1 :]],
        lambda: items[:at] + items[at + 1 :],
        lambda: items[: at + 1] + items[at:],
        lambda: [*items, value(rng)],
        lambda: items[:at],
        lambda: items[::-1],
    ]
    return rng.choice(ways)()


def change_json(rng: random.Random, tree: Any, extra: tuple[str, ...] = ()) -> Any:
    """A copy of ``tree`` (JSON) with one place changed; ``extra`` are keys that may appear."""
    if isinstance(tree, dict):
        key = rng.choice([*tree, *extra]) if tree or extra else "x"
        rest = {name: item for name, item in tree.items() if name != key}
        way = rng.random()
        if way < 0.1:
            return rest
        if way < 0.15:
            return rest | {rng.choice(TEXTS): tree.get(key)}
        old = tree.get(key)
        deeper = isinstance(old, dict | list) and old and rng.random() < 0.8
        return {**tree, key: change_json(rng, old) if deeper else near(rng, old)}
    if isinstance(tree, list) and tree and rng.random() < 0.7:
        at = rng.randrange(len(tree))
        return [*tree[:at], change_json(rng, tree[at]), *tree[at + 1 :]]
    return near(rng, tree)


def change_bytes(rng: random.Random, data: bytes, limit: int) -> bytes:
    """Up to three changes in the first ``limit`` bytes, seldom the end cut off."""
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(min(limit, len(data)) or 1)
        new = rng.choice((rng.randbytes(rng.randint(1, 8)), b"\x00" * 8, b"\xff" * 8, b'"', b"{"))
        after = rng.choice((at, at + len(new), at + len(new), at + len(new)))
        data = data[:at] + new + data[after:]
    return data[: rng.randrange(len(data) + 1)] if rng.random() < 0.05 else data
