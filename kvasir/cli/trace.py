"""A server's timeline as text, and as a Chrome trace (chrome://tracing, Perfetto)."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

ENGINE, REQUESTS = 1, 2
"""Process ids of the trace: the steps on one track, and a track for each request."""


def steps_text(timeline: Json) -> str:
    """One line for each step."""
    lines = [
        f"{'step':>8} {'ms':>9} {'rows':>5} {'decode':>6} {'tokens':>6} {'waiting':>7}  chunks"
    ]
    for step in timeline["steps"]:
        chunks = [
            f"{row['id']} {row['start']}+{row['tokens']}"
            for row in step["requests"]
            if row["kind"] == "prefill"
        ]
        lines.append(
            f"{step['step']:>8} {step['seconds'] * 1e3:>9.3f} {step['rows']:>5} "
            f"{step['decodes']:>6} {step['tokens']:>6} {step['waiting']:>7}  {', '.join(chunks)}"
        )
    return "\n".join(lines) + "\n"


BAR = 40
"""Characters of a full bar."""


def kv_text(found: Json) -> str:
    """A bar for the pool (# used, + cached) and one for each request (# tokens in its blocks)."""
    total = max(1, found["blocks"])
    n_used = found["blocks"] - found["blocks_free"] - found["blocks_cached"]
    used, cached = (round(BAR * n / total) for n in (n_used, found["blocks_cached"]))
    bar = ("#" * used + "+" * cached)[:BAR].ljust(BAR, ".")
    lines = [
        f"[{bar}] {n_used} of {found['blocks']} blocks used, {found['blocks_cached']} cached; "
        f"{found['running']} requests run"
    ]
    for row in found["requests"]:
        slots = row["blocks"] * found["block_size"]
        share = min(1.0, row["tokens"] / max(1, slots))
        bar = ("#" * round(BAR * share)).ljust(BAR, ".")
        lines.append(f"[{bar}] {share:.0%} of {slots} tokens in blocks: {row['id']}")
    return "\n".join(lines) + "\n"


def request_text(timeline: Json) -> str:
    """The spans of every choice of one response; times in milliseconds since its arrival."""
    lines = [str(timeline["id"])]
    for choice in timeline["choices"]:
        lines.append(f"  choice {choice['index']}: {choice['state']}")
        if choice.get("is_truncated"):
            lines.append("    (early parts are forgotten: the ring of steps is bounded)")
        lines += [f"    {_span_text(span)}" for span in choice["spans"]]
    return "\n".join(lines) + "\n"


def _span_text(span: Json) -> str:
    words = [f"{span['at'] * 1e3:>10.3f}", f"{span.get('seconds', 0.0) * 1e3:>10.3f}"]
    words.append(f"{span['kind']:<11}")
    if "tokens" in span:
        words.append(f"{span['tokens']} tokens")
    if span["kind"] == "prefill":
        words.append(f"from {span.get('start', 0)}, step {span['step']} of {span['rows']} rows")
    if span["kind"] == "decode":
        forced = f"{span['forced']} of them forced, " if "forced" in span else ""
        words.append(f"{forced}in {span['steps']} steps, slowest {span['slowest'] * 1e3:.3f}")
    if span["kind"] == "undrafted":
        words.append(f"{span['steps']} steps:")
    return " ".join([*words, span.get("detail", "")]).rstrip()


def chrome_trace(timeline: Json) -> Json:
    """The Trace Event Format: complete ("X") events in microseconds since the first step.

    Consecutive decode steps of a request are one slice.
    """
    steps = timeline["steps"]
    origin = steps[0]["at"] if steps else 0.0
    events: list[Json] = [_name("process_name", ENGINE, 0, "engine")]
    events += [
        _name("process_name", REQUESTS, 0, "requests"),
        _name("thread_name", ENGINE, 1, "steps"),
    ]
    tracks: dict[str, int] = {}
    running: dict[str, Json] = {}
    for step in steps:
        at, seconds = _microseconds(step["at"] - origin), _microseconds(step["seconds"])
        numbers = {
            key: step[key] for key in ("rows", "tokens", "decodes", "waiting", "blocks_free")
        }
        name = "prefill" if step["tokens"] > step["decodes"] else "decode"
        events.append(_slice(f"{name} {step['tokens']}", ENGINE, 1, at, seconds, numbers))
        seen = set()
        for row in step["requests"]:
            track = tracks.setdefault(row["id"], len(tracks) + 1)
            seen.add(row["id"])
            _add_row(events, running, row, track, at, seconds)
        for request in running.keys() - seen:
            del running[request]
    events += [_name("thread_name", REQUESTS, track, name) for name, track in tracks.items()]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _add_row(
    events: list[Json], running: dict[str, Json], row: Json, track: int, at: float, seconds: float
) -> None:
    """``running`` holds the decode slice of each request that may still grow."""
    slice_ = running.get(row["id"])
    if row["kind"] != "prefill" and slice_ is not None:
        slice_["dur"] = round(at + seconds - slice_["ts"], 3)
        slice_["args"]["tokens"] += row["tokens"]
        slice_["args"]["steps"] += 1
        return
    numbers: Json = {key: row[key] for key in ("tokens", "start") if key in row}
    if row["kind"] != "prefill":
        numbers["steps"] = 1
    made = _slice(row["kind"], REQUESTS, track, at, seconds, numbers)
    events.append(made)
    running.pop(row["id"], None)
    if row["kind"] != "prefill":
        running[row["id"]] = made


def _slice(name: str, pid: int, tid: int, at: float, duration: float, args: Json) -> Json:
    return {
        "name": name,
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": at,
        "dur": duration,
        "args": args,
    }


def _name(kind: str, pid: int, tid: int, name: str) -> Json:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
