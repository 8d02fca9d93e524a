"""Turns of a conversation in the form of a chat template, one piece after the other.

A template writes whole conversations. Rendered with a mark in the place of each message, it shows
what it writes between two of them, so that what was said before is never written again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvasir.core.errors import RequestError
from kvasir.lang.expressions import Role

Message = dict[str, str]
Render = Callable[[Sequence[Message], bool], str]
"""The text of messages, with the beginning of an answer or without."""


@dataclass(frozen=True, slots=True)
class TemplateTurns:
    roles: tuple[Role, ...] = ()
    is_open: bool = False

    def open(self, role: Role, render: Render) -> tuple[TemplateTurns, str]:
        """And what the template writes between the message before and this one. Raises
        RequestError for a turn inside another, and for templates that write it elsewhere."""
        if self.is_open:
            raise RequestError(f"a turn of {role} begins inside one of {self.roles[-1]}")
        text = self._before(role, render)
        return TemplateTurns((*self.roles, role), True), text

    def close(self) -> TemplateTurns:
        return replace(self, is_open=False)

    def _before(self, role: Role, render: Render) -> str:
        n = len(self.roles)
        messages = [{"role": r, "content": _mark(i)} for i, r in enumerate(self.roles)]
        if role == "assistant":
            if not messages:
                raise RequestError("a conversation does not begin with a turn of assistant")
            return _between(render(messages, True), n - 1, None, role)
        messages.append({"role": role, "content": _mark(n)})
        if role == "system":  # some templates write it into the turn of the user that follows
            messages.append({"role": "user", "content": _mark(n + 1)})
        return _between(render(messages, False), n - 1, n, role)


NO_TURNS = TemplateTurns()


def _mark(i: int) -> str:
    """Characters for private use, which mean nothing to anybody else."""
    return f"\ue00d{i}\ue00e"


def _between(text: str, last: int, own: int | None, role: Role) -> str:
    """What stands behind the mark ``last`` (-1: the beginning) and before ``own`` (None: the
    end)."""
    begin = 0 if last < 0 else text.find(_mark(last)) + len(_mark(last))
    end = len(text) if own is None else text.find(_mark(own))
    marks = [_mark(i) for i in (last, own) if i is not None and i >= 0]
    if any(text.count(mark) != 1 for mark in marks) or end < begin:
        raise RequestError(
            f"the model's chat template does not write a turn of {role} where it stands: use "
            "another order of turns, or text without turns"
        )
    return text[begin:end]
