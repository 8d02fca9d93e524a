"""Imports go downwards only, and what could run foreign code is nowhere in the package."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "kvasir"

LAYERS = {
    "core": 0,
    "ir": 1,
    "formats": 1,
    "config": 1,
    "checkpoints": 2,
    "models": 2,
    "weights": 2,
    "library": 2,
    "sampling": 2,
    "validation": 2,
    "tokenizer": 2,
    "grammar": 2,
    "toolcalls": 2,
    "vision": 2,
    "kv": 3,
    "quantize": 3,
    "sched": 3,
    "timing": 3,
    "speculate": 3,
    "exec": 4,
    "_native": 4,
    "engine": 5,
    "evaluation": 6,
    "text": 6,
    "web": 6,
    "lang": 7,
    "offline": 7,
    "serve": 7,
    "": 5,  # the package itself: its version and LLM
    "bench": 8,
    "doctor": 8,
    "cli": 8,
    "__main__": 9,
}
# Edges inside a layer; the modules as a whole stay free of cycles.
SIDEWAYS = {
    ("checkpoints", "models"),
    ("checkpoints", "weights"),
    ("cli", "bench"),
    ("cli", "doctor"),
    ("exec", "_native"),
    ("grammar", "sampling"),
    ("grammar", "tokenizer"),
    ("grammar", "validation"),
    ("grammar", "weights"),
    ("lang", "offline"),
    ("library", "validation"),
    ("sched", "kv"),
    ("sched", "speculate"),
    ("sched", "timing"),
    ("tokenizer", "validation"),
    ("tokenizer", "weights"),
    ("toolcalls", "grammar"),
    ("toolcalls", "tokenizer"),
    ("validation", "sampling"),
    ("vision", "checkpoints"),
    ("vision", "models"),
    ("vision", "tokenizer"),
    ("vision", "weights"),
    ("weights", "library"),
    ("weights", "validation"),
}

NO_BACKEND = ("kv", "sched", "speculate", "timing", "engine", "lang", "offline", "serve", "text")

THIRD_PARTY = {
    "click": ("cli",),
    "PIL": ("vision",),
    "httptools": ("serve",),
    "httpx2": ("serve.fetch",),
    "huggingface_hub": ("library",),
    "llguidance": ("grammar",),
    "jinja2": ("tokenizer", "serve"),
    "opentelemetry": ("serve.spans",),
    "python_multipart": ("serve",),
    "rich": ("bench", "cli", "offline", "serve", "weights"),
    "sqlite3": ("serve.state",),
    "starlette": ("serve",),
    "torch": ("exec.cuda", "exec.dist"),
    "triton": ("exec.cuda", "exec.dist"),
    "uvicorn": ("bench", "serve"),
    "uvloop": ("bench", "serve"),
}
# These import late on purpose: commands, so that help is instant; the package's lazy exports; and
# the server, whose engine process loads the model while the rest of the server is imported; and
# what fetches the default model, once in the life of a machine; and what only an extra brings; and
# what an engine process may never need: the other backends, the tokenizer that grammars need; and
# NumPy with what needs it, in an API process that makes no labels and whose vocabulary has merges,
# and how the other kind of models says its tokenizer; and what only a model that sees images asks;
# and what makes rows of quantized modules, for which only who computes asks.
LATE = (
    "kvasir.__init__",
    "kvasir.__main__",
    "kvasir.cli.",
    "kvasir.config.heap",
    "kvasir.doctor.finding",
    "kvasir.engine.build",
    "kvasir.exec.backends",
    "kvasir.grammar.masks",
    "kvasir.serve.engine_process",
    "kvasir.serve.server",
    "kvasir.serve.text",
    "kvasir.serve.tracing",
    "kvasir.tokenizer.load",
    "kvasir.tokenizer.merges",
    "kvasir.vision.eye",
    "kvasir.vision.sight",
    "kvasir.weights.adapter",
    "kvasir.weights.default",
    "kvasir.weights.quantization.bitsandbytes",
    "kvasir.weights.quantization.floats",
    "kvasir.weights.quantization.gguf_blocks",
    "kvasir.weights.quantization.integers",
    "kvasir.weights.quantization.mxfp4",
)

FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "importlib"}
"""``models.families`` alone imports its own files by their names."""
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_ATTRIBUTES = {("torch", "load"), ("yaml", "load"), ("joblib", "load"), ("np", "load")}


@dataclass(frozen=True)
class Import:
    where: str
    """Dotted module with the import."""
    what: str
    line: int
    late: bool
    """Inside a function."""


@dataclass(frozen=True)
class Found:
    """What the tests ask of the whole package, of one look at each module."""

    modules: list[str]
    imports: list[Import]
    classes: dict[str, list[str]]
    calls: list[str]
    """Of what would run foreign code."""
    type_checking: list[str]

    @property
    def ours(self) -> list[Import]:
        return [entry for entry in self.imports if entry.what.split(".")[0] == "kvasir"]


@pytest.fixture(scope="module")
def found() -> Found:
    found = Found([], [], defaultdict(list), [], [])
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        found.modules.append(name)
        found.imports.extend(imports(name, tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.classes[node.name.removeprefix("_")].append(f"{name}:{node.lineno}")
            elif isinstance(node, ast.Call) and (what := forbidden_call(node.func)):
                found.calls.append(f"{name}:{node.lineno} calls {what}")
            elif isinstance(node, ast.Name) and node.id == "TYPE_CHECKING":
                found.type_checking.append(name)
    return found


def imports(where: str, tree: ast.AST, late: bool = False) -> Iterator[Import]:
    """Of the statements in ``tree``: an expression has none."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(where, alias.name, node.lineno, late)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{where}:{node.lineno}: relative import"
            for name in {from_module(node.module or "", alias.name) for alias in node.names}:
                yield Import(where, name, node.lineno, late)
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from imports(where, node, late or is_function)


