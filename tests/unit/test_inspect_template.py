"""``kvasir inspect template``: which format, and why."""

from __future__ import annotations

from pathlib import Path

from kvasir.cli.template_text import template_text
from tests import tool_templates
from tests.gguf_writer import write_gguf
from tests.tiny_vocab import byte_level


def text_of(folder: Path, template: str | None) -> str:
    more = {} if template is None else {"tokenizer.chat_template": template}
    write_gguf(folder / "m.gguf", byte_level(**more), {})
    return template_text(str(folder / "m.gguf"))


def test_a_format_with_an_example(tmp_path: Path) -> None:
    said = text_of(tmp_path, "{# <think></think> #}" + tool_templates.HERMES)
    assert "reasoning      <think> … </think>: the template has these markers" in said
    assert "tool calls     hermes: reads back what the chat template writes" in said
    assert "calls a turn   any number" in said
    assert "past calls     written by the template, arguments as mappings" in said
    assert '    {"text": "word", "number": 1}' in said.splitlines()


def test_none(tmp_path: Path) -> None:
    said = text_of(tmp_path, "{% for m in messages %}{{ m.content }}{% endfor %}")
    assert "tool calls     none: the model's chat template does not show tools" in said
    assert "reasoning      none" in said
    assert "has no chat template" in text_of(tmp_path, None)
