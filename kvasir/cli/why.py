"""``kvasir why``: what made an answer slow."""

from __future__ import annotations

import sys

import click

from kvasir.cli.terminal import show


@click.command()
@click.argument("id")
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="The server.")
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Its key [OPENAI_API_KEY].")
def why(id: str, url: str, api_key: str | None) -> None:
    """Where the time of the answer ID (chatcmpl-…, cmpl-…) went, and what would help."""
    from kvasir.cli.why_text import ask_why, why_text
    from kvasir.lang.http import JsonServer

    show(why_text(ask_why(JsonServer(url, api_key), id)), sys.stdout)
