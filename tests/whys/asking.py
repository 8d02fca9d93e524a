"""Streams whose times the client notes."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.harness import Server

LONGEST = 600.0
"""Seconds that an answer may take on a machine that others have."""
GREEDY = {"temperature": 0, "ignore_eos": True}


@dataclass
class Heard:
    """Moments on the client's clock, seconds."""

    sent: float
    id: str = ""
    moments: list[float] = field(default_factory=list)
    """When each event came."""
    ended: float = 0.0

    @property
    def first(self) -> float:
        """From when it was sent until its first token came."""
        return self.moments[0] - self.sent

    @property
    def seconds(self) -> float:
        return self.ended - self.sent

    @property
    def gap(self) -> float:
        """The longest between two events."""
        pairs = zip(self.moments, self.moments[1:], strict=False)
        return max(b - a for a, b in pairs)


class Asking(threading.Thread):
    """One streamed completion."""

    def __init__(self, server: Server, prompt: list[int] | str, n_tokens: int, **fields: Any):
        super().__init__(daemon=True)
        body = {"model": server.model, "stream": True, "prompt": prompt, "max_tokens": n_tokens}
        self._body = {**body, **GREEDY, **fields}
        self._server = server
        self._began = threading.Event()
        self.heard = Heard(time.monotonic())
        self.start()

    def run(self) -> None:
        heard, url = self.heard, self._server.url + "/v1/completions"
        with self._server.http.stream("POST", url, json=self._body, timeout=LONGEST) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    heard.moments.append(time.monotonic())
                    if not heard.id:
                        heard.id = json.loads(line[6:])["id"]
                        self._began.set()
                elif not response.is_success:
                    raise RuntimeError(line)
        heard.ended = time.monotonic()

    def begun(self) -> Asking:
        """Once the first token is there."""
        if not self._began.wait(LONGEST):
            raise TimeoutError("no first token")
        return self

    def done(self) -> Heard:
        self.join(LONGEST)
        if not self.heard.ended:
            raise TimeoutError("no end")
        return self.heard


def ask(server: Server, prompt: list[int] | str, n_tokens: int, **fields: Any) -> Heard:
    return Asking(server, prompt, n_tokens, **fields).done()


def choices(server: Server, heard: Heard) -> list[dict[str, Any]]:
    """What the server says of each."""
    told: list[dict[str, Any]] = server.get(f"/v1/requests/{heard.id}/why").json()["choices"]
    return told
