"""The one validator of conversations, whoever brings them: the server or a program."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import msgspec

from kvasir.core.errors import RequestError
from kvasir.validation.warn import bounded, escaped

TURNS = ("system", "developer", "user", "assistant")
ROLES = (*TURNS, "tool")
IMAGE_KIND = "image_url"
"""Of a part that is an image, and its field that has it."""
DATA_URI = re.compile(r"data:image/([\w.+-]{1,64});base64,", re.ASCII | re.IGNORECASE)
ADDRESS = re.compile(r"https?://[\x21-\x7e]{1,8192}", re.ASCII | re.IGNORECASE)
MAX_CALLS = 128
"""Of one message."""
THOUGHTS = ("reasoning_content", "reasoning")
"""Names of a message's reasoning."""


class PastCall(msgspec.Struct, frozen=True):
    id: str
    name: str
    arguments: dict[str, Any]


class History(msgspec.Struct, frozen=True):
    """How a chat template wants past calls and tools."""

    as_text: bool = False
    """Arguments as JSON text, not as a mapping."""
    is_null: bool = False
    """A turn without content beside its calls has None, not an empty text."""
    is_written: bool = False
    """It writes no calls: they stand in the content."""
    shown_as: str | None = "tools"
    """The variable of its tools; None where it shows none."""


DEFAULT = History()


