"""Where a value was said: a file, then the environment, then the command line, the last one
wins."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from kvasir.config.controls import one_line
from kvasir.config.env import OTHER_VARIABLES, PREFIX
from kvasir.config.options import OptionInfo, check_one, describe
from kvasir.core.errors import ConfigError, printable

MAX_FILE_BYTES = 2**20
DEFAULT = "default"
FLAGS = {"1": True, "true": True, "yes": True, "on": True} | {
    "0": False, "false": False, "no": False, "off": False
}  # fmt: skip
LINK = re.compile(f"{PREFIX}(.*_)?(PORT|SERVICE_(HOST|PORT).*|PORT_\\d+_(TCP|UDP).*)")
"""Kubernetes sets such variables in every pod beside a Service that is called kvasir."""

Options = TypeVar("Options")


class Setting(msgspec.Struct, frozen=True):
    value: object
    said: str
    """``serve.toml:3``, ``KVASIR_PORT``, ``--port`` or "default"."""


class Settings(msgspec.Struct, frozen=True):
    """Every option of some classes with its value and where that was said."""

    by_name: Mapping[str, Setting]
    warnings: tuple[str, ...] = ()

    def of(self, options_type: type[Options]) -> Options:
        names = [info.name for info in describe(options_type)]
        return options_type(**{name: self.by_name[name].value for name in names})


class Sources(msgspec.Struct, frozen=True):
    """Can be read again: the file may have changed meanwhile."""

    file: Path | None = None
    variables: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The process environment."""
    flags: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Those that were given, by the option's name."""

    def read(self, *options_types: type) -> Settings:
        """Raises ConfigError that names place, option and remedy."""
        infos = {info.name: info for each in options_types for info in describe(each)}
        found = {name: Setting(info.default, DEFAULT) for name, info in infos.items()}
        warnings: list[str] = []
        if self.file is not None:
            found.update(_checked(infos, _from_file(self.file, infos)))
        found.update(_checked(infos, _from_variables(self.variables, infos, warnings)))
        found.update(_checked(infos, _from_flags(self.flags, infos)))
        return Settings(found, tuple(warnings))


Said = Iterator[tuple[str, Setting]]


def _checked(infos: Mapping[str, OptionInfo], said: Said) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for name, setting in said:
        if name in found:
            raise ConfigError(f"{found[name].said} and {setting.said} both set {name}")
        try:
            check_one(infos[name], setting.value)
        except ConfigError as error:
            raise ConfigError(f"{setting.said}: {error.message}") from None
        found[name] = setting
    return found


def _from_file(path: Path, infos: Mapping[str, OptionInfo]) -> Said:
    """Keys are option names or their aliases, with ``-`` or ``_``, and there are no tables."""
    text = _text(path)
    import tomllib  # 5 ms of each start, of which few have a file

    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {one_line(printable(str(error)))}") from None
    names = _names(infos)
    for key, value in values.items():
        where = f"{path}{_line(text, key)}"
        name = names.get(key.replace("-", "_"))
        if name is None:
            raise ConfigError(f"{where}: {key[:64]!r} is no option{_nearest(key, names)}")
        yield name, Setting(value, where)


def _from_flags(flags: Mapping[str, object], infos: Mapping[str, OptionInfo]) -> Said:
    for name, value in flags.items():
        yield name, Setting(value, "MODEL" if name == "model" else infos[name].flag)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} has more than {MAX_FILE_BYTES} bytes: it is no such file")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no UTF-8 text at byte {error.start}") from None


def _line(text: str, key: str) -> str:
    """``:3``, where the key stands; nothing where it cannot be told."""
    found = re.search(rf"(?m)^\s*[\[\"']*{re.escape(key)}[\]\"']*\s*(=|\.|$)", text)
    return f":{text.count(chr(10), 0, found.end()) + 1}" if found else ""


def _from_variables(
    variables: Mapping[str, str], infos: Mapping[str, OptionInfo], warnings: list[str]
) -> Said:
    """An empty variable counts as absent."""
    names = {PREFIX + name.upper(): name for name in infos}
    for variable, text in sorted(variables.items()):
        if not variable.startswith(PREFIX) or not text or variable in OTHER_VARIABLES:
            continue
        if "://" in text and LINK.fullmatch(variable):
            warnings.append(
                f"{variable} is {printable(text[:64])}, which Kubernetes sets for a Service: not "
                "an option; say enableServiceLinks: false"
            )
        elif variable in names:
            name = names[variable]
            yield name, Setting(_parsed(infos[name], text), variable)
        elif not LINK.fullmatch(variable):
            name, nearest = printable(variable[:64]), _nearest(variable, names)
            warnings.append(f"{name} has no effect, there is no such option{nearest}")


def _parsed(info: OptionInfo, text: str) -> object:
    """What cannot be read stays text, which is then refused."""
    if info.kind == "flag":
        return FLAGS.get(text.lower(), text)
    try:
        if info.kind == "int" or (info.kind == "size" and text.isdigit()):
            return int(text)
        return float(text) if info.kind == "share" else text
    except ValueError:
        return text


def _names(infos: Mapping[str, OptionInfo]) -> dict[str, str]:
    """Of every option by its names."""
    aliases = {alias: name for name, info in infos.items() for alias in info.aliases}
    return aliases | {name: name for name in infos}


def _nearest(name: str, names: Mapping[str, str]) -> str:
    import difflib  # for an error alone

    found = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    return f": did you mean {found[0]}?" if found else ""
