"""Chat messages to prompt text, with the model's own template."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import jinja2
from jinja2.exceptions import SecurityError

from kvasir.core.errors import ModelError, RequestError
from kvasir.formats.fields import get_str
from kvasir.tokenizer.guard import Guard
from kvasir.tokenizer.sandbox import Sandbox
from kvasir.tokenizer.spelling import TextPiece
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.weights.source import ModelSource

_MAX_TEMPLATE = 1 << 20
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Names that templates have for a past message's reasoning; messages here have the first."""
END_MARK = "\ue00b\ue00c"
"""For private use: means nothing to anybody else."""
_LINE_FEED = "\n"
"""Before a text that continues: it is a token of its own, and the encoder puts its space there."""


class ChatTemplate:
    """The chat template of a model. Immutable; renders in any thread.

    A model without a usable template can still complete text, so ``problem`` says why ``render``
    would refuse, and is None when it works.
    """

    def __init__(self, source: ModelSource, tokenizer: Tokenizer) -> None:
        """Raises ModelError when the files that hold the template are corrupt."""
        self._tokenizer = tokenizer
        self._sandbox = Sandbox()
        self._guard = Guard(tokenizer)
        with source.named_errors():
            self.text = find_template(source)
            self.response = find_response_template(source)
        self._thoughts = thoughts_name(self.text or "")
        self.problem: str | None = None
        self._template: jinja2.Template | None = None
        if self.text is None:
            self.problem = f"model '{source.name}' has no chat template: use text completions"
        elif len(self.text) > _MAX_TEMPLATE:
            self.problem = (
                f"the chat template has {len(self.text)} characters, {_MAX_TEMPLATE} are allowed"
            )
        else:
            self._compile(self.text)

    def _compile(self, text: str) -> None:
        try:
            self._template = self._sandbox.load(text)
        except jinja2.TemplateSyntaxError as error:
            self.problem = (
                f"the model's chat template is not valid in line {error.lineno}: {error.message}"
            )
        except (
            jinja2.TemplateError,
            SyntaxError,
            RecursionError,
            MemoryError,
            ValueError,
        ) as error:
            self.problem = f"the model's chat template is not supported: {error}"

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
        names. Raises RequestError when there is no template, when the template refuses the
        messages, or when rendering exceeds the limits of ``budget``.
        """
        if self._template is None:
            raise RequestError(self.problem or "", param="messages", code="chat_template_missing")
        messages = [_renamed(message, self._thoughts) for message in messages]
        known = {
            "tools": None,
            "documents": None,
            **self._token_names(),
            **variables,
            "messages": _marked(messages) if continues else messages,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = self._sandbox.render(self._template, known)
        except (SecurityError, OverflowError, RecursionError, MemoryError) as error:
            reason = str(error) or type(error).__name__
            raise _refused(f"was stopped: {reason}", "chat_template_limit") from None
        except jinja2.UndefinedError as error:
            raise _refused(f"needs what the messages lack: {error}") from None
        except jinja2.TemplateError as error:
            raise _refused(f"refused the messages: {error}") from None
        except Exception as error:  # a template can provoke any error that Python has
            raise _refused(f"failed on the messages: {type(error).__name__}: {error}") from None
        return _continued(text) if continues else text

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
            return self._tokenizer.encode(text, add_special=False)
        marked = {name: self._guard.mark(item) for name, item in variables.items()}
        text = self.render(self._guard.mark(messages), add_generation_prompt, continues, **marked)
        return self._guard.encode(text)

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


def _marked(messages: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """The last of ``messages`` with a mark at its end, which no message has."""
    last = messages[-1]
    if any(END_MARK in str(message.get("content")) for message in messages):
        raise _refused(f"marks the end of the last message with {END_MARK!r}: leave that out")
    return [*messages[:-1], {**last, "content": f"{last.get('content')}{END_MARK}"}]


def _continued(text: str) -> str:
    """As far as the mark."""
    if text.count(END_MARK) != 1:
        raise _refused(
            f"writes the last message {text.count(END_MARK)} times: it cannot be continued"
        )
    return text[: text.index(END_MARK)]


def _refused(reason: str, code: str = "chat_template_error") -> RequestError:
    return RequestError(f"the model's chat template {reason}", param="messages", code=code)


def find_template(source: ModelSource) -> str | None:
    """The template in GGUF metadata, chat_template.jinja or tokenizer_config.json, if any."""
    if source.kind == "gguf":
        return get_str(source.config, "tokenizer.chat_template")
    alone = source.read("chat_template.jinja", _MAX_TEMPLATE)
    if alone is not None:
        try:
            return alone.decode("utf-8")
        except UnicodeDecodeError:
            raise ModelError(f"{source.path / 'chat_template.jinja'} is not valid UTF-8") from None
    return _default_of(source.read_json("tokenizer_config.json").get("chat_template"))


def find_response_template(source: ModelSource) -> object:
    """What tokenizer_config.json says of how answers are read, if anything."""
    if source.kind == "gguf":
        return None
    return source.read_json("tokenizer_config.json").get("response_template")


def _default_of(value: object) -> str | None:
    """tokenizer_config.json holds one template, or a list of named ones."""
    if isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
        value = next((i.get("template") for i in value if i.get("name") == "default"), None)
    if value is not None and not isinstance(value, str):
        raise ModelError(
            "chat_template of tokenizer_config.json is no text, and no list of named texts"
        )
    return value
