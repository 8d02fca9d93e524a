"""What a request says of reasoning, and to the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from kvasir.core.errors import RequestError
from kvasir.toolcalls.reading import Thoughts
from kvasir.validation.warn import bounded, escaped

Warnings = tuple[str, ...]

OWN = ("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token")
"""Variables of a template that requests have other fields for, or none."""
MAX_VARIABLES = 32
EFFORT, SWITCH = "reasoning_effort", "enable_thinking"
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


MAX_BUDGET = 10**9


class ThinkingFields(Protocol):
    """What may be said of reasoning, but for its effort: structs have one base alone."""

    @property
    def chat_template_kwargs(self) -> dict[str, Any] | None: ...
    @property
    def enable_thinking(self) -> bool | None: ...
    @property
    def thinking_token_budget(self) -> int | None:
        """Tokens of reasoning after which its end is forced."""
        ...

    @property
    def thinking_budget_tokens(self) -> int | None:
        """llama-server's name for it."""
        ...

    @property
    def reasoning_control(self) -> bool:
        """Whether its end may be asked for while it goes on."""
        ...


MAX_MESSAGE = 4096
"""Bytes of what is written before a forced end."""
FORMATS: dict[str, Thoughts] = {
    "auto": "apart",
    "deepseek": "apart",
    "deepseek-legacy": "both",
    "none": "content",
}
"""llama-server's names of where reasoning is told."""


class ThinkingWish(msgspec.Struct, frozen=True):
    """When reasoning shall end."""

    budget: int | None = None
    is_controlled: bool = False
    name: str = "thinking_token_budget"
    """Of the field that says so."""
    message: str = ""
    """Written before its end, where that is forced."""


def thinking_wish(fields: ThinkingFields) -> ThinkingWish | None:
    """None where nothing is asked. Raises RequestError (400)."""
    both = {
        name: value
        for name in ("thinking_token_budget", "thinking_budget_tokens")
        if (value := getattr(fields, name)) is not None
    }
    if len(set(both.values())) > 1:
        raise RequestError(
            "thinking_token_budget and thinking_budget_tokens differ: send one of them",
            param="thinking_token_budget",
        )
    if not both:
        name = "reasoning_control"
        return ThinkingWish(is_controlled=True, name=name) if fields.reasoning_control else None
    name, budget = next(iter(both.items()))
    return ThinkingWish(check_budget(budget, name), fields.reasoning_control, name)


def with_message(wish: ThinkingWish | None, message: str | None) -> ThinkingWish | None:
    """Raises RequestError (400) where no end is forced."""
    name = "reasoning_budget_message"
    if not message:
        return wish
    if wish is None or (wish.budget is None and not wish.is_controlled):
        raise RequestError(f"{name} needs thinking_token_budget or reasoning_control", param=name)
    if len(message.encode("utf-8", "replace")) > MAX_MESSAGE:
        raise RequestError(f"{name} has more than {MAX_MESSAGE} bytes", param=name)
    return replace(wish, message=message)


def thoughts_of(form: str | None, separate: bool | None, shown: bool) -> Thoughts | None:
    """Of llama-server's ``reasoning_format``, SGLang's ``separate_reasoning`` and
    ``include_reasoning``; None where nothing is said. Raises RequestError (400)."""
    if form is not None and form not in FORMATS:
        raise RequestError(
            f"reasoning_format must be one of {', '.join(FORMATS)}", param="reasoning_format"
        )
    said = None if form is None else FORMATS[form]
    if separate is not None:
        asked: Thoughts = "apart" if separate else "content"
        if said is not None and said != asked:
            raise RequestError(
                "reasoning_format and separate_reasoning differ: send one of them",
                param="separate_reasoning",
            )
        said = asked
    if not shown and said not in (None, "apart"):
        raise RequestError(
            "include_reasoning: false leaves reasoning out, which another field has in the content",
            param="include_reasoning",
        )
    return said if shown else "apart"


def check_budget(budget: int, name: str) -> int | None:
    """-1 is none. Raises RequestError (400)."""
    if not -1 <= budget <= MAX_BUDGET:
        raise RequestError(f"{name} must be at least -1 and at most {MAX_BUDGET}", param=name)
    return None if budget < 0 else budget


def variables_of(fields: ThinkingFields, effort: str | None, name: str = EFFORT) -> dict[str, Any]:
    """As ``template_variables``."""
    found = template_variables(fields.chat_template_kwargs, effort, name)
    return found if fields.enable_thinking is None else {SWITCH: fields.enable_thinking, **found}


def template_variables(
    given: Mapping[str, Any] | None, effort: str | None, name: str = EFFORT
) -> dict[str, Any]:
    """What is asked of the template; ``name``: of the field of ``effort``. Raises RequestError
    (400)."""
    variables = dict(given or {})
    if len(variables) > MAX_VARIABLES:
        raise RequestError(
            f"chat_template_kwargs has {len(variables)} entries, at most {MAX_VARIABLES} are "
            "possible",
            param="chat_template_kwargs",
        )
    for name in variables:
        if name in OWN or not name.isidentifier():
            raise RequestError(
                f"chat_template_kwargs: {escaped(name)} is not for a request to say",
                param="chat_template_kwargs",
            )
    if effort is not None and effort not in EFFORTS:
        raise RequestError(f"{name} must be one of {', '.join(EFFORTS)}", param=name)
    return variables if effort is None else {EFFORT: effort, **variables}


def known_variables(asked: Mapping[str, Any], template: str) -> tuple[dict[str, Any], Warnings]:
    """Those that ``template`` has a use for, and warnings of others. Where it knows only whether to
    think, an effort says that."""
    variables = dict(asked)
    if EFFORT in asked and EFFORT not in template and SWITCH in template:
        variables.setdefault(SWITCH, variables.pop(EFFORT) != "none")
    found = {name: value for name, value in variables.items() if name in template}
    unused = [name for name in variables if name not in found and variables[name] is not False]
    said = "is nothing to the model's chat template and was ignored"
    return found, bounded(unused, lambda name: f"{escaped(name)} {said}")
