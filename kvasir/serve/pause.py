"""The operator's pause: what comes waits, and what runs ends, goes on to its end, or stands still.

Nothing of it changes an answer, but for those that are aborted.
"""

from __future__ import annotations

import asyncio
from typing import Literal, get_args

from kvasir.core.errors import CapacityError
from kvasir.serve.client import AsyncClient

Mode = Literal["abort", "wait", "keep"]
MODES: tuple[Mode, ...] = get_args(Mode)
LOOK_SECONDS = 0.005


class Aborted(CapacityError):
    """The operator ended it; work that nobody waits for is computed again later."""

    code = "aborted"
    status = 503
    retry_after = 1.0


async def pause(client: AsyncClient, mode: Mode) -> None:
    """Returns when nothing runs any more, or it was resumed."""
    gate = client.gate
    gate.close(freezes=mode == "keep")
    if mode == "abort":
        abort(client)
    while client.running and gate.is_closed and mode != "keep" and not client.dead.is_set():
        await asyncio.sleep(LOOK_SECONDS)


def abort(client: AsyncClient, ids: range | None = None) -> int:
    """Ends the requests that no pause keeps waiting, or the one with the engine ids ``ids``, with
    an error; how many these were."""
    error = Aborted("the operator aborted the request: send it again")
    wanted = [x for x in client.running if ids is None or x.first_id == ids.start]
    for stream in wanted:
        client.ledger.fail(stream, error)
    return len(wanted)
