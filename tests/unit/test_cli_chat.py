"""Conversations in the terminal and over HTTP."""

from __future__ import annotations

import http.server
import io
import json
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.console import Console

from kvasir.cli.chat import Conversation
from kvasir.cli.history import history_file, make_private
from kvasir.cli.main import run_command
from kvasir.cli.remote import Message, RemoteModel
from kvasir.cli.speaking import LastAnswer
from kvasir.cli.terminal import show
from kvasir.cli.top_text import ServerLook, as_text
from kvasir.cli.waiting import waiting
from kvasir.cli.why_text import why_text
from kvasir.core.errors import KvasirError
from kvasir.serve.logs import JsonFormatter, LineFormatter
from kvasir.validation.sampling import SamplingParams

PARAMS = SamplingParams(temperature=0.0, max_tokens=None)


class Parrot:
    """Says back how many messages it saw; fails on "boom", is interrupted on "stop"."""

    name = "parrot"

    def __init__(self) -> None:
        self.last = LastAnswer()

    def chat(self, messages: Sequence[Message], params: SamplingParams) -> Iterator[str]:
        yield f"{len(messages)} "
        if messages[-1]["content"] == "boom":
            raise KvasirError("no room")
        if messages[-1]["content"] == "stop":
            raise KeyboardInterrupt
        yield "seen"

    def count(self, messages: Sequence[Message]) -> int:
        return 7 * len(messages)

    def why(self) -> dict[str, Any]:
        raise KvasirError("nobody knows")

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


def answered() -> tuple[Conversation, io.StringIO]:
    talk, screen = conversation("be brief")
    talk.take("hello")
    talk.take("again")
    screen.truncate(0)
    screen.seek(0)
    return talk, screen


def said(talk: Conversation) -> list[object]:
    return [message["content"] for message in talk.messages]


def test_the_last_message_may_be_undone_answered_again_and_changed() -> None:
    talk, screen = answered()
    talk.take("/retry")
    assert said(talk) == ["be brief", "hello", "2 seen", "again", "4 seen"]
    talk.take("/edit other words")
    assert said(talk)[3:] == ["other words", "4 seen"]
    talk.take("/undo")
    assert said(talk) == ["be brief", "hello", "2 seen"]
    talk.take("/undo")
    talk.take("/undo")
    talk.take("/retry")
    assert said(talk) == ["be brief"] and "nothing to undo" in screen.getvalue()


@pytest.mark.parametrize("line", ["/edit boom", "/load nothing.json", "/file nothing", "/why"])
def test_a_command_that_fails_changes_nothing(line: str) -> None:
    talk, screen = answered()
    before = list(talk.messages)
    talk.take(line)
    assert talk.messages == before and len(screen.getvalue()) > 5


def test_settings_of_the_next_answers() -> None:
    talk, screen = answered()
    talk.take("/set temperature 0.5")
    talk.take("/set top-k 7")
    talk.take("/set stop END")
    assert (talk.talk.params.temperature, talk.talk.params.top_k) == (0.5, 7)
    assert talk.talk.params.stop == ["END"]
    talk.take("/set top_k many")
    talk.take("/set color red")
    talk.take("/system be long")
    talk.take("/show")
    talk.take("/tokens")
    talk.take("/stats")
    shown = screen.getvalue()
    for words in ("top_k is no 'many'", "/set takes temperature", "system be long", "35 tokens"):
        assert words in shown
    assert "first token after" in shown and said(talk)[0] == "be long"


def test_a_conversation_is_kept_in_a_file(tmp_path: Path) -> None:
    talk, _ = answered()
    path = tmp_path / "talk.json"
    talk.take(f"/save {path}")
    assert path.stat().st_mode & 0o777 == 0o600
    written = json.loads(path.read_text())
    assert (written["format"], written["version"]) == ("kvasir.conversations", 1)
    (kept,) = written["conversations"]
    assert kept["selected"] == "3" and [x.get("parent") for x in kept["messages"]] == [
        *(None, "0", "1", "2"),
    ]
    other, screen = conversation()
    other.take(f"/load {path}")
    assert other.messages == talk.messages
    branch = {"id": "b", "parent": "0", "role": "assistant", "content": "of another branch"}
    kept["messages"].append(branch)
    kept["settings"] |= {"mirostat": 1, "temperature": "hot", "seed": 1.5, "stop": {}, "top_k": 3}
    path.write_text(json.dumps(written))
    other.take(f"/load {path}")
    assert other.messages == talk.messages and "1 of other branches" in screen.getvalue()
    assert "not taken: temperature, mirostat, seed, stop" in screen.getvalue().replace("\n", " ")
    assert (other.talk.params.top_k, other.talk.params.stop) == (3, None)
    kept["messages"][0]["parent"] = "3"
    path.write_text(json.dumps(written))
    other.take(f"/load {path}")
    assert "no way to the first one" in screen.getvalue() and other.messages == talk.messages


