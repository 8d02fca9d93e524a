"""What a conversation in the terminal remembers, and what can be done with it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from kvasir.cli.images import Message, spoken
from kvasir.cli.speaking import Speaker
from kvasir.cli.terminal import for_stream, show
from kvasir.core.errors import KvasirError, RequestError
from kvasir.validation.sampling import SamplingParams

MAX_FILE = 1 << 20
"""Bytes of a text file that goes with a message."""


class Dialogue:
    """Messages so far, and how the next one is answered."""

    def __init__(
        self, speaker: Speaker, params: SamplingParams, console: Console, images: Sequence[Path]
    ) -> None:
        """``images`` go with the first message."""
        self.speaker = speaker
        self.params = params
        self.console = console
        self.system = ""
        self.start: tuple[Message, ...] = ()
        """Messages that every conversation begins with."""
        self.said: list[Message] = []
        """Without a system message."""
        self.images = list(images)
        """Of the next message."""
        self.files: list[str] = []
        """Texts of the next message."""
        self.seconds = 0.0
        """Of the newest answer."""
        self.first_seconds: float | None = None
        """Until its first piece."""

    @property
    def messages(self) -> list[Message]:
        """As a model is asked: calls of a conversation that was loaded stay here, as nothing of it
        says what tools answered."""
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        said = ({"role": x["role"], "content": x["content"]} for x in self.said)
        return [*system, *said]

    def reset(self) -> None:
        self.said = list(self.start)

    def ask(self, text: str) -> None:
        """A message of the user, and its answer. One that fails is forgotten."""
        images, self.images = self.images, []
        files, self.files = self.files, []
        before = list(self.said)
        try:
            self.said.append(spoken("\n\n".join([*files, text]), images))
        except KvasirError as error:
            self.tell_error(error)
            return
        if not self.answer():
            self.said = before

    def answer(self) -> bool:
        """To the newest message; whether there is one. An interrupted one is kept."""
        pieces: list[str] = []
        try:
            self._say(pieces)
        except KeyboardInterrupt:
            self.tell("(stopped)")
        except KvasirError as error:
            self.tell_error(error)
            return False
        self.said.append({"role": "assistant", "content": "".join(pieces)})
        return True

    def undo(self) -> Message | None:
        """Forgets the newest message of the user and what came after it; the message."""
        last = len(self.said) - 1
        while last >= len(self.start) and self.said[last]["role"] != "user":
            last -= 1
        if last < len(self.start):
            return None
        undone = self.said[last]
        del self.said[last:]
        return undone

    def attach(self, path: Path) -> None:
        """The text of ``path`` goes with the next message. Raises RequestError, OSError."""
        with path.expanduser().open("rb") as stream:
            data = stream.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise RequestError(f"{path} has more than {MAX_FILE} bytes: send a part of it")
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise RequestError(f"{path} is no text: /image sends images") from None
        self.files.append(f"{path.name}:\n{text}")

    def settings(self) -> dict[str, Any]:
        """Sampling fields that differ from their defaults."""
        fields = msgspec.structs.fields(SamplingParams)
        found = {field.name: getattr(self.params, field.name) for field in fields}
        plain = SamplingParams(max_tokens=None)
        return {name: x for name, x in found.items() if x != getattr(plain, name)}

    def tell(self, text: str) -> None:
        """A line of the program's own."""
        self.console.print(Text(self.clean(text), "dim"), soft_wrap=True)

    def tell_error(self, error: KvasirError) -> None:
        self.console.print(Text(self.clean(error.message), "red"))

    def clean(self, text: str) -> str:
        return for_stream(text, self.console.file)

    def _say(self, pieces: list[str]) -> None:
        """Prints the answer as it comes; ``pieces`` keeps what was said before an interrupt."""
        began, self.first_seconds = time.perf_counter(), None
        try:
            for piece in self.speaker.chat(self.messages, self.params):
                if self.first_seconds is None:
                    self.first_seconds = time.perf_counter() - began
                pieces.append(piece)
                show(piece, self.console.file)
        finally:
            self.seconds = time.perf_counter() - began
        self.console.print()
