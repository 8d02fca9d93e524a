"""What a program adds to its state: values, of which ``+`` makes longer ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from kvasir.lang.forms import ANY_TEXT, AnswerForm, form_of
from kvasir.lang.scoring import ChoiceMethod, token_length_normalized
from kvasir.validation.sampling import SamplingParams

Role = Literal["system", "user", "assistant"]
OWN_FIELDS = frozenset(SamplingParams.__struct_fields__) - {
    *("n", "best_of", "structured_outputs", "prompt_logprobs", "detokenize"),
    *("truncate_prompt_tokens", "truncation_side", "include_stop_str_in_output"),
    *("logprobs", "logprob_token_ids", "cache_ttl"),
}
"""Of ``SamplingParams``, what one call may say."""


class Expression:
    """Something that can be added to a state."""

    def __add__(self, other: object) -> Expression:
        return Several((*parts_of(self), *parts_of(other)))

    def __radd__(self, other: object) -> Expression:
        return Several((*parts_of(other), *parts_of(self)))


@dataclass(frozen=True, slots=True)
class Words(Expression):
    text: str


@dataclass(frozen=True, slots=True)
class Several(Expression):
    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class SpokenTurn(Expression):
    """A whole turn of a conversation."""

    role: Role
    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Gen(Expression):
    """A call of the model, whose text becomes part of the state and the variable ``name``."""

    name: str | None
    fields: Mapping[str, object] = field(default_factory=dict)
    """Of ``SamplingParams``, where they differ from those of the run."""
    form: AnswerForm = ANY_TEXT

    def params(self, defaults: SamplingParams, seed: int) -> SamplingParams:
        """``seed`` is for a call that names none."""
        chosen = {"seed": seed, **self.fields, "structured_outputs": self.form.outputs}
        return msgspec.structs.replace(defaults, **chosen)


@dataclass(frozen=True, slots=True)
class Select(Expression):
    """The choice that the model finds likeliest, by ``method``."""

    name: str | None
    choices: tuple[str, ...]
    method: ChoiceMethod


def parts_of(value: object) -> tuple[Expression, ...]:
    """Raises TypeError for what is neither a text nor an expression."""
    if isinstance(value, Several):
        return value.parts
    if isinstance(value, Expression):
        return (value,)
    if isinstance(value, str):
        return (Words(value),)
    raise TypeError(f"a state takes texts and calls, not {type(value).__name__}")


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    choices: Sequence[str] | None = None,
    choices_method: ChoiceMethod = token_length_normalized,
    regex: str | None = None,
    json_schema: object = None,
    grammar: str | None = None,
    dtype: type | None = None,
    **fields: object,
) -> Expression:
    """Text that the model continues with, as the variable ``name``.

    At most one of: ``choices`` (then this is ``select``), ``regex``, ``json_schema`` (a schema, as
    value or text, or a pydantic type), ``grammar`` (GBNF or Lark), ``dtype`` (int, float, bool, str
    or a pydantic type). ``fields``: those of ``SamplingParams`` (``stop``, ``temperature``, …),
    which hold for this call alone. A text that ``stop`` ends is cut before it. Raises TypeError
    for unknown fields, ValueError for two forms.
    """
    unknown = sorted(fields.keys() - OWN_FIELDS)
    if unknown:
        raise TypeError(f"gen() got unknown arguments: {', '.join(unknown)}")
    form = form_of(regex=regex, json_schema=json_schema, grammar=grammar, dtype=dtype)
    if max_tokens is not None:
        fields["max_tokens"] = max_tokens
    if choices is None:
        return Gen(name, fields, form)
    if form.outputs is not None:
        raise ValueError("choices and another form of the answer exclude each other")
    if fields:
        raise ValueError(f"choices are scored, not drawn: leave out {', '.join(sorted(fields))}")
    return select(name, choices, choices_method)


def select(
    name: str | None = None,
    choices: Sequence[str] = (),
    choices_method: ChoiceMethod = token_length_normalized,
) -> Expression:
    """The likeliest of ``choices``, as the variable ``name``. Raises ValueError without any."""
    if isinstance(choices, str) or not choices or not all(choices):
        raise ValueError("choices must be texts, one at least, and none empty")
    return Select(name, tuple(choices), choices_method)


def _spoken(role: Role, said: object) -> Expression:
    parts = parts_of(said)
    if any(isinstance(part, SpokenTurn) for part in parts):
        raise ValueError(f"a turn of {role} cannot hold another turn")
    return SpokenTurn(role, parts)


def system(said: object) -> Expression:
    """A turn of the system, in the form of the model's chat template."""
    return _spoken("system", said)


def user(said: object) -> Expression:
    """A turn of the user, in the form of the model's chat template."""
    return _spoken("user", said)


def assistant(said: object) -> Expression:
    """A turn of the assistant, in the form of the model's chat template; calls belong here."""
    return _spoken("assistant", said)
