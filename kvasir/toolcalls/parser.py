"""From the text of an answer, in pieces of any size, to its reasoning, content and calls.

However the text is cut, the message is the same; every character of it goes into one field or
belongs to a marker.
"""

from __future__ import annotations

import re

from kvasir.toolcalls.arguments import ArgumentReader, overlap, reader_of
from kvasir.toolcalls.format import FIELDS, Part, Reasoning, ToolFormat, literal_of
from kvasir.toolcalls.literals import SPACES
from kvasir.toolcalls.pieces import (
    CallArguments,
    CallBegin,
    Message,
    Piece,
    Said,
    Thought,
    message_of,
)
from kvasir.toolcalls.reading import Reading

_WORD = re.compile(r"[\w.-]+")


class MessageParser:
    """Feed text until the end, then ``finish``."""

    def __init__(self, reading: Reading, choice: int = 0) -> None:
        self._reading = reading
        self._choice = choice
        self._buffer = ""
        self._pieces: list[Piece] = []
        self._state = self._thinking if reading.is_open else self._beginning
        self._drops_space = reading.is_open
        """Whether white space that comes next is part of a marker."""
        self._parts: tuple[Part, ...] = ()
        self._at = 0
        self._raw = ""
        """Of a call that has not named its tool."""
        self._arguments: ArgumentReader | None = None
        self._n_calls = 0
        self._name = ""
        self._may_think = not reading.is_open
        self._markers = _markers_of(reading)

    def feed(self, text: str) -> list[Piece]:
        self._buffer += text
        while self._buffer and self._state():
            pass
        return self._taken()

    def finish(self, *, is_cut: bool = True) -> list[Piece]:
        """What was held back; ``is_cut``: the answer was ended, and not by the model itself."""
        held, self._buffer = self._raw + self._buffer, ""
        self._raw = ""
        if self._state == self._thinking:
            self._think(held)
        elif not self._is_marker(held, is_cut):
            self._say(held)
        elif self._state == self._answer:
            self._show(held)
        return self._taken()

    def _is_marker(self, held: str, is_cut: bool) -> bool:
        """Whether what was held back at the end is a marker that was cut: behind the one that opens
        a call nothing but a call comes, and where there must be one nothing comes before. What
        only looks like the begin of a call, and is all that the model wrote, is text."""
        if self._state in (self._between, self._closing):
            return True
        if self._state == self._call:
            return is_cut or bool(self._name)
        if self._reading.must_call and self._state in (self._beginning, self._text):
            return True
        return self._drops_space and not held.strip(SPACES)

    @property
    def n_calls(self) -> int:
        """That have begun."""
        return self._n_calls

    @property
    def is_thinking(self) -> bool:
        """Whether what comes next is reasoning, or its end."""
        return self._state == self._thinking

    @property
    def is_calling(self) -> bool:
        """Whether a call has begun that has not ended."""
        return self._state == self._call and bool(self._name)

    @property
    def is_text(self) -> bool:
        """Whether what comes next is content, or the begin of a call."""
        return self._state in (self._text, self._rest)

    def _taken(self) -> list[Piece]:
        found, self._pieces = self._pieces, []
        return found

    def _say(self, text: str) -> None:
        if text:
            self._pieces.append(Said(self._reading.spelled(text)))

    def _think(self, text: str) -> None:
        if text and self._reading.thoughts != "content":
            self._pieces.append(Thought(self._reading.spelled(text)))
        self._show(text)

    def _show(self, text: str) -> None:
        """What stands in or around reasoning, where the content has all that the model wrote."""
        if self._reading.thoughts != "apart":
            self._say(text)

    def _say_arguments(self, text: str) -> None:
        if text:
            said = self._reading.spelled(text)
            self._pieces.append(CallArguments(self._n_calls - 1, said))

    def _beginning(self) -> bool:
        """Of the answer, or of one of its parts: reasoning, a call or text?"""
        thoughts, form = self._reading.reasoning, self._reading.format
        rest = self._buffer.lstrip(SPACES)
        space = self._buffer[: len(self._buffer) - len(rest)]
        if thoughts is not None and self._may_think:
            if rest.startswith(thoughts.begin):
                self._begin_thought(len(space) + len(thoughts.begin))
                return True
            if thoughts.begin.startswith(rest):
                return False
        for parts in () if form is None else form.beginnings:
            known = literal_of(parts)
            if rest.startswith(known):
                self._buffer = rest
                self._begin_call(parts, space)
                return True
            if known.startswith(rest):
                return False
        self._state = self._text
        return True

    def _begin_thought(self, n_before: int) -> None:
        self._show(self._buffer[:n_before])
        self._buffer = self._buffer[n_before:]
        self._drops_space = True
        self._state = self._thinking

    def _thinking(self) -> bool:
        if self._drops_space:
            self._drop_space()
            if not self._buffer:
                return False
            self._drops_space = False
        end = "" if self._reading.reasoning is None else self._reading.reasoning.end
        at = self._buffer.find(end)
        if at < 0:
            self._think(self._cut(end))
            return False
        said = self._buffer[:at].rstrip(SPACES)
        self._think(said)
        self._show(self._buffer[len(said) : at + len(end)])
        self._buffer = self._buffer[at + len(end) :]
        self._drops_space = True
        self._state = self._answer
        return True

    def _answer(self) -> bool:
        """What follows reasoning."""
        self._drop_space()
        if not self._buffer:
            return False
        thoughts = self._reading.reasoning
        self._drops_space = False
        self._may_think = thoughts is not None and bool(thoughts.content)
        self._state = self._beginning
        return True

    def _drop_space(self) -> None:
        """Of the begin of the buffer, beside a marker of reasoning."""
        rest = self._buffer.lstrip(SPACES)
        self._show(self._buffer[: len(self._buffer) - len(rest)])
        self._buffer = rest

    def _cut(self, *markers: str) -> str:
        """Takes from the buffer what certainly stands before ``markers`` and the white space in
        front of them."""
        n = len(self._buffer) - max((overlap(self._buffer, one) for one in markers), default=0)
        n = len(self._buffer[:n].rstrip(SPACES))
        said, self._buffer = self._buffer[:n], self._buffer[n:]
        return said

    def _text(self) -> bool:
        if not self._markers:
            self._say(self._buffer)
            self._buffer = ""
            return False
        found = [(at, -len(m), m) for m in self._markers if (at := self._buffer.find(m)) >= 0]
        at, _, marker = min(found, default=(len(self._buffer), 0, ""))
        held = max(overlap(self._buffer, one) for one in self._markers)
        if not found or len(self._buffer) - held < at:
            self._say(self._cut(*self._markers))
            return False
        form, thoughts = self._reading.format, self._reading.reasoning
        if form is not None and marker == form.trigger:
            content = self._buffer[:at].rstrip(SPACES)
            self._say(content)
            before, self._buffer = self._buffer[len(content) : at], self._buffer[at:]
            self._begin_call(form.first, before)
        elif thoughts is not None:
            self._say(self._buffer[:at])
            self._buffer = self._buffer[at:]
            self._pass_marker(thoughts, marker)
        return True

    def _pass_marker(self, thoughts: Reasoning, marker: str) -> None:
        """Of a part of the answer, with which the buffer begins."""
        if marker == thoughts.begin:
            self._begin_thought(len(marker))
            return
        self._buffer = self._buffer[len(marker) :]
        if marker in thoughts.ends:
            self._may_think = True
            self._state = self._beginning

    def _begin_call(self, parts: tuple[Part, ...], before: str) -> None:
        self._parts, self._at, self._raw = parts, 0, before
        self._name = ""
        self._state = self._call

    def _call(self) -> bool:
        """One part of a call."""
        part = self._parts[self._at]
        if part == "~":
            rest = self._buffer.lstrip(SPACES)
            self._use(len(self._buffer) - len(rest))
            return bool(rest) and self._done_part()
        if part == "$args":
            return self._read_arguments()
        if FIELDS.fullmatch(part):
            return self._word(part)
        if self._buffer.startswith(part):
            self._use(len(part))
            return self._done_part()
        if part.startswith(self._buffer):
            return False
        return self._broken()

    def _use(self, n: int) -> None:
        if not self._name:
            self._raw += self._buffer[:n]
        self._buffer = self._buffer[n:]

    def _done_part(self) -> bool:
        self._at += 1
        if self._at == len(self._parts):
            self._drops_space = True
            self._state = self._between
        return True

    def _word(self, part: Part) -> bool:
        found = _WORD.match(self._buffer)
        if found is not None and found.end() == len(self._buffer):
            return False
        if found is None:
            return self._broken()
        self._use(found.end())
        if part == "$name":
            self._name, self._raw = found[0], ""
            number, self._n_calls = self._n_calls, self._n_calls + 1
            call_id = self._reading.id_of(self._choice, number, self._name)
            self._pieces.append(CallBegin(number, call_id, self._name))
        return self._done_part()

    def _read_arguments(self) -> bool:
        if self._arguments is None:
            kinds = self._reading.kinds.get(self._name, {})
            self._arguments = reader_of(self._form().arguments, kinds)
        said, used = self._arguments.read(self._buffer)
        self._say_arguments(said)
        self._buffer = self._buffer[used:]
        if not self._arguments.is_done:
            return False
        self._arguments = None
        return self._done_part()

    def _form(self) -> ToolFormat:
        if self._reading.format is None:
            raise RuntimeError("an answer without tools has a call")
        return self._reading.format

    def _broken(self) -> bool:
        """The text is no call: what was held back and all that follows is content."""
        self._say(self._raw)
        self._raw = ""
        self._drops_space = False
        self._state = self._rest
        return True

    def _between(self) -> bool:
        """Another call, or the end of all."""
        self._buffer = self._buffer.lstrip(SPACES)
        form = self._form()
        for parts in (form.next, form.last):
            rest = parts[1:] if parts[:1] == ("~",) else parts
            if not rest:
                continue
            if self._stands(rest[0]):
                self._begin_call(rest, "")
                if parts == form.last:
                    self._state = self._closing
                return True
            if rest[0].startswith(self._buffer):
                return False
        self._state = self._rest
        return True

    def _stands(self, part: Part) -> bool:
        """Whether a call that begins with ``part`` comes next."""
        if part == "$name":
            return _WORD.match(self._buffer) is not None
        return self._buffer.startswith(part)

    def _closing(self) -> bool:
        self._buffer = self._buffer.lstrip(SPACES)
        while self._at < len(self._parts):
            part = self._parts[self._at]
            if part == "~":
                self._buffer = self._buffer.lstrip(SPACES)
            elif self._buffer.startswith(part):
                self._buffer = self._buffer[len(part) :]
            elif part.startswith(self._buffer):
                return False
            else:
                break
            self._at += 1
        self._drops_space = True
        self._state = self._rest
        return bool(self._buffer)

    def _rest(self) -> bool:
        if self._drops_space:
            self._buffer = self._buffer.lstrip(SPACES)
            self._drops_space = not self._buffer
        self._say(self._buffer)
        self._buffer = ""
        return False


def _markers_of(reading: Reading) -> tuple[str, ...]:
    """What ends content."""
    form, thoughts = reading.format, reading.reasoning
    calls = () if form is None or form.at_start else (form.trigger,)
    if thoughts is None or not thoughts.content:
        return calls
    return (*calls, thoughts.begin, *thoughts.dropped)


def read_message(reading: Reading, text: str, choice: int = 0) -> Message:
    """All of an answer at once."""
    parser = MessageParser(reading, choice)
    return message_of([*parser.feed(text), *parser.finish()])
