"""All that was wanted of the server, in one table: what results say, and what tests hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bench.figures.blocks import Blocks
from bench.figures.peers import BESIDE
from bench.figures.serving import (
    DEATHS,
    DRAWN,
    EVENTS,
    KEYS,
    LOADS,
    METRICS,
    MIXES,
    growth,
)
from bench.figures.target import Target, table

FOLDER = "../bench/results/"


@dataclass(frozen=True, slots=True)
class Held:
    """A bar that a test keeps: it fails where the bar is missed."""

    what: str
    wanted: str
    where: str
    """The test, or the command that runs it whole."""

    def row(self, folder: str) -> str:
        return f"| {self.what} | {self.wanted} | | {self.where} | held by tests |"


BARS: Iterable[Held | Target] = (
    Held("an engine killed 10 times in a row under 80 requests of every kind",
         "each byte as undisturbed, none lost", "`make test-kill`; `e2e/test_survival.py`"),
    *DEATHS,
    Held("a poison among 32 streams, sent 20 times more",
         "two deaths in all, the 32 as undisturbed", "`e2e/test_survival.py`"),
    Held("a server killed 20 times beside a batch of 5,000 lines, and beside 100 responses in the "
         "background", "bytes without a gap, each line once, at most 5 % computed twice",
         "`make kills`; `e2e/test_state_kills.py`, `e2e/test_response_kills.py`"),
    Held("a successor takes the sockets at 50 requests a second; engines swapped under streams",
         "none refused, same bytes", "`e2e/test_handover.py`, `e2e/test_survival.py`"),
    Held("`llm-comply` 0.5: Chat, Responses, Messages, but for images and compaction",
         "all", "`make test-clients`; `tests/clients/comply.py`"),
    Held("events of 10,000 random streams, errors and cancels among them, through state machines",
         "none outside of its grammar",
         "`STREAMS=1250 make explore`; `prop/test_event_grammars.py`"),
    Held("unmodified clients of OpenAI, Anthropic, Ollama, LangChain, LiteLLM, the AI SDK",
         "pass, with streams and errors", "`make test-clients`"),
    *DRAWN,
    Held("vectors alone, among 64, cached, replayed", "one, bit for bit",
         "`e2e/test_vectors.py`, `e2e/test_pool_survival.py`"),
    Held("cosine of vectors to those of transformers", "at least 0.9999",
         "`oracle/test_vectors.py`"),
    Held("every route by key, door, Origin and Host; what is another's",
         "the generated table exactly; 404", "`e2e/test_borders.py`"),
    *KEYS,
    *MIXES,
    *LOADS,
    *EVENTS,
    growth("api"),
    growth("engine"),
    *BESIDE,
    Held("what Prometheus' own tool says of the metrics and rules; panels without data, alerts "
         "that do not ring at a death", "nothing; none",
         "`unit/test_metrics.py`, `unit/test_deploy.py`, `e2e/test_prometheus.py`"),
    *METRICS,
)  # fmt: skip

BARS_OF_SERVER: Blocks = {"bars": lambda: table(BARS, FOLDER)}
