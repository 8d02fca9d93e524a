"""The text that the chat templates of many models make of conversations, against ``transformers``.

KVASIR_TEMPLATES names the folder in which they lie as NAME.jinja (``make test-templates`` fetches
llama.cpp's).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import pytest

from kvasir.core.errors import RequestError
from kvasir.tokenizer.chat import ChatTemplate, thoughts_name
from kvasir.tokenizer.load import load_tokenizer
from kvasir.weights.source import open_model
from tests.gguf_writer import write_gguf
from tests.tiny_vocab import byte_level

FOLDER = os.environ.get("KVASIR_TEMPLATES")
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not FOLDER, reason="make test-templates"),
]
PATHS = sorted(Path(FOLDER).glob("*.jinja")) if FOLDER else []
SPECIAL = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}

Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def assistant(text: str | None, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


def call(name: str, arguments: object) -> Message:
    function = {"name": name, "arguments": arguments}
    return {"id": "call00001", "type": "function", "function": function}


PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Wo? <ü>"}, "n": {"type": "integer"}},
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": n, "description": "d", "parameters": PARAMETERS}}
    for n in ("get", "set")
]
RESULT = {"role": "tool", "content": '{"t": 3}', "tool_call_id": "call00001", "name": "get"}
ONE_CALL = [user("Weather?"), assistant("", tool_calls=[call("get", {"city": "Zürich", "n": 1})])]
CONVERSATIONS: Mapping[str, tuple[list[Message], dict[str, Any]]] = {
    "a question": ([user("Hi")], {}),
    "no prompt for an answer": ([user("Hi"), assistant("Yes.")], {"add_generation_prompt": False}),
    "system": ([system("Be brief."), user("Hi")], {}),
    "turns": ([user("a"), assistant("b"), user(" c \n"), assistant("d\n"), user("e")], {}),
    "unicode": ([system("ü \u2028 👩‍👧"), user("你好\t<b>&'\"</b>")], {}),
    "empty": ([user("")], {}),
    "reasoning": ([user("a"), assistant("b", reasoning_content="so\nit is"), user("c")], {}),
    "tags of reasoning": ([user("a"), assistant("<think>\nx\n</think>\n\nb"), user("c")], {}),
    "tools": ([system("S"), user("Weather?")], {"tools": TOOLS}),
    "a call": (ONE_CALL, {"tools": TOOLS, "add_generation_prompt": False}),
    "a call and its result": ([*ONE_CALL, RESULT], {"tools": TOOLS}),
    "after a call": ([*ONE_CALL, RESULT, assistant("3 °C"), user("And?")], {"tools": TOOLS}),
}


REFUSING = (
    "CohereForAI-c4ai-command-r-plus-tool_use",
    "fireworks-ai-llama-3-firefunction-v2",
)
"""Templates that refuse all of these conversations."""


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_text_is_that_of_transformers(path: Path, tmp_path: Path) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    text = path.read_text("utf-8")
    write_gguf(tmp_path / "m.gguf", byte_level(**{"tokenizer.chat_template": text}), {})
    source = open_model(tmp_path / "m.gguf")
    template = ChatTemplate(source, load_tokenizer(source))
    n_same = 0
    thoughts = thoughts_name(text)
    for name, (given, variables) in CONVERSATIONS.items():
        messages = [
            {thoughts if key == "reasoning_content" else key: message[key] for key in message}
            for message in given
        ]
        asked = {"add_generation_prompt": True, **variables}
        try:
            [expected], _ = utils.render_jinja_template(
                [messages], chat_template=text, **asked, **SPECIAL
            )
        except jinja2.exceptions.SecurityError:
            continue  # of a version whose sandbox is stricter
        except jinja2.TemplateError:
            with pytest.raises(RequestError):
                template.render(messages, **asked)
            continue
        except TypeError:
            continue  # it writes no generator as JSON
        assert template.render(messages, **asked) == expected, name
        n_same += 1
    assert n_same > 0 or path.stem in REFUSING, "it renders none of them"
