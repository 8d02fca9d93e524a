"""The text of ``kvasir config``."""

from __future__ import annotations

from kvasir.checkpoints.loaded import load_model, model_facts
from kvasir.config.controls import one_line
from kvasir.config.options import EngineOptions, OptionInfo, describe
from kvasir.config.serving import ServeOptions
from kvasir.config.settings import DEFAULT, Setting, Sources
from kvasir.engine.build import open_draft, resolve_options
from kvasir.exec.backends import backend_of

HIDDEN = "(set, not shown)"


def config_text(sources: Sources) -> str:
    """A line an option: name, value, why. Raises ConfigError and ModelError, as ``serve`` would."""
    settings = sources.read(EngineOptions, ServeOptions)
    options = settings.of(EngineOptions)
    model = load_model(options.model, options.mmproj)
    facts = model_facts(model)
    _, draft = open_draft(options, backend_of(options.executor), model)
    computed = dict(resolve_options(options, facts, draft=draft).reasons)
    infos = (*describe(EngineOptions), *describe(ServeOptions))
    rows = [
        (info.name, *_cells(info, settings.by_name[info.name], computed.pop(info.name, "")))
        for info in infos
    ]
    rows += [(name, *_split(reason)) for name, reason in computed.items()]
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    lines = [f"{name:{widths[0]}}  {value:{widths[1]}}  {why}" for name, value, why in rows]
    lines += [f"warning: {warning}" for warning in settings.warnings]
    return "\n".join(lines) + "\n"


def _cells(info: OptionInfo, setting: Setting, computed: str) -> tuple[str, str]:
    """Value and why."""
    if setting.said != DEFAULT:
        value = HIDDEN if info.is_secret else one_line(_shown(setting.value))
        return value, setting.said
    return _split(computed) if computed else (_shown(setting.value), DEFAULT)


def _split(reason: str) -> tuple[str, str]:
    """A reason is "value: why"."""
    value, _, why = reason.partition(": ")
    value = value.lower() if value in ("True", "False") else value
    return value, why if why in ("", DEFAULT) else f"computed: {why}"


def _shown(value: object) -> str:
    if value is None or value == "":
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
