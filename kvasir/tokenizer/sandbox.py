"""A Jinja environment in which a template cannot reach Python, loop for ever or fill the memory.

Jinja's immutable sandbox hides the attributes that lead out of a template. On top of it every loop
step, call, filter, operator and output passes a hook that counts against the render's ``Budget``,
and only those methods, filters and globals exist whose result is bounded by what they are given.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes, pass_context
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import do_indent
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from kvasir.tokenizer.budget import ELEMENT, MAX_INT_BITS, Budget, stop

_BUDGET = "the budget"
"""Where a render's Budget lies among its variables: no template can spell a name with a space."""
_MAX_INDENT = 16

_METHODS: dict[type, tuple[str, ...]] = {
    str: (
        "strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "partition", "rpartition",
        "removeprefix", "removesuffix", "upper", "lower", "title", "capitalize", "casefold",
        "swapcase", "startswith", "endswith", "find", "rfind", "index", "rindex", "count",
        "replace", "join", "isdigit", "isalpha", "isalnum", "isspace", "isupper", "islower",
        "istitle", "isnumeric", "isdecimal",
    ),
    dict: ("get", "items", "keys", "values"),
    list: ("index", "count"),
    tuple: ("index", "count"),
    int: (),
    float: (),
}  # fmt: skip
_FILTERS = (
    "abs", "count", "d", "default", "dictsort", "first", "float", "groupby", "int", "items", "last",
    "length", "map", "max", "min", "reject", "rejectattr", "reverse", "safe", "select",
    "selectattr", "sort", "unique",
)  # fmt: skip
_TEXT_FILTERS = (
    "capitalize", "e", "escape", "forceescape", "lower", "string", "title", "trim", "upper",
    "wordcount",
)  # fmt: skip
"""Filters that first turn whatever they get into text."""


class Sandbox(ImmutableSandboxedEnvironment):
    """Settings, globals and filters are those that ``transformers`` gives chat templates."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _GenerationTag],
            finalize=_finalize,
            # Folding constants would run them before there is a budget.
            optimized=False,
        )
        allowed = {name: _guarded(self.filters[name], False) for name in _FILTERS}
        allowed |= {name: _guarded(self.filters[name], True) for name in _TEXT_FILTERS}
        self.filters = allowed | {
            "list": _list, "join": _join, "replace": _replace, "indent": _indent, "tojson": _tojson,
            "_steps": _steps, "_concat": _concat, "_checked": _checked, "_own": _own,
        }  # fmt: skip
        self.globals = {
            "range": self.globals["range"], "namespace": Namespace, "dict": dict,
            "raise_exception": _raise_exception, "strftime_now": _strftime_now,
        }  # fmt: skip

    def load(self, source: str) -> jinja2.Template:
        """Compile a template. Raises jinja2.TemplateError, SyntaxError or RecursionError."""
        return self.from_string(_Hooks().visit(self.parse(source)))

    def render(self, template: jinja2.Template, variables: Mapping[str, object]) -> str:
        """Render within a fresh budget; raises whatever the template provokes."""
        return template.render({**variables, _BUDGET: Budget()})

    def handle_exception(self, source: str | None = None) -> NoReturn:
        """Errors of rendering as they are: Jinja's own way tells lines of the template, by frames
        that refer to each other, and so keep what the template made until garbage is collected."""
        if source is None:
            raise
        super().handle_exception(source)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, _OwnList) and attr in ("append", "pop"):
            return True
        for kind, methods in _METHODS.items():
            if isinstance(obj, kind) and attr not in methods:
                return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and re.search(r"\d{3}|:[^}]*{", value.__self__):
            stop("it formats text with a large or computed width")
        return wrapped

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        budget = _budget(context)
        budget.step()
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, _OwnList):
            budget.charge(ELEMENT)
        if isinstance(owner, str):
            _check_method(budget, owner, name, args)
        elif name == "format":
            budget.check([*args, *kwargs.values()])
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(result, str | int | list | tuple | dict):
            budget.check(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = _budget(context)
        budget.step()
        if operator == "+" and isinstance(left, str | list | tuple):
            budget.check(left)
            budget.check(right)
        elif operator == "*":
            _check_product(budget, left, right)
        elif operator == "**" and not (_bits(left) * max(_bits(right), abs(right)) <= MAX_INT_BITS):
            stop("it raises a number to a large power")
        elif operator == "%" and isinstance(left, str):
            if re.search(r"\d{3}|\*", left):
                stop("it formats text with a large or computed width")
            budget.check(right)
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, str | int):
            budget.check(result)
        return result


def _budget(context: Context) -> Budget:
    budget: Budget = context.resolve_or_missing(_BUDGET)
    return budget


def _bits(value: object) -> int:
    return value.bit_length() if isinstance(value, int) else 64


def _check_product(budget: Budget, left: Any, right: Any) -> None:
    if isinstance(right, str | list | tuple):
        left, right = right, left
    if isinstance(left, str | list | tuple) and isinstance(right, int) and right > 1:
        width = 1 if isinstance(left, str) else ELEMENT
        budget.charge(width * len(left) * right)
        if width > 1:
            budget.step(len(left) * right)


def _check_method(budget: Budget, text: str, name: str, args: tuple[Any, ...]) -> None:
    """Charge for the methods of str whose result can be larger than the text."""
    if name == "replace" and len(args) > 1 and all(isinstance(arg, str) for arg in args[:2]):
        budget.charge(len(text) + text.count(args[0]) * len(args[1]))
    elif name == "join" and args:
        if not isinstance(args[0], str | list | tuple):
            stop("it joins something that is neither text nor a list")
        budget.check(args[0])
        budget.charge(len(text) * len(args[0]))
    else:
        budget.charge(len(text))


class _OwnList(list[Any]):
    """Which the template made: it may change it, and nobody else sees it."""


class _Hooks(NodeTransformer):
    """Puts hooks where Jinja has none: loops, ``~``, literals, and text between tags."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.recursive:
            stop("recursive loops are not supported")
        self.generic_visit(node)
        node.iter = _filter(node.iter, "_steps")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "_concat")

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, "_own")

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, "_checked")

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, "_checked") if node.ctx == "load" else node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return nodes.Const(node.data, lineno=node.lineno)

    def visit_Include(self, node: nodes.Node) -> nodes.Node:
        stop("it refers to another template")

    visit_Import = visit_FromImport = visit_Extends = visit_Include


