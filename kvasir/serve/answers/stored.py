"""Lists of what is stored of chat completions."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

import msgspec

from kvasir.serve.answers.openai import CallAnswer, ChatAnswer


class ChatList(TypedDict):
    object: Literal["list"]
    data: list[ChatAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


class StoredText(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class ImageUrl(TypedDict):
    url: str


class StoredImage(msgspec.Struct, tag_field="type", tag="image_url"):
    image_url: ImageUrl


class StoredMessage(TypedDict):
    id: str
    role: str
    content: str
    content_parts: list[StoredText | StoredImage] | None
    """Of a message with images."""
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[CallAnswer]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


class MessageList(TypedDict):
    object: Literal["list"]
    data: list[StoredMessage]
    first_id: str | None
    last_id: str | None
    has_more: bool
