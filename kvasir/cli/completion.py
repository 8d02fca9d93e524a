"""``kvasir completion``: what a shell needs to complete commands, options and models."""

from __future__ import annotations

import sys

import click
from click.shell_completion import CompletionItem, get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what SHELL runs at its start to complete kvasir's words.

    \b
    bash  eval "$(kvasir completion bash)"      in ~/.bashrc
    zsh   eval "$(kvasir completion zsh)"       in ~/.zshrc, after compinit
    fish  kvasir completion fish | source       in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = context.find_root().command
    sys.stdout.write(kind(root, {}, "kvasir", "_KVASIR_COMPLETE").source() + "\n")


def models(context: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Models of the library that begin so, and files."""
    from kvasir.library.shelf import Shelf

    names = [model.name for model in Shelf().models() if model.name.startswith(begun)]
    return [*map(CompletionItem, names), CompletionItem(begun, type="file")]
