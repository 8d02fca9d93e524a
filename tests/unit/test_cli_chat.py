"""Conversations in the terminal and over HTTP."""

from __future__ import annotations

import http.server
import io
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest
from rich.console import Console

from kvasir.cli.chat import Conversation
from kvasir.cli.main import run_command
from kvasir.cli.remote import Message, RemoteModel
from kvasir.core.errors import KvasirError
from kvasir.validation.sampling import SamplingParams

PARAMS = SamplingParams(temperature=0.0, max_tokens=None)


class Parrot:
    """Says back how many messages it saw; fails on "boom", is interrupted on "stop"."""

    name = "parrot"

    def chat(self, messages: Sequence[Message], params: SamplingParams) -> Iterator[str]:
        yield f"{len(messages)} "
        if messages[-1]["content"] == "boom":
            raise KvasirError("no room")
        if messages[-1]["content"] == "stop":
            raise KeyboardInterrupt
        yield "seen"

    def close(self) -> None: ...


def conversation(system: str | None = None) -> tuple[Conversation, io.StringIO]:
    screen = io.StringIO()
    return Conversation(Parrot(), PARAMS, system, Console(file=screen, width=80)), screen


def test_a_conversation_remembers() -> None:
    talk, screen = conversation("be brief")
    talk.take("hello")
    talk.take("again")
    assert [message["role"] for message in talk.messages] == [
        "system", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert screen.getvalue().splitlines() == ["2 seen", "4 seen"]


def test_reset_keeps_the_system_message() -> None:
    talk, _ = conversation("be brief")
    talk.take("hello")
    talk.take("/reset")
    assert talk.messages == [{"role": "system", "content": "be brief"}]


def test_a_failed_answer_is_told_and_forgotten() -> None:
    talk, screen = conversation()
    talk.take("boom")
    assert talk.messages == []
    assert "no room" in screen.getvalue()


def test_an_interrupted_answer_is_kept() -> None:
    talk, _ = conversation()
    talk.take("stop")
    assert talk.messages[-1] == {"role": "assistant", "content": "1 "}


def test_an_unknown_command_shows_help() -> None:
    talk, screen = conversation()
    talk.take("/what")
    assert talk.messages == []
    assert "/reset" in screen.getvalue()


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


class Attacker(Parrot):
    """A model that writes the clipboard and clears the screen, its escapes split over pieces."""

    name = "m\x1b[2J[red]"

    def chat(self, messages: Sequence[Message], params: SamplingParams) -> Iterator[str]:
        if messages[-1]["content"] == "boom":
            raise KvasirError("template \x1b]0;title\x07 [/bold]")
        yield from ("a\x1b", "]52;c;", "aGk=\x07", ":smile:\rb\n\tc\x9b", "2J")


def test_a_terminal_is_not_spoken_to_by_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\nboom\n"))
    console = Console(file=screen, width=80, force_terminal=False)
    Conversation(Attacker(), PARAMS, None, console).run()
    said = screen.getvalue()
    assert "a␛]52;c;aGk=␇:smile:␍b\n\tc<U+009B>2J\n" in said
    assert "m␛[2J[red]" in said
    assert "template ␛]0;title␇ [/bold]" in said
    assert not set(said) & {"\x1b", "\x07", "\r", "\x9b"}


@pytest.mark.parametrize(
    ("screen", "shown"),
    [
        (Screen(), "a␛]52;c;aGk=␇:smile:␍b\n\tc<U+009B>2J\n"),
        (io.StringIO(), "a\x1b]52;c;aGk=\x07:smile:\rb\n\tc\x9b2J\n"),
    ],
    ids=["terminal", "pipe"],
)
def test_run_shows_controls_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, screen: io.StringIO, shown: str
) -> None:
    monkeypatch.setattr("kvasir.cli.start_local.start_local", lambda options: Attacker())
    monkeypatch.setattr("sys.stdout", screen)
    assert run_command(["run", "hi"]) == 0
    assert screen.getvalue() == shown


def test_an_error_of_the_command_speaks_to_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", screen := Screen())
    assert run_command(["inspect", "model", "/none/\x1b[2J"]) != 0
    assert "␛[2J" in screen.getvalue() and "\x1b" not in screen.getvalue()


def test_a_file_gets_what_the_model_wrote() -> None:
    screen = io.StringIO()
    Conversation(Attacker(), PARAMS, None, Console(file=screen, width=80)).take("hi")
    assert screen.getvalue() == "a\x1b]52;c;aGk=\x07:smile:\rb\n\tc\x9b2J\n"


class Handler(http.server.BaseHTTPRequestHandler):
    """Enough of OpenAI's API for one chat."""

    seen: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        self._send(200, json.dumps({"data": [{"id": "tiny"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append(body)
        if body["messages"][-1]["content"] == "too long":
            self._send(400, json.dumps({"error": {"message": "shorten it"}}))
            return
        chunks = [{"choices": [{"delta": {"content": text}}]} for text in ("Par", "is", None)]
        if body["messages"][-1]["content"] == "break":
            chunks = [{"error": {"message": "engine lost"}}]
        events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        self._send(200, ": ping\n\n" + "".join(events) + "data: [DONE]\n\n")

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    Handler.seen.clear()
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_a_server_is_asked_as_its_api_wants(server: str, suffix: str) -> None:
    model = RemoteModel(server + suffix)
    answer = model.chat([{"role": "user", "content": "capital?"}], PARAMS)
    assert "".join(answer) == "Paris"
    assert model.name == "tiny"
    assert Handler.seen[0]["temperature"] == 0.0
    assert "max_tokens" not in Handler.seen[0]


@pytest.mark.parametrize(("text", "says"), [("too long", "shorten it"), ("break", "engine lost")])
def test_an_error_of_the_server_keeps_its_words(server: str, text: str, says: str) -> None:
    model = RemoteModel(server, model="tiny")
    with pytest.raises(KvasirError, match=says):
        list(model.chat([{"role": "user", "content": text}], PARAMS))