def _filter(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _GenerationTag(Extension):
    """``{% generation %}`` marks the model's own words for training, and changes no text."""

    tags = {"generation"}  # noqa: RUF012 (as the base class declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@pass_context
def _finalize(context: Context, value: object) -> object:
    budget = _budget(context)
    if not isinstance(value, str):
        budget.check(value)
        value = str(value)
    budget.emit(value)
    return value


@pass_context
def _steps(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    budget = _budget(context)
    for item in items:
        budget.step()
        yield item


@pass_context
def _concat(context: Context, items: list[Any]) -> str:
    budget = _budget(context)
    budget.step()
    budget.check(items)
    return "".join(map(str, items))


@pass_context
def _checked(context: Context, value: Any) -> Any:
    budget = _budget(context)
    budget.step()
    budget.check(value)
    return value


@pass_context
def _own(context: Context, value: list[Any]) -> list[Any]:
    return _OwnList(_checked(context, value))


@pass_context
def _list(context: Context, items: Iterable[Any]) -> list[Any]:
    _budget(context).charge(ELEMENT)
    return list(_steps(context, items))


@pass_context
def _join(context: Context, items: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
    budget = _budget(context)
    if attribute is not None:
        items = context.environment.call_filter(
            "map", items, kwargs={"attribute": attribute}, context=context
        )
    parts = _list(context, items)
    budget.check(parts)
    budget.charge(len(d) * len(parts))
    return str(d).join(map(str, parts))


@pass_context
def _replace(context: Context, text: Any, old: str, new: str, count: int | None = None) -> str:
    budget = _budget(context)
    budget.step()
    budget.check(text)
    text = str(text)
    budget.charge(text.count(str(old)) * len(str(new)))
    return str(text).replace(str(old), str(new), -1 if count is None else count)


@pass_context
def _indent(
    context: Context, text: Any, width: int = 4, first: bool = False, blank: bool = False
) -> str:
    budget = _budget(context)
    budget.check(text)
    if not isinstance(width, int) or not 0 <= width <= _MAX_INDENT:
        stop(f"it indents by more than {_MAX_INDENT}")
    budget.charge(width * (1 + str(text).count("\n")))
    return do_indent(str(text), width, first, blank)


@pass_context
def _tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON, without Jinja's escapes for HTML, as ``transformers`` has it."""
    budget = _budget(context)
    budget.step()
    if isinstance(value, Iterator):  # of a filter
        value = list(_steps(context, value))
    area = budget.check(value)
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= _MAX_INDENT):
        stop(f"it indents by more than {_MAX_INDENT}")
    budget.charge(area * (indent or 0))
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _guarded(function: Callable[..., Any], is_text: bool) -> Callable[..., Any]:
    """``function``, one of Jinja's filters, with its first argument checked."""
    passed = getattr(getattr(function, "jinja_pass_arg", None), "name", None)

    @pass_context
    @functools.wraps(function, updated=())
    def guarded(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = _budget(context)
        budget.step()
        if is_text:
            budget.check(value)
        elif isinstance(value, str):
            budget.charge(ELEMENT * len(value))
        own = {
            "context": context,
            "eval_context": context.eval_ctx,
            "environment": context.environment,
        }
        first = (own[passed],) if passed in own else ()
        result = function(*first, value, *args, **kwargs)
        if isinstance(result, int):
            budget.check(result)
        return result

    return guarded


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
