"""A Jinja environment in which a template cannot reach Python, loop for ever or fill the memory.

Jinja's immutable sandbox hides attributes that lead out of the template. On top of it, every loop
step, call, filter, operator and output passes a hook that counts against a budget of its own render,
and only methods, filters and operators whose result is bounded by their inputs are there at all.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes, pass_context
from jinja2.ext import loopcontrols
from jinja2.runtime import Context, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.visitor import NodeTransformer

from kvasir.core.errors import RequestError

MAX_STEPS = 1_000_000
"""Loop iterations, calls, filters, operators and outputs of one render; 0.9 s of the cheapest ones."""
MAX_CHARS = 16 << 20
"""Characters of the output, and of any one value on the way to it."""
MAX_SECONDS = 2.0
"""Processor time of one render."""
_MAX_INT_BITS = 4096
_MAX_INDENT = 16
_BUDGET = "kvasir budget"
"""Where a render's Budget lies among its variables: no template can spell a name with a space."""

_METHODS: dict[type, frozenset[str]] = {
    str: frozenset(
        "strip lstrip rstrip split rsplit splitlines startswith endswith upper lower title capitalize find rfind "
        "index rindex count replace join partition rpartition removeprefix removesuffix isdigit isalpha isalnum "
        "isspace isupper islower istitle isnumeric isdecimal isidentifier casefold swapcase".split()
    ),
    dict: frozenset("get items keys values".split()),
    list: frozenset("index count".split()),
    tuple: frozenset("index count".split()),
    int: frozenset(),
    float: frozenset(("is_integer",)),
    bool: frozenset(),
}
_FILTERS = (
    "abs capitalize count d default dictsort e escape first float forceescape groupby indent int items join last "
    "length list lower map max min reject rejectattr replace reverse round safe select selectattr sort string "
    "title trim unique upper wordcount"
).split()


class Budget:
    """What one render may still use."""

    def __init__(self) -> None:
        self.steps = MAX_STEPS
        self.chars = MAX_CHARS
        self.deadline = time.thread_time() + MAX_SECONDS

    def step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise SecurityError(f"it takes more than {MAX_STEPS} steps")
        if self.steps % 64 == 0 and time.thread_time() > self.deadline:
            raise SecurityError(f"it takes more than {MAX_SECONDS} s")

    def emit(self, text: str) -> None:
        self.chars -= len(text)
        if self.chars < 0:
            raise SecurityError(f"it writes more than {MAX_CHARS} characters")

    def check(self, value: object) -> None:
        """Refuse a value whose text would be too long; every element of a container is a step."""
        room = MAX_CHARS
        stack = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                room -= len(item)
            elif isinstance(item, int):
                room -= 1 + item.bit_length() // 3
            elif isinstance(item, dict):
                self.step()
                stack.extend(item.keys())
                stack.extend(item.values())
            elif isinstance(item, list | tuple | set | frozenset):
                self.step()
                stack.extend(item)
            if room < 0 or len(stack) > MAX_STEPS:
                raise SecurityError(f"a value is larger than {MAX_CHARS} characters")
