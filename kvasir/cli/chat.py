"""``kvasir chat``: a conversation in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import click
from rich.console import Console
from rich.text import Text

from kvasir.cli.images import Message, spoken, with_images
from kvasir.cli.options import take, with_options
from kvasir.cli.sampling import take_sampling, with_sampling
from kvasir.cli.startup import interruptible
from kvasir.cli.terminal import for_stream, show
from kvasir.config.options import EngineOptions
from kvasir.core.errors import KvasirError, RequestError
from kvasir.validation.sampling import SamplingParams

HELP = (
    "/image FILE sends one with the next message, /reset forgets the conversation, /exit (or "
    "Ctrl-D) leaves, Ctrl-C stops an answer."
)
IMAGE_COMMAND = "/image "


class Speaker(Protocol):
    """A model, wherever it runs."""

    name: str

    def chat(self, messages: Sequence[Message], params: SamplingParams) -> Iterator[str]: ...

    def close(self) -> None: ...


@click.command()
@click.option("--url", help="Talk to a running server instead, e.g. http://127.0.0.1:8000.")
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Key of that server [OPENAI_API_KEY].")
@click.option("--system", help="System message.")
@with_images
@with_sampling(temperature=0.7)
@with_options(EngineOptions, skip=("seed",))
def chat(
    url: str | None,
    api_key: str | None,
    system: str | None,
    images: tuple[Path, ...],
    **values: Any,
) -> None:
    """Talk to MODEL: a file or folder, or with --url the name of a model of that server."""
    spoken("", images)  # before a model is loaded
    params = take_sampling(values)
    speaker = _remote(url, api_key, values) if url else _local(values)
    interruptible()
    try:
        Conversation(speaker, params, system, Console(highlight=False), images).run()
    finally:
        speaker.close()


def _remote(url: str, api_key: str | None, values: dict[str, Any]) -> Speaker:
    options = take(EngineOptions, values)
    changed = [
        k for k, v in vars(options).items() if k != "model" and v != getattr(EngineOptions, k)
    ]
    if changed:
        names = ", ".join("--" + name.replace("_", "-") for name in changed)
        raise RequestError(f"{names}: the server of --url decides that")
    from kvasir.cli.remote import RemoteModel

    return RemoteModel(url, options.model, api_key)


def _local(values: dict[str, Any]) -> Speaker:
    options = take(EngineOptions, values)
    from kvasir.cli.start_local import start_local

    return start_local(options)


class Conversation:
    """Reads, answers, remembers."""

    def __init__(
        self,
        speaker: Speaker,
        params: SamplingParams,
        system: str | None,
        console: Console,
        images: Sequence[Path] = (),
    ) -> None:
        """``images`` go with the first message."""
        self._speaker = speaker
        self._params = params
        self._console = console
        self._start: list[Message] = [{"role": "system", "content": system}] if system else []
        self.messages = list(self._start)
        self._images = list(images)
        """Of the next message."""

    def run(self) -> None:
        """Until the end of input."""
        self._console.print(Text(self._clean(self._speaker.name), "bold"), HELP, style="dim")
        while True:
            try:
                line = self._console.input("[bold green]> [/bold green]").strip()
            except (EOFError, KeyboardInterrupt):
                self._console.print()
                return
            if line == "/exit":
                return
            if line:
                self.take(line)

    def take(self, line: str) -> None:
        """One line of the user: a command, or a message that is answered."""
        if line == "/reset":
            self.messages = list(self._start)
        elif line.startswith(IMAGE_COMMAND):
            self._images.append(Path(line.removeprefix(IMAGE_COMMAND).strip()))
        elif line.startswith("/"):
            self._console.print(HELP, style="dim")
        else:
            self._answer(line)

    def _answer(self, line: str) -> None:
        images, self._images = self._images, []
        n_before = len(self.messages)
        pieces: list[str] = []
        try:
            self.messages.append(spoken(line, images))
            self._say(pieces)
        except KeyboardInterrupt:
            self._console.print(" [dim](stopped)[/dim]")
        except KvasirError as error:
            self._console.print(Text(self._clean(error.message), "red"))
            del self.messages[n_before:]
            return
        self.messages.append({"role": "assistant", "content": "".join(pieces)})

    def _say(self, pieces: list[str]) -> None:
        """Prints the answer as it comes; ``pieces`` keeps what was said before an interrupt."""
        for piece in self._speaker.chat(self.messages, self._params):
            pieces.append(piece)
            show(piece, self._console.file)
        self._console.print()

    def _clean(self, text: str) -> str:
        return for_stream(text, self._console.file)
