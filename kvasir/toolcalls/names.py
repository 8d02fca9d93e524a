"""Names of parameters that a form of arguments can write so that they are read back."""

from __future__ import annotations

from collections.abc import Iterable

from kvasir.grammar.errors import unsupported
from kvasir.toolcalls.format import Literals, Parameter, ToolFormat
from kvasir.toolcalls.literals import SPACES


def check_names(tool: str, names: Iterable[str], form: ToolFormat) -> None:
    """``names``: of the parameters of ``tool``. Raises UnsupportedSchema for one that calls of
    ``form`` cannot say."""
    for name in names:
        problem = _problem(name, form.arguments)
        if problem:
            why = f"in calls of {tool}, in this model's form ({form.name}), no name {problem}"
            raise unsupported("properties", ("properties", name), f"{why}: rename it")


def _problem(name: str, form: Parameter | Literals | None) -> str:
    """Empty: it is read back as it is written."""
    if isinstance(form, Parameter):
        found = (name + form.between).find(form.between) < len(name)
        return "has the text that ends a name" if found else ""
    if form is None:
        return ""
    if not name or name != name.strip(SPACES):
        return "begins or ends with white space, or is empty"
    if name.startswith(form.end):
        return f"begins with '{form.end}'"
    return f"has a '{form.assign}'" if form.assign in name else ""
