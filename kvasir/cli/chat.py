"""``kvasir chat``: a conversation in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from kvasir.cli.chat_commands import help_text, obey
from kvasir.cli.dialogue import Dialogue
from kvasir.cli.history import remembered
from kvasir.cli.images import Message, spoken, with_images
from kvasir.cli.options import take, with_options
from kvasir.cli.sampling import given, take_sampling, with_defaults, with_sampling
from kvasir.cli.speaking import Speaker
from kvasir.cli.startup import interruptible
from kvasir.config.options import EngineOptions
from kvasir.core.errors import RequestError
from kvasir.library.stored import Defaults
from kvasir.validation.sampling import SamplingParams

QUOTES = '"""'


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
    """Talk to MODEL: a file, a folder, or a name of the library or the hub; with --url the name of
    a model of that server."""
    spoken("", images)  # before a model is loaded
    said = given()
    params = take_sampling(values)
    if url:
        speaker, defaults = _remote(url, api_key, values), Defaults()
    else:
        speaker, defaults = _local(values)
    interruptible()
    params = with_defaults(params, defaults, said)
    start = [{"role": role, "content": text} for role, text in defaults.messages]
    console = Console(highlight=False)
    talk = Conversation(speaker, params, system or defaults.system, console, images, start)
    try:
        with remembered():
            talk.run()
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


def _local(values: dict[str, Any]) -> tuple[Speaker, Defaults]:
    from kvasir.cli.named import present
    from kvasir.cli.start_local import start_local

    options, defaults = present(take(EngineOptions, values))
    return start_local(options), defaults


class Conversation:
    """Reads, answers, remembers."""

    def __init__(
        self,
        speaker: Speaker,
        params: SamplingParams,
        system: str | None,
        console: Console,
        images: Sequence[Path] = (),
        start: Sequence[Message] = (),
    ) -> None:
        """``images`` go with the first message; ``start`` is said before it."""
        self.talk = Dialogue(speaker, params, console, images)
        self.talk.system = system or ""
        self.talk.start = tuple(start)
        self.talk.reset()

    @property
    def messages(self) -> list[Message]:
        """So far, the system message too."""
        return self.talk.messages

    def run(self) -> None:
        """Until the end of input."""
        talk, console = self.talk, self.talk.console
        name = Text(talk.clean(talk.speaker.name), "bold")
        console.print(name, "/help lists what there is, /exit (or Ctrl-D) leaves", style="dim")
        while True:
            try:
                line = self._read()
            except (EOFError, KeyboardInterrupt):
                console.print()
                return
            if line == "/exit":
                return
            if line:
                self.take(line)

    def take(self, line: str) -> None:
        """What the user typed: a command, or a message that is answered."""
        if line == "/help":
            self.talk.tell(help_text())
        elif line.startswith("/"):
            obey(self.talk, line)
        else:
            self.talk.ask(line.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n"))

    def _read(self) -> str:
        """A line, or several between two signs of quotation."""
        line = self.talk.console.input("[bold green]> [/bold green]").strip()
        if not line.startswith(QUOTES) or line.find(QUOTES, len(QUOTES)) > 0:
            return line
        lines = [line]
        while QUOTES not in lines[-1] or len(lines) == 1:
            lines.append(self.talk.console.input("[bold green]. [/bold green]"))
        return "\n".join(lines)
