"""The clients of one key, in a process of their own: ``python -m bench.serving.flood PORT SECRET``.

Each line of standard input is the number of a mix, drawn from that seed, or "plain", or "stop"; a
line comes back when a mix is under way ("on"), when it is refused as a request that is not valid
("invalid ..."), and when all clients have left ("off" and the statuses).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections import Counter
from contextlib import suppress

from bench.serving.mixes import PLAIN, Mix, draw

N_CLIENTS = 64
WARM_SECONDS = 0.5
PROBE_SECONDS = 0.5
"""In which a request that is not valid is refused."""
LAST_SECONDS = 0.05
"""After a refusal."""


class Flood:
    def __init__(self, port: int, secret: str, mix: Mix, seed: int) -> None:
        self._port = port
        self._secret = secret
        self._mix = mix
        self._rng = random.Random(seed)
        self.statuses: Counter[str] = Counter()

    async def probe(self) -> str:
        """What is wrong with such a request; empty: nothing is said so soon."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                status, text = await self._ask(is_probe=True)
        except TimeoutError:
            return ""
        return text if status.startswith("4") and status != "429" else ""

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._mix.patience):
                    status, _ = await self._ask()
            except TimeoutError:
                status = "left"
            except (OSError, asyncio.IncompleteReadError):
                status = "broken"
            self.statuses[status] += 1
            if status != "200":
                await asyncio.sleep(LAST_SECONDS)

    async def _ask(self, *, is_probe: bool = False) -> tuple[str, str]:
        """The status, and the text of a refusal. A probe leaves an answer that has begun."""
        data = json.dumps(self._mix.request(self._rng, "m")).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = (
            f"POST {self._mix.path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Authorization: Bearer {self._secret}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        try:
            writer.write(head.encode() + data)
            await writer.drain()
            status = (await reader.readline())[9:12].decode()
            text = ""
            if is_probe and status == "200":
                return status, text
            while part := await reader.read(1 << 16):
                if status[:1] == "4" and len(text) < 2000:
                    text += part.decode(errors="replace")
            return status, text.rpartition("\r\n\r\n")[2][:300]
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def commands() -> None:
    port, secret = int(sys.argv[1]), sys.argv[2]
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []
    flood = Flood(port, secret, PLAIN, 0)
    while line := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        if line == "stop":
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            tasks = []
            print("off", json.dumps(flood.statuses), flush=True)
            continue
        mix = PLAIN if line == "plain" else draw(random.Random(int(line)))
        flood = Flood(port, secret, mix, 1)
        if wrong := await flood.probe():
            print("invalid", wrong.replace("\n", " "), flush=True)
            continue
        tasks = [asyncio.create_task(flood.run()) for _ in range(N_CLIENTS)]
        await asyncio.sleep(WARM_SECONDS)
        print("on", flush=True)


if __name__ == "__main__":
    os.setpriority(os.PRIO_PROCESS, 0, 19)  # attackers have machines of their own
    asyncio.run(commands())
