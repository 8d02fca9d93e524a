"""What a line of ``kvasir chat`` that begins with / does: one function and one entry each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from kvasir.cli.dialogue import Dialogue
from kvasir.cli.sampling import DRAWING
from kvasir.cli.transcript import read_conversation, saved, write_conversation
from kvasir.core.errors import KvasirError, RequestError
from kvasir.validation.sampling import SamplingParams

Act = Callable[[Dialogue, str], None]
KINDS: dict[str, Callable[[str], Any]] = {
    **{field.name: field.kind for field in DRAWING if field.kind in (int, float)},
    "max_tokens": int,
    "seed": int,
    "stop": lambda text: [text.replace("\\n", "\n")],
}
"""Of the fields that /set takes."""


def _image(talk: Dialogue, said: str) -> None:
    talk.images.append(Path(said).expanduser())


def _file(talk: Dialogue, said: str) -> None:
    talk.attach(Path(said))
    talk.tell("goes with the next message")


def _reset(talk: Dialogue, _: str) -> None:
    talk.reset()


def _undo(talk: Dialogue, _: str) -> None:
    if talk.undo() is None:
        talk.tell("there is nothing to undo")


def _retry(talk: Dialogue, _: str) -> None:
    before = list(talk.said)
    undone = talk.undo()
    if undone is None:
        talk.tell("there is nothing to answer again")
        return
    talk.said.append(undone)
    if not talk.answer():
        talk.said = before


def _edit(talk: Dialogue, said: str) -> None:
    before = list(talk.said)
    undone = talk.undo()
    if undone is None:
        talk.tell("there is no message to edit")
        return
    content = undone["content"]
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    old = "\n".join(part["text"] for part in parts if part["type"] == "text")
    text = said or (click.edit(old) or "").strip()
    if not text:
        talk.said = before
        return
    others = [part for part in parts if part["type"] != "text"]
    new = [*others, {"type": "text", "text": text}] if others else text
    talk.said.append({"role": "user", "content": new})
    if not talk.answer():
        talk.said = before


def _system(talk: Dialogue, said: str) -> None:
    if said:
        talk.system = said
    else:
        talk.tell(talk.system or "there is no system message: /system TEXT sets one")


def _set(talk: Dialogue, said: str) -> None:
    name, _, value = said.partition(" ")
    name = name.replace("-", "_")
    if name not in KINDS:
        raise RequestError(f"/set takes {', '.join(KINDS)}")
    try:
        read = KINDS[name](value.strip()) if value.strip() else _default(name)
    except ValueError:
        raise RequestError(f"{name} is no {value.strip()[:40]!r}: it needs a number") from None
    talk.params = msgspec.structs.replace(talk.params, **{name: read})


def _default(name: str) -> Any:
    return getattr(SamplingParams(max_tokens=None), name)


def _show(talk: Dialogue, _: str) -> None:
    lines = [f"model {talk.speaker.name}, {len(talk.said)} messages"]
    lines += [f"{name} {value}" for name, value in talk.settings().items()]
    talk.tell("\n".join([*lines, f"system {talk.system}"] if talk.system else lines))


def _save(talk: Dialogue, said: str) -> None:
    path = Path(said).expanduser()
    settings = talk.settings()
    write_conversation(path, saved(talk.said, talk.system, settings, talk.speaker.name))
    talk.tell(f"{len(talk.said)} messages are in {path}")


def _load(talk: Dialogue, said: str) -> None:
    path = Path(said).expanduser()
    conversation, messages, n_others = read_conversation(path)
    known = {name: x for name, x in conversation.settings.items() if _is_value(name, x)}
    params = msgspec.structs.replace(talk.params, **known)
    talk.said, talk.system, talk.params = messages, conversation.system, params
    left = [name for name in conversation.settings if name not in known]
    rest = f"; {n_others} of other branches stay there" if n_others else ""
    rest += f"; not taken: {', '.join(left)}" if left else ""
    talk.tell(f"{len(messages)} messages of {path}{rest}")


def _is_value(name: str, value: Any) -> bool:
    """Whether /set could have set it."""
    if name == "stop":
        return isinstance(value, list) and all(isinstance(text, str) for text in value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return name in KINDS and is_number and (KINDS[name] is float or isinstance(value, int))


def _tokens(talk: Dialogue, _: str) -> None:
    talk.tell(f"{talk.speaker.count(talk.messages)} tokens so far")


def _stats(talk: Dialogue, _: str) -> None:
    last, first = talk.speaker.last, talk.first_seconds
    if first is None:
        talk.tell("nothing was answered yet")
        return
    rest = talk.seconds - first
    rate = f", {(last.n_tokens - 1) / rest:.1f} tok/s" if last.n_tokens > 1 and rest > 0 else ""
    talk.tell(
        f"first token after {first * 1e3:.0f} ms, {last.n_tokens} tokens in {talk.seconds:.2f} s"
        f"{rate}; prompt {last.n_prompt} tokens, {last.n_cached} of them cached"
    )


def _why(talk: Dialogue, _: str) -> None:
    from kvasir.cli.why_text import why_text

    talk.tell(why_text(talk.speaker.why()).rstrip("\n"))


class ChatCommand(msgspec.Struct, frozen=True):
    act: Act
    help: str
    argument: str = ""
    is_optional: bool = True
    """Whether the argument may be left out."""


CHAT_COMMANDS = {
    "/retry": ChatCommand(_retry, "answers the last message again"),
    "/edit": ChatCommand(_edit, "changes it, in an editor without TEXT", "TEXT"),
    "/undo": ChatCommand(_undo, "forgets it and its answer"),
    "/reset": ChatCommand(_reset, "forgets the conversation"),
    "/system": ChatCommand(_system, "shows or sets the system message", "TEXT"),
    "/set": ChatCommand(_set, "sets a sampling field", "NAME VALUE", False),
    "/show": ChatCommand(_show, "shows model and settings"),
    "/file": ChatCommand(_file, "sends a text file with the next message", "PATH", False),
    "/image": ChatCommand(_image, "sends an image with the next message", "PATH", False),
    "/save": ChatCommand(_save, "writes the conversation", "PATH", False),
    "/load": ChatCommand(_load, "goes on with one", "PATH", False),
    "/tokens": ChatCommand(_tokens, "counts the conversation"),
    "/stats": ChatCommand(_stats, "how fast the last answer was"),
    "/why": ChatCommand(_why, "what made it slow"),
}


def help_text() -> str:
    """A line for each."""
    heads = [f"{name} {x.argument}".strip() for name, x in CHAT_COMMANDS.items()]
    width = max(map(len, heads))
    rows = (
        f"{head:<{width}}  {x.help}" for head, x in zip(heads, CHAT_COMMANDS.values(), strict=True)
    )
    keys = f"{chr(34) * 3} begins and ends several lines, Ctrl-C stops an answer, /exit leaves"
    return "\n".join([*rows, keys])


def obey(talk: Dialogue, line: str) -> None:
    """``line`` begins with /. What fails is told and changes nothing."""
    name, _, said = line.partition(" ")
    command = CHAT_COMMANDS.get(name)
    if command is None or (not command.is_optional and not said.strip()):
        talk.tell(help_text())
        return
    try:
        command.act(talk, said.strip())
    except KvasirError as error:
        talk.tell_error(error)
    except OSError as error:
        talk.tell(f"{error.filename or said.strip()}: {error.strerror or error}")
