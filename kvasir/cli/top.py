"""``kvasir top``: a running server, as nvidia-smi shows a GPU."""

from __future__ import annotations

import sys
import time

import click

from kvasir.cli.terminal import show


@click.command()
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="The server.")
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Its key [OPENAI_API_KEY].")
@click.option("--once", is_flag=True, help="Show it once and end.")
@click.option("--json", "as_json", is_flag=True, help="Show the numbers once, for programs.")
@click.option(
    "--sort",
    "order",
    type=click.Choice(("blocks", "tokens", "id")),
    default="blocks",
    show_default=True,
    help="Of the requests: which comes first.",
)
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 60.0),
    default=0.5,
    show_default=True,
    help="Seconds between two looks, over which rates are taken.",
)
def top(
    url: str, api_key: str | None, once: bool, as_json: bool, interval: float, order: str
) -> None:
    """Show what a server does now: rates, waits, the KV cache and who holds it. Ctrl-C ends it."""
    from kvasir.cli.startup import interruptible
    from kvasir.cli.top_keys import follow
    from kvasir.cli.top_text import ServerWatch, as_text, to_json

    watch = ServerWatch(url, api_key)
    before = watch.look()
    time.sleep(interval)
    now = watch.look()
    if as_json:
        show(to_json(before, now), sys.stdout)
        return
    if once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        show(as_text(before, now, order), sys.stdout)
        return
    interruptible()
    follow(watch, before, now, order, interval)
