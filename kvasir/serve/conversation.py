"""From messages to the ids of a prompt: the newest of them that fit, with the tokens of their
images."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from kvasir.core.errors import RequestError
from kvasir.serve.asked import Asked
from kvasir.serve.protocol.thinking import known_variables
from kvasir.serve.resolved import Ids
from kvasir.serve.seen import Seen, SeenPrompt
from kvasir.serve.text import INLINE_BYTES, MESSAGE_BYTES, Rendering, TextModel, is_short
from kvasir.tokenizer.messages import ChatMessage
from kvasir.toolcalls.detect import Detected
from kvasir.toolcalls.history import told
from kvasir.validation.params import check_room

BRIEF = INLINE_BYTES // MESSAGE_BYTES
"""Messages of a conversation that may be short."""

INSTRUCTIONS = ("system", "developer")
"""Roles of messages that are not turns."""


async def chat_prompt(
    messages: Sequence[ChatMessage],
    text: TextModel,
    limit: int,
    rendering: Rendering,
    *,
    tool_format: str,
    name: str = "messages",
) -> Ids:
    """Ids of the conversation. Raises RequestError (400) without a template or above ``limit``
    tokens."""
    calls = rendering.tools or any(message.calls for message in messages)
    found = await text.calls(tool_format) if calls else None

    def written() -> tuple[list[dict[str, object]], Rendering]:
        text.check_bytes(sum(message.n_bytes for message in messages), limit, name)
        return _written(messages, rendering, found)

    is_brief = len(messages) <= BRIEF and is_short([x.said() for x in messages], rendering)
    if is_brief:
        return await text.render(*written())
    return await text.render(*await asyncio.to_thread(written))


def _written(
    messages: Sequence[ChatMessage], rendering: Rendering, found: Detected | None
) -> tuple[list[dict[str, object]], Rendering]:
    """As the template reads them. Raises RequestError (400)."""
    if found is None:
        return [message.said() for message in messages], rendering
    said = [message.said(found.history) for message in told(messages, rendering.tools, found)]
    return said, rendering.showing_tools(found.history.shown_as or "tools")


@dataclass(frozen=True, slots=True)
class ConversationReader:
    """The messages of a request."""

    asked: Asked
    text: TextModel
    seen: Seen
    tool_format: str
    limit: int
    """Tokens that a prompt may have before it is truncated."""
    room: int
    """Tokens of the whole context."""

    async def read(self) -> SeenPrompt:
        """Of its messages, or of the newest ones that fit where that is wanted. Raises RequestError
        (400)."""
        most, asked = self.room - len(self.asked.before), self.asked
        oldest = _turns(asked.messages) if asked.drops_turns else []
        found, too_few, enough = await self._rendered(0, most), 0, len(oldest)
        if isinstance(found, SeenPrompt) or not oldest:
            return _told(found)
        found = await self._rendered(enough, most)
        while isinstance(found, SeenPrompt) and enough - too_few > 1:
            middle = (too_few + enough) // 2
            other = await self._rendered(middle, most)
            if isinstance(other, SeenPrompt):
                found, enough = other, middle
            else:
                too_few = middle
        return _told(found)

    async def _rendered(self, n_dropped: int, most: int) -> SeenPrompt | RequestError:
        """Without the ``n_dropped`` oldest turns, or why there are none: where turns may be dropped
        they leave room for the answer in ``most``."""
        asked = self.asked
        dropped = frozenset(_turns(asked.messages)[:n_dropped])
        messages = [message for i, message in enumerate(asked.messages) if i not in dropped]
        try:
            ids = await chat_prompt(
                messages,
                self.text,
                self.limit,
                Rendering(
                    add_generation_prompt=asked.add_generation_prompt,
                    continues_last=asked.continues_last,
                    add_special=asked.add_special,
                    variables=known_variables(asked.variables, self.text.template.all_text)[0],
                    tools=() if asked.tools is None else tuple(asked.tools.shown()),
                ),
                tool_format=self.tool_format,
                name=asked.names.prompt,
            )
            found = await self.seen.expand(ids, messages, len(asked.before))
            if asked.drops_turns:
                check_room(len(found.ids), asked.params.max_tokens or 1, most, asked.names)
        except RequestError as error:
            if not asked.drops_turns or error.code != "context_length_exceeded":
                raise
            return error
        return found


def _turns(messages: Sequence[ChatMessage]) -> list[int]:
    """Which messages may be left out: not the instructions, and not the last."""
    return [i for i, message in enumerate(messages[:-1]) if message.role not in INSTRUCTIONS]


def _told(found: SeenPrompt | RequestError) -> SeenPrompt:
    if isinstance(found, RequestError):
        raise found
    return found