def shown_tools(tools: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Variables of a template that looks for tools in ``name``."""
    return {"tools": list(tools), name: list(tools)}


class ImagePart(msgspec.Struct, frozen=True, omit_defaults=True):
    """An image of a message, as it was sent."""

    data: str
    """An image file in base64."""
    where: str
    """The field that has it."""
    kind: str = "any"
    """Of the file, as who sent it says."""
    address: str = ""
    """Where the file is to be fetched from; then there is no ``data``."""

    @property
    def uri(self) -> str:
        return self.address or f"data:image/{self.kind};base64,{self.data}"


class ChatMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the template sees."""

    role: str
    content: str
    """Its texts, one below the other."""
    calls: tuple[PastCall, ...] = ()
    """Of an assistant."""
    reasoning: str = ""
    """Of an assistant: templates that want none leave it out."""
    call_id: str = ""
    """Of a tool: the call that it answers."""
    name: str = ""
    """Of a tool."""
    parts: tuple[str | ImagePart, ...] = ()
    """Texts and images in their order, of a message with images."""

    def said(self, history: History = DEFAULT) -> dict[str, object]:
        """As templates read it."""
        content = [_shown(part) for part in self.parts] or self.content
        found: dict[str, object] = {"role": self.role, "content": content}
        if self.calls:
            found["tool_calls"] = [_written(call, history.as_text) for call in self.calls]
            found["content"] = None if history.is_null and not self.content else self.content
        more = {
            "reasoning_content": self.reasoning,
            "tool_call_id": self.call_id,
            "name": self.name,
        }
        return found | {key: value for key, value in more.items() if value}

    @property
    def images(self) -> tuple[ImagePart, ...]:
        return tuple(part for part in self.parts if isinstance(part, ImagePart))

    @property
    def n_bytes(self) -> int:
        """Of all that it says, without images."""
        calls = sum(len(call.name) + len(json.dumps(call.arguments)) for call in self.calls)
        return len((self.content + self.reasoning).encode("utf-8", errors="replace")) + calls


def _shown(part: str | ImagePart) -> dict[str, object]:
    return {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}


def _written(call: PastCall, as_text: bool) -> dict[str, object]:
    given = json.dumps(call.arguments, ensure_ascii=False) if as_text else call.arguments
    function = {"name": call.name, "arguments": given}
    return {"id": call.id, "type": "function", "function": function}


Conversation = tuple[tuple[ChatMessage, ...], tuple[str, ...]]
"""Messages, and warnings about them."""


def read_messages(messages: object, *, sees: bool = False) -> Conversation:
    """The conversation, and warnings about fields of messages that are ignored. ``sees``: users'
    messages may have images. Raises RequestError (400)."""
    if not is_list(messages):
        raise RequestError("messages must be a list of messages", param="messages")
    if not messages:
        raise RequestError("messages is empty: send at least one", param="messages")
    read = tuple(_message(message, i, sees=sees) for i, message in enumerate(messages))
    fields = {str(key) for message in messages for key in message if key not in _known(message)}
    parts = [part for message in messages for part in _dicts(message.get("content"))]
    inner = {str(key) for part in parts for key in part} - {"type", "text"}
    if any(message.parts for message in read):
        inner -= {IMAGE_KIND}
        details = [part[IMAGE_KIND] for part in parts if isinstance(part.get(IMAGE_KIND), Mapping)]
        inner |= {f"{IMAGE_KIND}.{key}" for each in details for key in each if _says(each, key)}
    extra = sorted({*fields, *(f"content[].{key}" for key in inner)})
    return read, bounded(extra, lambda key: f"messages[].{escaped(key)} was ignored")


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """A text is none."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _dicts(content: object) -> list[Mapping[str, Any]]:
    return [part for part in content if isinstance(part, Mapping)] if is_list(content) else []


def _says(image: Mapping[str, Any], key: str) -> bool:
    """Whether a field of an image asks for something that nobody does."""
    return key != "url" and not (key == "detail" and image[key] in (None, "auto"))


def _message(message: object, i: int, *, sees: bool) -> ChatMessage:
    where = f"messages[{i}]"
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} must have a role and a content", param=where)
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(
            f"{where}.role is {_said(role)}: use one of {', '.join(ROLES)}",
            param=f"{where}.role",
        )
    if message.get("function_call"):
        raise RequestError(
            f"{where}.function_call is the legacy form: send tool_calls",
            param=f"{where}.function_call",
        )
    if role == "tool":
        content = read_content(message.get("content"), f"{where}.content")
        call_id, name = message.get("tool_call_id"), message.get("name")
        for key, value in (("tool_call_id", call_id), ("name", name)):
            if not isinstance(value, str | None):
                raise RequestError(f"{where}.{key} must be text", param=f"{where}.{key}")
        return ChatMessage(role, content, call_id=call_id or "", name=name or "")
    if role != "assistant":
        for key in ("tool_calls", "tool_call_id"):
            if message.get(key):
                raise RequestError(
                    f"{where}.{key} does not belong to a message of the role {role}",
                    param=f"{where}.{key}",
                )
        parts = read_parts(message.get("content"), f"{where}.content") if sees else ()
        if parts and role == "user":
            return seeing(parts)
        return ChatMessage(role, read_content(message.get("content"), f"{where}.content"))
    return _of_assistant(message, where)


def _of_assistant(message: Mapping[str, Any], where: str) -> ChatMessage:
    calls = _calls(message.get("tool_calls"), f"{where}.tool_calls")
    said = message.get("content")
    content = "" if calls and not said else read_content(said, f"{where}.content")
    thoughts = next((found for key in THOUGHTS if (found := message.get(key))), "")
    if not isinstance(thoughts, str):
        raise RequestError(f"{where}.reasoning must be text", param=f"{where}.reasoning")
    return ChatMessage("assistant", content, calls, thoughts)


def _known(message: Mapping[str, Any]) -> tuple[str, ...]:
    """Its fields that say something."""
    more = {"assistant": ("tool_calls", *THOUGHTS), "tool": ("tool_call_id", "name")}
    return ("role", "content", *more.get(message["role"], ()))


def _calls(given: object, where: str) -> tuple[PastCall, ...]:
    if given is None or given == []:
        return ()
    if not is_list(given) or len(given) > MAX_CALLS:
        raise RequestError(f"{where} must be a list of at most {MAX_CALLS} calls", param=where)
    return tuple(_call(call, f"{where}[{i}]") for i, call in enumerate(given))


def _call(call: object, where: str) -> PastCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise RequestError(f"{where} must have a function", param=where)
    name, call_id = function.get("name"), call.get("id")
    if not isinstance(name, str) or not isinstance(call_id, str | None):
        raise RequestError(f"{where} must have a name and an id of text", param=where)
    given = function.get("arguments")
    return PastCall(call_id or "", name, read_arguments(given, f"{where}.function.arguments"))


def read_arguments(given: object, where: str) -> dict[str, Any]:
    """Of a past call: an object, or JSON of one. Raises RequestError (400)."""
    if isinstance(given, str):
        try:
            given = json.loads(given or "{}")
        except (ValueError, RecursionError):
            raise RequestError(f"{where} is not JSON", param=where) from None
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise RequestError(f"{where} must be a JSON object", param=where)
    return given


def _said(role: object) -> str:
    return repr(role[:32]) if isinstance(role, str) else f"of type {type(role).__name__}"


def read_content(content: object, where: str, kinds: Sequence[str] = ("text",)) -> str:
    """The text of a message that is a text or a list of parts, of types ``kinds``. Raises
    RequestError (400), which names ``where``."""
    if isinstance(content, str):
        return content
    if is_list(content) and content:
        return "\n".join(_part(part, f"{where}[{i}]", kinds) for i, part in enumerate(content))
    raise RequestError(f"{where} must be text or a list of text parts", param=where)


def read_parts(
    content: object, where: str, texts: Sequence[str] = ("text",), image: str = IMAGE_KIND
) -> tuple[str | ImagePart, ...]:
    """Of a list of texts, of types ``texts``, and images, of type ``image``; of anything else none.
    Raises RequestError (400) on an image that is neither data URI nor address."""
    if not is_list(content) or not any(_is_image(part, image) for part in content):
        return ()
    named = [(part, f"{where}[{i}]") for i, part in enumerate(content)]
    return tuple(_image(x, at) if _is_image(x, image) else _part(x, at, texts) for x, at in named)


def seeing(parts: tuple[str | ImagePart, ...]) -> ChatMessage:
    """The message of a user with images."""
    text = "\n".join(part for part in parts if isinstance(part, str))
    return ChatMessage("user", text, parts=parts)


def _is_image(part: object, kind: str) -> bool:
    return isinstance(part, Mapping) and part.get("type") == kind


def _image(part: Mapping[str, Any], where: str) -> ImagePart:
    where = f"{where}.{IMAGE_KIND}"
    said = part.get(IMAGE_KIND)
    url = said.get("url") if isinstance(said, Mapping) else said
    if isinstance(url, str) and (found := DATA_URI.match(url)):
        return ImagePart(url[found.end() :], where, found[1])
    if isinstance(url, str) and ADDRESS.fullmatch(url):
        return ImagePart("", where, address=url)
    raise RequestError(
        f"{where} must be a data URI (data:image/png;base64,...) or an address (https://...)",
        param=where,
        code="unsupported_parameter",
    )


def _part(part: object, where: str, kinds: Sequence[str]) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") in kinds else None
    if not isinstance(text, str):
        raise RequestError(
            f"{where}: only parts of type {' or '.join(kinds)} are supported",
            param=where,
            code="unsupported_parameter",
        )
    return text
