"""``kvasir service``: a server that systemd keeps."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from kvasir.cli.completion import models
from kvasir.cli.terminal import show
from kvasir.core.errors import ConfigError

KEYS = "--api-key-file"


@click.group()
def service() -> None:
    """Have systemd start a server, watch it, and start it again."""


@service.command(context_settings={"ignore_unknown_options": True})
@click.argument("model", required=False, shell_complete=models)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.option("--user", is_flag=True, help="Of your own systemd, without root.")
@click.option("--name", default="kvasir", show_default=True, help="Of the unit.")
@click.option("--print", "prints", is_flag=True, help="Show the unit instead of writing it.")
def install(
    model: str | None, options: tuple[str, ...], user: bool, name: str, prints: bool
) -> None:
    """Write a unit that serves MODEL with OPTIONS of kvasir serve, and say what starts it.

    It runs as a user of its own, which can read its model and little else. A model of the hub is
    pulled first.
    """
    from kvasir.cli.named import present
    from kvasir.cli.service_unit import UNIT_FOLDER, unit_text, user_folder
    from kvasir.config.options import EngineOptions
    from kvasir.weights.default import default_model

    if model is not None and model.startswith("-"):  # there is none, and options follow
        options, model = (model, *options), None
    if not name.isascii() or not name.replace("-", "").isalnum():
        raise ConfigError(f"{name[:60]!r} is no name of a unit: use letters, digits and -")
    given = present(EngineOptions(model=model))[0] if model else None
    path = Path(given.model if given and given.model else default_model()).expanduser().resolve()
    if not path.exists():
        raise ConfigError(f"{path} does not exist: give a file, a folder or a name of the library")
    served = given.served_model_name if given else None
    names = ("--served-model-name", served) if served else ()
    options, keys = _without_secrets(options)
    _check((str(path), *names, *options))
    command = shutil.which("kvasir", path=str(Path(sys.executable).parent)) or shutil.which(
        "kvasir"
    )
    start = [command] if command else [sys.executable, "-m", "kvasir"]
    text = unit_text([*start, "serve", str(path), *names, *options], path, is_user=user, keys=keys)
    if prints:
        show(text, sys.stdout)
        return
    folder = user_folder(os.environ) if user else UNIT_FOLDER
    place = folder / f"{name}.service"
    folder.mkdir(parents=True, exist_ok=True)
    place.write_text(text, encoding="utf-8")
    control = "systemctl --user" if user else "systemctl"
    show(
        f"{place} is written. To start it now and at every boot:\n"
        f"  {control} daemon-reload && {control} enable --now {name}\n"
        f"Its log: journalctl {'--user ' if user else ''}-u {name} -f\n",
        sys.stdout,
    )


def _check(arguments: tuple[str, ...]) -> None:
    """Raises click.UsageError where ``kvasir serve`` would, which systemd would start for ever."""
    from kvasir.cli.serve import serve

    serve.make_context("kvasir serve", list(arguments))


def _without_secrets(options: tuple[str, ...]) -> tuple[tuple[str, ...], Path | None]:
    """``options`` without the file of keys, and that file. Raises ConfigError on a key itself: all
    users of the machine read units."""
    split = (x.split("=", 1) if x.startswith("--") else [x] for x in options)
    words = [word for parts in split for word in parts]
    secret = next((word for word in words if word in ("--api-key", "--admin-key")), None)
    if secret is not None:
        raise ConfigError(
            f"{secret} would stand in a unit that everybody can read: kvasir keys makes a file of "
            "keys, and --api-key-file FILE hands it over"
        )
    if KEYS not in words:
        return options, None
    at = words.index(KEYS)
    if at + 1 == len(words):
        raise ConfigError(f"{KEYS} needs a file")
    keys = Path(words[at + 1]).expanduser().resolve()
    if not keys.is_file():
        raise ConfigError(f"{keys} does not exist: kvasir keys makes it")
    return (*words[:at], *words[at + 2 :]), keys
