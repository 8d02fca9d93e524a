"""``kvasir pull|list|show|rm|cp|import|create|prune``: the models of this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kvasir.cli.completion import models
from kvasir.cli.terminal import show as write
from kvasir.core.errors import ConfigError, ModelError


@click.command()
@click.argument("name", shell_complete=models)
@click.option("--force", is_flag=True, help="Fetch it although it would not start here.")
@click.option("--update", is_flag=True, help="Ask the hub although it is here already.")
@click.option("--json", "as_json", is_flag=True, help="Progress as NDJSON, in Ollama's words.")
def pull(name: str, force: bool, update: bool, as_json: bool) -> None:
    """Fetch NAME: ORG/REPO[:QUANT][@REVISION] of the Hugging Face hub (HF_ENDPOINT: a mirror).

    Before anything is fetched it says which quantizations would start here, and how fast they
    would write. Without QUANT that is Q4_K_M, or the largest that fits. A pull that was
    interrupted goes on.
    """
    from kvasir.cli.pulling import pulled
    from kvasir.library.names import hub_name
    from kvasir.library.shelf import Shelf

    asked = hub_name(name)
    if asked is None:
        raise ConfigError(f"{name[:200]!r} is no name of the hub: use ORG/REPO or ORG/REPO:QUANT")
    shelf = Shelf()
    found = None if update else shelf.find(name)
    if found is None or not shelf.is_whole(found):
        found = pulled(asked, force=force, as_json=as_json)
    elif as_json:
        write('{"status":"success"}\n', sys.stdout)
    if not as_json:
        write(f"{found.name} is here: kvasir chat {found.name}\n", sys.stdout)


@click.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="All that is known of them.")
def list_command(as_json: bool) -> None:
    """Show the models of this machine."""
    from kvasir.cli.library_text import list_json, list_text

    write(list_json() if as_json else list_text(), sys.stdout)


@click.command()
@click.argument("name", shell_complete=models)
def show(name: str) -> None:
    """Show what is known of the model NAME."""
    from kvasir.cli.library_text import model_text

    write(model_text(name), sys.stdout)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…", shell_complete=models)
def rm(names: tuple[str, ...]) -> None:
    """Remove models, also those whose pull was interrupted. Linked files stay.

    ORG/REPO means every quantization of it that is here, ORG/REPO:QUANT one.
    """
    from kvasir.cli.library_text import removed

    for name in names:
        write(removed(name), sys.stdout)


@click.command()
@click.argument("name", shell_complete=models)
@click.argument("other")
def cp(name: str, other: str) -> None:
    """Call the model NAME OTHER, too. No byte is copied."""
    from kvasir.library.shelf import Shelf

    copied = Shelf().copy(name, other)
    write(f"{copied.name} is {name}\n", sys.stdout)


@click.command(name="import")
@click.argument("path", required=False)
@click.option("--name", help="What it is called here; default: the name of its file or folder.")
@click.option("--all", "all_of_them", is_flag=True, help="Every model that others have.")
def import_command(path: str | None, name: str | None, all_of_them: bool) -> None:
    """Link PATH, a GGUF file or a folder, as a model of the library. No byte is copied.

    PATH may also be the name of a model of the hub's cache, Ollama or LM Studio; without PATH
    those that are found there are shown.
    """
    from kvasir.cli.library_text import linked, linked_all, outside_text

    if all_of_them and (path or name):
        raise ConfigError("--all takes neither PATH nor --name")
    if all_of_them:
        write(linked_all(), sys.stdout)
    elif path is None:
        write(outside_text(), sys.stdout)
    else:
        write(linked(path, name), sys.stdout)


@click.command()
@click.argument("name", shell_complete=models)
@click.option(
    "-f",
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("Modelfile"),
    show_default=True,
    help="A Modelfile.",
)
def create(name: str, path: Path) -> None:
    """Make NAME of a Modelfile: FROM, PARAMETER, SYSTEM, MESSAGE and LICENSE.

    kvasir run and chat keep to what it says. An instruction that cannot be followed is an error
    that names its line.
    """
    from kvasir.cli.pulling import pulled
    from kvasir.library.create import create as made_of
    from kvasir.library.modelfile import read_modelfile
    from kvasir.library.shelf import Shelf

    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ModelError(f"{path} is no text") from None
    said = read_modelfile(text, str(path))
    made = made_of(Shelf(), name, said, path.absolute().parent, pulled)
    write(f"{made.name} is made of {said.base}\n", sys.stdout)


@click.command()
def prune() -> None:
    """Remove what interrupted pulls left, and files that no model has."""
    from kvasir.config.sizes import format_size
    from kvasir.library.shelf import Shelf

    write(f"{format_size(Shelf().prune())} freed\n", sys.stdout)


@click.command()
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="The server.")
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Its key [OPENAI_API_KEY].")
def ps(url: str, api_key: str | None) -> None:
    """Show the models of a running server."""
    from kvasir.cli.library_text import running_text
    from kvasir.lang.http import JsonServer

    write(running_text(JsonServer(url, api_key).get("/api/ps")), sys.stdout)
