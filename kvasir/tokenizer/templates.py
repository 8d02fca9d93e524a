"""Where models keep their chat templates: one, or several by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kvasir.core.errors import ModelError
from kvasir.formats.fields import get_str, get_tuple
from kvasir.weights.source import ModelSource

DEFAULT = "default"
TOOL_USE = "tool_use"
"""For conversations with tools, where a model has one; as transformers has it."""
MAX_TEMPLATE = 1 << 20
"""Bytes."""
_KEY = "tokenizer.chat_template"
_FILE = "chat_template.jinja"
_FOLDER = "additional_chat_templates"
_MAX_NAMED = 64


def find_templates(source: ModelSource) -> dict[str, str]:
    """The texts of a model's templates by name, none or the one of most models by ``DEFAULT``.

    They stand in GGUF metadata, or in chat_template.jinja and additional_chat_templates/NAME.jinja,
    or else in tokenizer_config.json. Raises ModelError.
    """
    if source.kind == "gguf":
        return _in_metadata(source.config)
    return _in_files(source) or _in_settings(source.read_json("tokenizer_config.json"))


def find_response_template(source: ModelSource) -> object:
    """What tokenizer_config.json says of how answers are read, if anything."""
    if source.kind == "gguf":
        return None
    return source.read_json("tokenizer_config.json").get("response_template")


def _in_metadata(config: Mapping[str, object]) -> dict[str, str]:
    names = get_tuple(config, f"{_KEY}s", str)
    keys = {DEFAULT: _KEY} | {name: f"{_KEY}.{name}" for name in names[:_MAX_NAMED]}
    found = {name: get_str(config, key) for name, key in keys.items()}
    return {name: text for name, text in found.items() if text is not None}


def _in_files(source: ModelSource) -> dict[str, str]:
    folder = source.path / _FOLDER
    named = sorted(path.name for path in folder.glob("*.jinja")) if folder.is_dir() else []
    if len(named) > _MAX_NAMED:
        raise ModelError(f"{folder} has {len(named)} templates, at most {_MAX_NAMED} are read")
    files = {DEFAULT: _FILE} | {Path(name).stem: f"{_FOLDER}/{name}" for name in named}
    found = {name: _text(source, file) for name, file in files.items()}
    return {name: text for name, text in found.items() if text is not None}


def _text(source: ModelSource, file: str) -> str | None:
    data = source.read(file, MAX_TEMPLATE)
    try:
        return None if data is None else data.decode("utf-8")
    except UnicodeDecodeError:
        raise ModelError(f"{source.path / file} is not valid UTF-8") from None


def _in_settings(settings: Mapping[str, object]) -> dict[str, str]:
    value = settings.get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT: value}
    found: dict[str, str] = {}
    for item in value if isinstance(value, list) else [value]:
        name, text = (
            (item.get("name"), item.get("template")) if isinstance(item, dict) else (None, None)
        )
        if not isinstance(name, str) or not isinstance(text, str) or name in found:
            raise ModelError(
                "chat_template of tokenizer_config.json is no text, and no list of texts, each "
                "with a name of its own"
            )
        found[name] = text
    return found
