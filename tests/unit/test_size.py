"""Files and functions stay small enough to be read at once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from kvasir.kv.holders import Holder, Vouched
from kvasir.sched.request import Drafting, Masked, Prefill, Request, Turn

ROOT = Path(__file__).parents[2]
MAX_FILE = 400
HARD_MAX_FILE = 600
MAX_FUNCTION = 60
MAX_PACKAGE_FUNCTION = 50
"""Of the package itself."""

# What is longer on purpose, each with its reason.
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}

# At the left edge or one level in: a definition or a statement's head, as clang-format writes them.
NOT_A_FUNCTION = re.compile(r"^\s*(namespace|struct|class|enum|union|extern|typedef|using|#|//|})")


def python_files() -> Iterator[Path]:
    for folder in ("kvasir", "tests", "scripts", "bench"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def native_files() -> Iterator[Path]:
    for suffix in ("*.cpp", "*.h", "*.inl"):
        yield from sorted((ROOT / "native").rglob(suffix))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def n_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def python_functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def native_functions(text: str) -> Iterator[tuple[str, int]]:
    """Bodies at the left edge, or inside a class one level in, between their braces."""
    lines = text.splitlines()
    for edge in ("", "  "):
        start: int | None = None
        for at, line in enumerate(lines):
            is_head = line.startswith(edge) and line[len(edge) : len(edge) + 1].strip() != ""
            if is_head and line.endswith("{") and start is None and not NOT_A_FUNCTION.match(line):
                start = at
            elif line.rstrip(";") == edge + "}" and start is not None:
                yield lines[start].strip(), at - start + 1
                start = None


def test_files_are_short() -> None:
    long = {shown(p): n for p in (*python_files(), *native_files()) if (n := n_lines(p)) > MAX_FILE}
    assert {name: n for name, n in long.items() if name not in LONG_FILES} == {}
    assert {name: n for name, n in long.items() if n > HARD_MAX_FILE} == {}


def test_functions_are_short() -> None:
    found = {
        f"{shown(path)}:{name}": n
        for path in python_files()
        for name, n in python_functions(path)
        if n > (MAX_PACKAGE_FUNCTION if shown(path).startswith("kvasir/") else MAX_FUNCTION)
    }
    found |= {
        f"{shown(path)}:{name}": n
        for path in native_files()
        for name, n in native_functions(path.read_text(encoding="utf-8"))
        if n > MAX_FUNCTION
    }
    assert {name: n for name, n in found.items() if name not in LONG_FUNCTIONS} == {}


def test_allowances_are_used_and_explained() -> None:
    files = {shown(p) for p in (*python_files(), *native_files()) if n_lines(p) > MAX_FILE}
    assert LONG_FILES.keys() <= files
    assert all({**LONG_FILES, **LONG_FUNCTIONS}.values())


def test_the_counter_counts() -> None:
    body = "".join(f"  x += {i};\n" for i in range(5))
    method = "struct S {\n  int g() {\n    return 1;\n  }\n};\n"
    text = f"namespace a {{\nint f(int x) {{\n{body}}}\n{method}}}\n"
    assert list(native_functions(text)) == [("int f(int x) {", 7), ("int g() {", 3)]


def test_a_request_is_values_of_their_owners() -> None:
    """What every step reads, and a value of each owner of the rest."""
    sizes = {of.__name__: len(fields(of)) for of in (Turn, Prefill, Drafting, Masked, Vouched)}
    own = {x.name for x in fields(Request)} - {x.name for x in fields(Holder)}
    assert len(own) <= 15 and len(fields(Holder)) <= 8
    assert max(sizes.values()) <= 7, sizes
