"""How quick the page is, in a real browser: ``KVASIR_CHROMIUM=/usr/bin/chromium python -m
tests.web.measure [--tokens 10000] --output bench/results/NAME.json``.

Loads in fresh contexts, without a cache; then an answer of many tokens after 2,000 messages, as
fast as a server would send it. ``beside``: what others took of the machine, the browser's own
processes too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from kvasir.bench.fingerprint import Meter, fingerprint
from kvasir.bench.report import command_line
from tests.e2e.harness import Server, running_server
from tests.e2e.toy_model import write_toy_model
from tests.web.tab import CHROMIUM, HERE, Tab

PROGRAM = "python -m tests.web.measure"
N_MESSAGES, PER_SECOND = 2000, 400
PACKED = """() => performance.getEntriesByType('navigation')
  .concat(performance.getEntriesByType('resource'))
  .reduce((sum, each) => sum + each.encodedBodySize, 0)"""
LONG_TASK = 50.0
"""Milliseconds that a browser calls long."""


def loads(browser: Any, server: Server, n: int) -> dict[str, Any]:
    """Of the first visit: bytes as they are sent, and milliseconds until all is there."""
    n_bytes, n_packed, painted, ready = [], [], [], []
    for _ in range(n):
        tab = Tab(browser, server)
        session = tab.context.new_cdp_session(tab.page)
        sizes: list[int] = []
        session.on("Network.loadingFinished", partial(add_size, sizes))
        session.send("Network.enable")
        began = time.perf_counter()
        tab.open()
        ready.append(1000 * (time.perf_counter() - began))
        first = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
        painted.append(float(tab.page.evaluate(first)))
        n_bytes.append(sum(sizes))
        n_packed.append(int(tab.page.evaluate(PACKED)))
        tab.end()
    return {
        "bytes": max(n_packed),
        "bytes_with_heads": max(n_bytes),
        "first_paint_ms": round(statistics.median(painted), 1),
        "ready_ms": round(statistics.median(ready), 1),
    }


def add_size(sizes: list[int], told: dict[str, Any]) -> None:
    sizes.append(told["encodedDataLength"])


def heap(session: Any) -> int:
    """Bytes after what is garbage is gone."""
    session.send("HeapProfiler.collectGarbage")
    return int(session.send("Runtime.getHeapUsage")["usedSize"])


def conversation(browser: Any, server: Server, n_tokens: int) -> dict[str, Any]:
    tab = Tab(browser, server)
    page = tab.open()
    session = tab.context.new_cdp_session(page)
    program = (HERE / "long_conversation.js").read_text("utf-8")
    told: dict[str, Any] = page.evaluate(program, [N_MESSAGES, n_tokens, PER_SECOND])
    before = heap(session)
    again: dict[str, Any] = page.evaluate(program, [N_MESSAGES, n_tokens, PER_SECOND])
    told["heap_bytes"], told["heap_growth"] = before, heap(session) - before
    tab.end()
    long = sorted(round(x) for x in told["long"] + again["long"])
    told |= {"tokens": n_tokens, "long": long, "over_50_ms": sum(x > LONG_TASK for x in long)}
    return {name: round(x, 1) if isinstance(x, float) else x for name, x in told.items()}


def measured(n_tokens: int, n_loads: int) -> dict[str, Any]:
    sync_api = import_module("playwright.sync_api")
    with (
        Meter() as meter,
        tempfile.TemporaryDirectory() as folder,
        sync_api.sync_playwright() as playwright,
        running_server(write_toy_model(Path(folder) / "toy")) as server,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        first = loads(browser, server, n_loads)
        found = conversation(browser, server, n_tokens)
        version = browser.version
        browser.close()
    return {"browser": version, "load": first, "conversation": found, "beside": meter.foreign}


def main() -> None:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--loads", type=int, default=10)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    told = {
        "kind": "page",
        "command": command_line(PROGRAM),
        "machine": fingerprint(),
        "results": measured(args.tokens, args.loads),
    }
    text = json.dumps(told, indent=2) + "\n"
    args.output.write_text(text, encoding="utf-8") if args.output else sys.stdout.write(text)


if __name__ == "__main__":
    main()