def test_calls_of_tools_outlive_a_file(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    calls = [{"name": "f", "arguments": "{}"}]
    asked = {"id": "a", "role": "user", "content": "hello"}
    answer = {"id": "b", "parent": "a", "role": "assistant", "content": "", "calls": calls}
    kept = {"id": "x", "selected": "b", "messages": [asked, answer]}
    file = {"format": "kvasir.conversations", "version": 1, "conversations": [kept]}
    path.write_text(json.dumps(file))
    talk, _ = conversation()
    talk.take(f"/load {path}")
    assert talk.messages[1] == {"role": "assistant", "content": ""}  # what tools said is not there
    talk.take("again")
    talk.take(f"/save {path}")
    written = json.loads(path.read_text())["conversations"][0]["messages"]
    assert [message.get("calls") for message in written] == [None, calls, None, None]


def test_files_go_with_the_next_message(tmp_path: Path) -> None:
    talk, screen = conversation()
    (tmp_path / "a.txt").write_text("text of a file")
    (tmp_path / "b.bin").write_bytes(b"\xff\xfe\x00")
    talk.take(f"/file {tmp_path / 'a.txt'}")
    talk.take(f"/file {tmp_path / 'b.bin'}")
    talk.take("what is this?")
    assert said(talk)[0] == "a.txt:\ntext of a file\n\nwhat is this?"
    told = " ".join(screen.getvalue().split())  # a long path wraps its line
    assert "is no text" in told


def test_several_lines_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    talk, _ = conversation()
    lines = '"""first\nsecond\n\nlast"""\nplain\n"""one line"""\n/exit\nnever\n'
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    talk.run()
    assert said(talk)[::2] == ["first\nsecond\n\nlast", "plain", "one line"]


def test_typed_lines_are_private(tmp_path: Path) -> None:
    place = tmp_path / "state" / "history"
    make_private(place)
    assert place.stat().st_mode & 0o777 == 0o600
    assert place.parent.stat().st_mode & 0o777 == 0o700
    assert history_file({"XDG_STATE_HOME": "x"}).parts[-2:] == ("kvasir", "chat_history")


@pytest.mark.parametrize(
    ("seconds", "is_terminal", "shown"),
    [(0.0, True, ""), (0.2, True, "loading m …\r\x1b[K"), (0.2, False, "")],
)
def test_a_wait_is_told_and_forgotten(
    seconds: float, is_terminal: bool, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen() if is_terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("kvasir.cli.waiting.SECONDS", 0.1 if seconds else 60.0)
    with waiting("loading m"):
        time.sleep(seconds)
    assert screen.getvalue() == shown


def sequences() -> list[str]:
    """What terminals obey: of ECMA-48, xterm, iTerm2, kitty, screen and VT100."""
    finals = [chr(code) for code in range(0x40, 0x7F)]
    csi = [f"\x1b[{n}{end}" for end in finals for n in ("", "2;1")]
    osc = [f"\x1b]{n};x{end}" for n in (0, 2, 4, 7, 8, 9, 10, 50, 52, 133, 777, 1337)
           for end in ("\x07", "\x1b\\")]  # fmt: skip
    others = [f"\x1b{x}" for x in "78=>cDEHMNOZ#8()*+-./lmno|}~"]
    strings = [f"\x1b{x}data\x1b\\" for x in "PX^_"]
    c1 = [chr(code) + "2J" for code in range(0x80, 0xA0)]
    controls = [chr(code) for code in (*range(9), *range(11, 32), 127)]
    return [*csi, *osc, *others, *strings, *c1, *controls, "\u202e", "\u2066", "\u2028"]


def test_no_sequence_reaches_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, and cut after each character, as pieces of an answer come; in answers, names, what a
    server tells of itself, and logs."""
    found = sequences()
    assert len(found) >= 200
    obeyed = {chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))}
    obeyed |= set("\u2028\u202e\u2066")

    class Writer(Parrot):
        name = "".join(found)

        def chat(self, messages: Sequence[Message], params: SamplingParams) -> Iterator[str]:
            yield from found
            yield from "".join(found)

    screen = Screen()
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n/show\n/edit x\n"))
    Conversation(Writer(), PARAMS, None, Console(file=screen, width=80, force_terminal=False)).run()
    monkeypatch.setattr("kvasir.cli.start_local.start_local", lambda options: Writer())
    monkeypatch.setattr("sys.stdout", screen)
    assert run_command(["run", "hi"]) == 0
    rows = [{"id": x, "tokens": 1, "blocks": i} for i, x in enumerate(found)]
    seen = ServerLook(0.0, {}, {}, {"requests": rows, "block_size": 16})
    show(as_text(seen, seen), screen)
    show(why_text({"id": "".join(found), "choices": []}), screen)
    assert not set(screen.getvalue()) & obeyed
    for text in found:
        record = logging.LogRecord("kvasir.http", logging.INFO, "", 0, "said %s", (text,), None)
        for form in (LineFormatter(), JsonFormatter()):
            assert not set(form.format(record)) & (obeyed | {"\n"})
