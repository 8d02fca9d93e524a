"""What the calls of programs computed, and when: as text, and for Chrome's trace viewer."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import msgspec

from kvasir.lang.calls import Counts
from kvasir.lang.seeds import Path

_COLUMNS = "{:<20} {:<6} {:<14} {:>9} {:>7} {:>9} {:>7} {:>9} {:>9}"


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call that has ended."""

    name: str
    kind: str
    """"gen", "select", or "fork": what branches begin with."""
    path: Path
    """Of its branch in its program."""
    counts: Counts
    began: float
    """Seconds, monotonic: when nothing of its program was before it any more."""
    ended: float
    program: int = 0
    """Which of the traced programs."""

    @property
    def n_computed(self) -> int:
        return self.counts.n_prompt - self.counts.n_cached


class Trace:
    """Collects what is traced with it, from any thread and any number of programs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: list[CallRecord] = []

    def add(self, record: CallRecord) -> None:
        with self._lock:
            self._records.append(record)

    @property
    def records(self) -> tuple[CallRecord, ...]:
        """In the order of their begin."""
        with self._lock:
            records = tuple(self._records)
        return tuple(sorted(records, key=lambda record: record.began))

    @property
    def n_computed(self) -> int:
        """Tokens of prompts that were computed."""
        return sum(record.n_computed for record in self.records)

    @property
    def n_cached(self) -> int:
        return sum(record.counts.n_cached for record in self.records)

    def text(self) -> str:
        """A line for each call, and their sum. Times are milliseconds since the first began."""
        records = self.records
        zero = records[0].began if records else 0.0
        heads = ("call", "kind", "branch", "prompt", "cached", "computed", "output", "at ms", "ms")
        lines = [_COLUMNS.format(*heads)]
        for record in records:
            counts = record.counts
            lines.append(
                _COLUMNS.format(
                    record.name,
                    record.kind,
                    _branch(record),
                    counts.n_prompt,
                    counts.n_cached,
                    record.n_computed,
                    counts.n_output,
                    f"{1e3 * (record.began - zero):.1f}",
                    f"{1e3 * (record.ended - record.began):.1f}",
                )
            )
        n_prompt = sum(record.counts.n_prompt for record in records)
        n_output = sum(record.counts.n_output for record in records)
        sums = (n_prompt, self.n_cached, self.n_computed, n_output)
        return "\n".join([*lines, _COLUMNS.format("all", "", "", *sums, "", "").rstrip()])

    def chrome(self) -> str:
        """JSON in the Trace Event Format, which chrome://tracing and Perfetto open: a process for
        each program, a thread for each branch."""
        records = self.records
        zero = records[0].began if records else 0.0
        events = [
            {
                "name": record.name,
                "cat": record.kind,
                "ph": "X",
                "ts": round(1e6 * (record.began - zero)),
                "dur": round(1e6 * (record.ended - record.began)),
                "pid": record.program,
                "tid": _branch(record),
                "args": {
                    "prompt_tokens": record.counts.n_prompt,
                    "cached_tokens": record.counts.n_cached,
                    "computed_tokens": record.n_computed,
                    "output_tokens": record.counts.n_output,
                },
            }
            for record in records
        ]
        return msgspec.json.encode({"traceEvents": events}).decode()


def _branch(record: CallRecord) -> str:
    return ".".join(map(str, (record.program, *record.path)))
