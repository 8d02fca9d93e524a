"""Conversations in a file: a tree of messages each, as the page of the server has them too."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from kvasir.cli.images import Message
from kvasir.core.errors import RequestError

FORMAT, VERSION = "kvasir.conversations", 1
MAX_BYTES = 64 << 20


class Attachment(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    media: str = ""
    text: str | None = None
    data: str | None = None
    """A data URI."""


class SaidCall(msgspec.Struct, frozen=True):
    """Of a tool, by an answer."""

    name: str
    arguments: str
    """JSON, as the model wrote it."""


class SaidMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    role: Literal["user", "assistant"]
    content: str
    parent: str | None = None
    time: int = 0
    """Milliseconds since 1970."""
    reasoning: str | None = None
    model: str | None = None
    finish: str | None = None
    calls: tuple[SaidCall, ...] = ()
    attachments: tuple[Attachment, ...] = ()


class SavedConversation(msgspec.Struct, frozen=True):
    id: str
    title: str = ""
    created: int = 0
    updated: int = 0
    system: str = ""
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    selected: str | None = None
    """The message whose path to the root is shown."""
    messages: tuple[SaidMessage, ...] = ()


class ConversationFile(msgspec.Struct, frozen=True):
    format: str
    version: int
    conversations: tuple[SavedConversation, ...]


def saved(
    messages: Sequence[Message], system: str, settings: dict[str, Any], model: str
) -> SavedConversation:
    """A chain of ``messages``, which have text or OpenAI's parts, some ``calls``, and no system
    message."""
    now = int(time.time() * 1000)
    kept: list[SaidMessage] = []
    for i, message in enumerate(messages):
        text, attachments = _taken_apart(message["content"])
        is_answer = message["role"] == "assistant"
        kept.append(
            SaidMessage(
                id=str(i),
                role="assistant" if is_answer else "user",
                content=text,
                parent=str(i - 1) if i else None,
                time=now,
                model=model if is_answer else None,
                calls=message.get("calls", ()),
                attachments=attachments,
            )
        )
    title = kept[0].content[:60] if kept else ""
    selected = kept[-1].id if kept else None
    return SavedConversation(
        str(uuid.uuid4()), title, now, now, system, settings, selected, tuple(kept)
    )


def write_conversation(path: Path, conversation: SavedConversation) -> None:
    """Readable by its owner alone. Raises OSError."""
    data = msgspec.json.encode(ConversationFile(FORMAT, VERSION, (conversation,)))
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as stream:
        stream.write(msgspec.json.format(data, indent=1) + b"\n")


def read_conversation(path: Path) -> tuple[SavedConversation, list[Message], int]:
    """The first conversation of ``path``, its selected branch, and how many messages are of other
    branches. A message that called tools has ``calls``, which no model is sent.
    Raises RequestError and OSError."""
    with path.open("rb") as stream:
        data = stream.read(MAX_BYTES + 1)
    try:
        if len(data) > MAX_BYTES:
            raise RequestError(f"{path} has more than {MAX_BYTES} bytes")
        found = msgspec.json.decode(data, type=ConversationFile)
    except msgspec.MsgspecError as error:
        raise RequestError(f"{path} is no file of conversations: {error}") from None
    if (found.format, found.version) != (FORMAT, VERSION) or not found.conversations:
        raise RequestError(
            f"{path} is {found.format!r} of version {found.version} with "
            f"{len(found.conversations)} conversations: {FORMAT!r} of version {VERSION} is read"
        )
    conversation = found.conversations[0]
    branch = _branch(conversation, path)
    n_others = len(conversation.messages) - len(branch)
    return conversation, [_put_together(message) for message in branch], n_others


def _branch(conversation: SavedConversation, path: Path) -> list[SaidMessage]:
    by_id = {message.id: message for message in conversation.messages}
    at, branch = conversation.selected, list[SaidMessage]()
    while at is not None:
        if at not in by_id or len(branch) == len(by_id):
            raise RequestError(f"{path}: the message {at[:40]!r} has no way to the first one")
        branch.append(by_id[at])
        at = by_id[at].parent
    return branch[::-1]


def _taken_apart(content: str | list[Message]) -> tuple[str, tuple[Attachment, ...]]:
    if isinstance(content, str):
        return content, ()
    texts = [part["text"] for part in content if part["type"] == "text"]
    images = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    kept = (Attachment(f"image-{i}", "image/any", data=url) for i, url in enumerate(images))
    return "\n".join(texts), tuple(kept)


def _put_together(said: SaidMessage) -> Message:
    texts = [f"{x.name}:\n{x.text}" for x in said.attachments if x.text is not None]
    images = [x.data for x in said.attachments if x.data is not None]
    text = "\n\n".join([*texts, said.content])
    calls = {"calls": said.calls} if said.calls else {}
    if not images:
        return {"role": said.role, "content": text, **calls}
    parts: list[Message] = [{"type": "image_url", "image_url": {"url": url}} for url in images]
    return {"role": said.role, "content": [*parts, {"type": "text", "text": text}], **calls}