def from_module(module: str, name: str) -> str:
    """The module that ``from module import name`` loads."""
    return f"{module}.{name}" if is_ours(f"{module}.{name}") else module


@cache
def is_ours(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    found = path.is_dir() or any(path.with_suffix(suffix).exists() for suffix in (".py", ".pyi"))
    return name.startswith("kvasir.") and found


def part(module: str) -> str:
    """kvasir.exec.base -> exec; the package itself -> empty."""
    words = [*module.split("."), ""]
    return words[1] if words[1] != "__init__" else ""


def show(entries: list[Import]) -> list[str]:
    return [f"{entry.where}:{entry.line} imports {entry.what}" for entry in entries]


def test_every_package_has_a_layer(found: Found) -> None:
    assert {part(name) for name in found.modules} <= LAYERS.keys()


def test_imports_go_downwards(found: Found) -> None:
    def is_upward(entry: Import) -> bool:
        here, there = part(entry.where), part(entry.what)
        if not here or here == there or (here, there) in SIDEWAYS:
            return False
        return LAYERS[there] >= LAYERS[here]

    assert show([entry for entry in found.ours if is_upward(entry)]) == []


def test_no_backend_is_known_above_its_door(found: Found) -> None:
    """Who decides, drives and serves steps asks ``exec.backends``, and has no native code."""
    inside = ("kvasir._native", "kvasir.exec.cpu", "kvasir.exec.fake", "kvasir.exec.reference")
    astray = [x for x in found.ours if part(x.where) in NO_BACKEND and x.what.startswith(inside)]
    assert show(astray) == []


def test_what_models_compute_is_said_without_files(found: Found) -> None:
    """``checkpoints`` reads these, and tells builders where weights lie."""
    known = ("core", "ir", "models")
    astray = [x for x in found.ours if part(x.where) == "models" and part(x.what) not in known]
    assert show(astray) == []


def test_modules_have_no_cycle(found: Found) -> None:
    graph: dict[str, set[str]] = {}
    for entry in found.ours:
        if not entry.late:
            graph.setdefault(entry.where, set()).add(entry.what)
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail, module))
        if module not in done:
            for below in sorted(graph.get(module, ())):
                visit(below, (*trail, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())


def test_third_party_packages_stay_where_they_belong(found: Found) -> None:
    def is_astray(entry: Import) -> bool:
        homes = THIRD_PARTY.get(entry.what.split(".")[0])
        inside = entry.where.removeprefix("kvasir.") + "."
        return homes is not None and not inside.startswith(tuple(home + "." for home in homes))

    assert show([entry for entry in found.imports if is_astray(entry)]) == []


def test_low_layers_use_the_standard_library_and_little_else(found: Found) -> None:
    allowed = {"kvasir", "numpy", "msgspec"}
    low = [
        entry
        for entry in found.imports
        if part(entry.where) in ("core", "ir", "kv", "sched", "speculate", "timing")
    ]
    top = [entry for entry in low if entry.what.split(".")[0] not in sys.stdlib_module_names]
    assert show([entry for entry in top if entry.what.split(".")[0] not in allowed]) == []


def test_late_imports_are_for_commands_only(found: Found) -> None:
    late = [entry for entry in found.ours if entry.late and not entry.where.startswith(LATE)]
    assert show(late) == []


def test_no_type_checking_imports(found: Found) -> None:
    assert found.type_checking == []


def test_no_name_of_a_class_stands_twice(found: Found) -> None:
    """One name, one thing: private names count as public ones."""
    assert found.classes["EngineOptions"]
    assert {name: places for name, places in found.classes.items() if len(places) > 1} == {}


def test_nothing_unpickles_or_runs_text(found: Found) -> None:
    foreign = [x for x in found.imports if x.what.split(".")[0] in FORBIDDEN_MODULES]
    assert [x.where for x in foreign] == ["kvasir.models.families.__init__"], show(foreign)
    assert found.calls == []


def forbidden_call(called: ast.expr) -> str:
    if isinstance(called, ast.Name) and called.id in FORBIDDEN_CALLS:
        return called.id
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        pair = (called.value.id, called.attr)
        if pair in FORBIDDEN_ATTRIBUTES:
            return ".".join(pair)
    return ""
