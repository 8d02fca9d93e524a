"""The chat templates of many models: which format each has, and that what it writes is read back.

KVASIR_TEMPLATES names the folder in which they lie as NAME.jinja (``make test-templates`` fetches
llama.cpp's).
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
from functools import cache
from pathlib import Path

import pytest

from kvasir.core.errors import RequestError
from kvasir.tokenizer.chat import ChatTemplate
from kvasir.tokenizer.load import load_tokenizer
from kvasir.tokenizer.messages import ChatMessage, PastCall, shown_tools
from kvasir.toolcalls.detect import Detected, detect, reasoning_of
from kvasir.toolcalls.grammar import Tool, kinds_of
from kvasir.toolcalls.history import told
from kvasir.toolcalls.parser import MessageParser, read_message
from kvasir.toolcalls.pieces import Message, message_of
from kvasir.toolcalls.reading import Reading
from kvasir.weights.source import open_model
from tests.gguf_writer import write_gguf
from tests.tiny_vocab import byte_level
from tests.tool_templates import Calls

FOLDER = os.environ.get("KVASIR_TEMPLATES")
pytestmark = pytest.mark.skipif(not FOLDER, reason="make test-templates")
PATHS = sorted(Path(FOLDER).glob("*.jinja")) if FOLDER else []
TOOL_PATHS = [path for path in PATHS if "tool" in path.read_text("utf-8")]
N_FOUND = 55
N_SPLITS = 1_000
UNKNOWN = {
    "CohereForAI-c4ai-command-r-plus-tool_use": "calls stand in Markdown before an instruction",
    "HuggingFaceTB-SmolLM3-3B": "this copy shows no tools",
    "Kimi-K3": "the format is not in the table",
    "MiniMax-M3": "values are elements inside of elements",
    "fireworks-ai-llama-3-firefunction-v2": "wants tools as text, and the time",
    "meetkai-functionary-medium-v3.2": "the prompt ends inside of the first header",
    "muse-glimmer": "each call is a message of its own",
}
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "n": {"type": "integer"},
        "o": {"type": "object"},
        "l": {"type": "array"},
        "f": {"type": "boolean"},
    },
}
TOOLS = [
    {"type": "function", "function": {"name": n, "description": "d", "parameters": SCHEMA}}
    for n in ("get", "get_x")
]
READS = kinds_of([Tool("get", SCHEMA), Tool("get_x", SCHEMA)])
VECTORS: dict[str, Calls] = {
    "one": [("get", {"city": "Paris"})],
    "empty": [("get_x", {})],
    "nested": [
        (
            "get",
            {"city": 'a"b {', "n": -3, "o": {"a": ["}", {"k": 1.5}]}, "l": [[1], "x"], "f": True},
        )
    ],
    "unicode": [("get", {"city": "Zürich 🏔", "n": 1})],
    "two": [("get", {"city": "x y"}), ("get_x", {"n": 2})],
}
TOKENS = {"LFM": ("<|tool_call_start|>", "<|tool_call_end|>")}
"""Of the vocabulary, which the template does not show; by the beginning of its name."""
ASKED = ChatMessage("user", "Question?")


class Model:
    """What a test needs of one template."""

    def __init__(self, template: ChatTemplate, more: tuple[str, ...]) -> None:
        self.template = template
        self.reasoning = reasoning_of(template)
        self.names = sorted({*_names_of(template), *more}, key=len, reverse=True)
        self.found: Detected = detect(template, self.names)

    def turn(self, calls: Calls, thoughts: str) -> tuple[str, Reading] | None:
        """What the model would have written, and how it is read; None where it cannot be."""
        form, history = self.found.format, self.found.history
        past = tuple(PastCall(f"call0000{i}", *call) for i, call in enumerate(calls))
        said = ChatMessage("assistant", "", past, thoughts)
        messages = [one.said(history) for one in told([ASKED, said], TOOLS, self.found)]
        variables = shown_tools(TOOLS, history.shown_as or "tools")
        try:
            begun = self.template.render(messages[:-1], True, **variables)
            whole = self.template.render(messages, False, **variables)
        except RequestError:
            return None
        thinks = self.reasoning
        if thinks is not None:
            begin, end = re.escape(thinks.begin), re.escape(thinks.end)
            shorter = re.sub(rf"\s*({begin}\s*)?({end})?\s*$", "", begun)
            if not whole.startswith(begun) or begun.rstrip().endswith(thinks.begin):
                begun = shorter
        if not whole.startswith(begun):
            return None
        text = whole[len(begun) :]
        if thinks is not None and text.lstrip().startswith(thinks.end):
            text = text.lstrip().removeprefix(thinks.end)
        is_open = thinks is not None and thinks.end in text and thinks.begin not in text
        return text, Reading(form, self.reasoning, is_open, READS)

    def plain(self, text: str) -> str:
        """Without tokens that no text spells."""
        for name in self.names:
            text = text.replace(name, "")
        return text.strip()


def _names_of(template: ChatTemplate) -> set[str]:
    text = template.text or ""
    said = [ASKED.said(), ChatMessage("assistant", "!").said()]
    for messages, adds in ((said[:1], True), (said, False)):
        try:
            text += template.render(messages, adds, tools=TOOLS)
        except RequestError:
            continue
    found = re.findall(
        r"<[|｜][^<>\s']{1,40}[|｜]>|<\|[^<>\s']+>|<[^<>\s']+\|>|</?[a-zA-Z_0-9]+>|\[e~\[|<seed:eos>|"
        r"\[/?[A-Z_]+\]|<｜[^<>\s']+>",
        text,
    )
    return {*found, "</s>", "<|im_end|>", "<｜hy_eos:opensource｜>"}


@cache
def model_of(path: Path, folder: Path) -> Model:
    text = path.read_text("utf-8")
    write_gguf(folder / "m.gguf", byte_level(**{"tokenizer.chat_template": text}), {})
    source = open_model(folder / "m.gguf")
    return Model(ChatTemplate(source, load_tokenizer(source)), TOKENS.get(path.stem[:3], ()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("templates")


def test_most_are_known(folder: Path) -> None:
    """The others are those that are listed, each with its reason."""
    unknown = {path.stem for path in TOOL_PATHS if model_of(path, folder).found.format is None}
    assert unknown == set(UNKNOWN)
    assert len(TOOL_PATHS) - len(unknown) >= N_FOUND


@pytest.mark.parametrize("path", TOOL_PATHS, ids=lambda path: path.stem)
def test_what_it_writes_is_read_back(path: Path, folder: Path) -> None:
    model = model_of(path, folder)
    if path.stem in UNKNOWN:
        assert model.found.format is None
        return
    n_read = 0
    for calls, thoughts in itertools.product(VECTORS.values(), ("", "Because it is so.")):
        turn = model.turn(calls, thoughts) if len(calls) < 2 or model.found.is_parallel else None
        if turn is None:
            continue
        text, reading = turn
        message = read_message(reading, text)
        assert [(call.name, json.loads(call.arguments)) for call in message.calls] == calls
        assert not model.plain(message.content)
        assert message.reasoning.strip() in (thoughts, "")
        assert_splits_agree(reading, text, message)
        n_read += 1
    assert n_read >= len(VECTORS)


def assert_splits_agree(reading: Reading, text: str, message: Message) -> None:
    """At every place, and at N_SPLITS random sets of places."""
    draw = random.Random(len(text))
    cuts = [[i] for i in range(len(text) + 1)]
    cuts += [
        sorted(draw.choices(range(len(text) + 1), k=draw.randint(2, 12))) for _ in range(N_SPLITS)
    ]
    for places in cuts:
        parser = MessageParser(reading)
        ends = zip([0, *places], [*places, len(text)], strict=True)
        pieces = [piece for a, b in ends for piece in parser.feed(text[a:b])]
        assert message_of([*pieces, *parser.finish()]) == message, places
