"""Chat messages to prompt text, with the model's own template."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import jinja2
import msgspec
from jinja2.exceptions import SecurityError

from kvasir.core.errors import RequestError
from kvasir.tokenizer.guard import Guard
from kvasir.tokenizer.image_text import NO_IMAGES, ImageText
from kvasir.tokenizer.sandbox import Sandbox
from kvasir.tokenizer.spelling import TextPiece
from kvasir.tokenizer.templates import (
    DEFAULT,
    MAX_TEMPLATE,
    TOOL_USE,
    find_response_template,
    find_templates,
)
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.weights.source import ModelSource

_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Names that templates have for a past message's reasoning; messages here have the first."""
END_MARK = "\ue00b\ue00c"
"""For private use: means nothing to anybody else."""
_LINE_FEED = "\n"
"""Before a text that continues: it is a token of its own, and the encoder puts its space there."""


class _Variant(msgspec.Struct, frozen=True):
    """One template of a model, or why there is none."""

    template: jinja2.Template | None = None
    problem: str | None = None
    thoughts: str = _THOUGHTS[0]
    """The field of a message in which it looks for its reasoning."""


class ChatTemplate:
    """The chat template of a model, which may have another one for conversations with tools.
    Immutable; renders in any thread.

    A model without a usable template can still complete text, so ``problem`` says why ``render``
    would refuse, and is None when it works.
    """

    def __init__(
        self, source: ModelSource, tokenizer: Tokenizer, image: ImageText = NO_IMAGES
    ) -> None:
        """``image``: what it writes for one. Raises ModelError when the files that hold the
        template are corrupt."""
        self._image = image
        self._tokenizer = tokenizer
        self._sandbox = Sandbox()
        self._guard = Guard(tokenizer)
        with source.named_errors():
            self.texts: Mapping[str, str] = find_templates(source)
            self.response = find_response_template(source)
        self._variants = {name: self._compile(text) for name, text in self.texts.items()}
        if DEFAULT not in self._variants:
            self._variants[DEFAULT] = _Variant(problem=_none_named(source.name, self.texts))
        self.text = self.texts.get(DEFAULT)
        asks = "is string" in (self.text or "")
        self._reads_parts = "vision_config" in source.config and not asks
        self.all_text = "\n".join(self.texts.values())
        """Of all of them: what is in none is nothing to the model."""
        self._bare = "" if "image" in self.all_text else image.bare
        self.problem = self._variants[DEFAULT].problem

    def _compile(self, text: str) -> _Variant:
        if len(text) > MAX_TEMPLATE:
            return _Variant(
                problem=f"the chat template has {len(text)} characters, {MAX_TEMPLATE} are allowed"
            )
        try:
            return _Variant(self._sandbox.load(text), None, thoughts_name(text))
        except jinja2.TemplateSyntaxError as error:
            problem = f"is not valid in line {error.lineno}: {error.message}"
        except (
            jinja2.TemplateError,
            SyntaxError,
            RecursionError,
            MemoryError,
            ValueError,
        ) as error:
            problem = f"is not supported: {error}"
        return _Variant(problem=f"the model's chat template {problem}")

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        add_generation_prompt: bool = True,
        continues: bool = False,
        **variables: object,
    ) -> str:
        """The prompt for ``messages``; it has its BOS already. ``continues``: it ends with the
        words of the last of them.

        ``variables`` (``tools``, ``documents``, what a request adds) reach the template by their
        names; with tools, a model's template ``tool_use`` is rendered where it has one. Raises
        RequestError when there is no template, when the template refuses the messages, or when
        rendering exceeds the limits of ``budget``.
        """
        has_own = variables.get("tools") and TOOL_USE in self._variants
        variant = self._variants[TOOL_USE if has_own else DEFAULT]
        if variant.template is None:
            raise RequestError(
                variant.problem or "", param="messages", code="chat_template_missing"
            )
        messages = [_renamed(message, variant.thoughts) for message in messages]
        known = {
            "tools": None,
            "documents": None,
            **self._token_names(),
            **variables,
            "messages": self._in_form(_marked(messages) if continues else messages),
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._rendered(variant.template, known)
        if isinstance(text, RequestError):
            raise text
        return _continued(text) if continues else text

    def _in_form(self, messages: Sequence[Mapping[str, object]]) -> Sequence[Mapping[str, object]]:
        """Some templates of models that see read lists of parts alone, some no parts at all."""
        if self._bare:
            return [_without_parts(message, self._bare) for message in messages]
        if not self._reads_parts:
            return messages
        return [
            {**message, "content": [{"type": "text", "text": content}]}
            if isinstance(content := message.get("content"), str)
            else message
            for message in messages
        ]

    def _rendered(
        self, template: jinja2.Template, variables: Mapping[str, object]
    ) -> str | RequestError:
        """A refusal is given and not raised: it would keep the error behind it, whose frames hold
        what the template made, up to the budget."""
        try:
            return self._sandbox.render(template, variables)
        except Exception as error:  # a template can provoke any error that Python has
            error.__traceback__ = None
            return _refusal_of(error)

    def encode(
        self,
        messages: Sequence[Mapping[str, object]],
        add_generation_prompt: bool = True,
        continues: bool = False,
        **variables: object,
    ) -> list[int]:
        """Ids of the rendered prompt, in which only the template can write special tokens.

        Arguments and errors are those of ``render``. What the messages and variables say is text:
        ``<|im_end|>`` in a user's words is spelled out and ends nothing.
        """
        if not self._guard.finds([messages, variables]):
            text = self.render(messages, add_generation_prompt, continues, **variables)
            return self._tokenizer.encode(self._seeing(text), add_special=False)
        marked = {name: self._guard.mark(item) for name, item in variables.items()}
        text = self.render(self._guard.mark(messages), add_generation_prompt, continues, **marked)
        return self._guard.encode(self._seeing(text))

    def _seeing(self, text: str) -> str:
        """With the spelling of images in the place of what only the template can write."""
        mark = self._image.mark
        return text.replace(mark, self._image.text) if mark else text

    def spell(
        self, pieces: Sequence[TextPiece], *, add_special: bool = False, continues: bool = False
    ) -> list[int]:
        """Ids of the text that ``pieces`` make together. Any model has it, whatever its template.

        ``add_special``: with what the model puts around a prompt. ``continues``: the text goes on
        behind others, so that nothing is put before its first word.
        """
        if any(not piece.special and self._guard.finds(piece.text) for piece in pieces):
            texts = [x.text if x.special else str(self._guard.mark(x.text)) for x in pieces]
            encode: Callable[[str], list[int]] = self._guard.encode
        else:
            texts, encode = [piece.text for piece in pieces], self._encode_plain
        text = "".join(texts)
        if continues and self._tokenizer.strips_space:
            before, ids = encode(_LINE_FEED), encode(_LINE_FEED + text)
            if ids[: len(before)] == before:
                return ids[len(before) :]
        ids = encode(text)
        return self._tokenizer.surround(ids) if add_special else ids

    def _encode_plain(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special=False)

    def _token_names(self) -> dict[str, object]:
        bos, eos = self._tokenizer.bos_id, self._tokenizer.eos_ids[:1]
        names = {"bos_token": self._tokenizer.piece(bos) if bos is not None else None}
        names["eos_token"] = self._tokenizer.piece(eos[0]) if eos else None
        return {key: name for key, name in names.items() if name is not None}


def thoughts_name(template: str) -> str:
    """The field of a message in which ``template`` looks for its reasoning."""
    read = r"(?:\.|\[\s*['\"]|get\(\s*['\"])%s\b"
    found = (name for name in _THOUGHTS if re.search(read % name, template))
    return next(found, _THOUGHTS[0])


def _renamed(message: Mapping[str, object], name: str) -> Mapping[str, object]:
    """``message`` with its reasoning as ``name``."""
    if name == _THOUGHTS[0] or _THOUGHTS[0] not in message:
        return message
    return {name if key == _THOUGHTS[0] else key: value for key, value in message.items()}


def _without_parts(message: Mapping[str, object], image: str) -> Mapping[str, object]:
    """``message`` with one text in the place of its parts."""
    parts = message.get("content")
    if not isinstance(parts, list):
        return message
    texts = (part["text"] if part["type"] == "text" else image for part in parts)
    return {**message, "content": "".join(texts)}


def _marked(messages: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """The last of ``messages`` with a mark at its end, which no message has."""
    last = messages[-1]
    if any(END_MARK in str(message.get("content")) for message in messages):
        raise _refused(f"marks the end of the last message with {END_MARK!r}: leave that out")
    said = last.get("content")
    if isinstance(said, list):
        content: object = [*said, {"type": "text", "text": END_MARK}]
    else:
        content = f"{said}{END_MARK}"
    return [*messages[:-1], {**last, "content": content}]


def _continued(text: str) -> str:
    """As far as the mark."""
    if text.count(END_MARK) != 1:
        raise _refused(
            f"writes the last message {text.count(END_MARK)} times: it cannot be continued"
        )
    return text[: text.index(END_MARK)]


def _refusal_of(error: Exception) -> RequestError:
    if isinstance(error, SecurityError | OverflowError | RecursionError | MemoryError):
        reason = str(error) or type(error).__name__
        return _refused(f"was stopped: {reason}", "chat_template_limit")
    if isinstance(error, jinja2.UndefinedError):
        return _refused(f"needs what the messages lack: {error}")
    if isinstance(error, jinja2.TemplateError):
        return _refused(f"refused the messages: {error}")
    return _refused(f"failed on the messages: {type(error).__name__}: {error}")


def _refused(reason: str, code: str = "chat_template_error") -> RequestError:
    return RequestError(f"the model's chat template {reason}", param="messages", code=code)


def _none_named(model: str, names: Iterable[str]) -> str:
    """Why there is no template by the name of ``DEFAULT``."""
    others = ", ".join(map(repr, names))
    if others:
        return f"model '{model}' has the chat templates {others}, and none that is the default one"
    return f"model '{model}' has no chat template: use text completions"
