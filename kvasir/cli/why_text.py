"""Where an answer's time went, as a server tells it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from kvasir.lang.http import JsonServer, ServerError

BAR = 30


def ask_why(server: JsonServer, id: str) -> dict[str, Any]:
    """What made the answer ``id`` slow, as the server says; of one that says no causes, where its
    time went. Raises ServerError."""
    request = f"/v1/requests/{quote(id, safe='')}"
    try:
        return server.get(f"{request}/why")
    except ServerError:  # it knows no such route, or no such answer
        return of_timeline(server.get(f"{request}/timeline"))


def of_timeline(timeline: dict[str, Any]) -> dict[str, Any]:
    """The kinds of its spans, longest first."""
    choices = []
    for choice in timeline["choices"]:
        spent = dict[str, float]()
        end = 0.0
        for span in choice["spans"]:
            seconds = float(span.get("seconds", 0.0))
            kind = str(span["kind"])
            spent[kind] = spent.get(kind, 0.0) + seconds
            end = max(end, float(span["at"]) + seconds)
        longest = sorted(spent.items(), key=lambda each: -each[1])
        parts = [{"cause": kind, "seconds": x} for kind, x in longest if x > 0]
        choices.append({"index": choice["index"], "seconds": end, "parts": parts})
    return {"id": timeline["id"], "choices": choices}


def why_text(found: dict[str, Any]) -> str:
    """A sentence and a remedy for each choice, and a bar for each part of its time."""
    lines = [str(found.get("id", ""))]
    for choice in found.get("choices") or []:
        if "seconds" not in choice:  # forgotten, or one of many that ran beside the first
            lines.append(f"choice {choice['index']}: {choice.get('state', '')}, not explained")
            continue
        seconds, alone = float(choice["seconds"]), choice.get("alone_seconds")
        beside = f", {alone:.3f} s alone" if isinstance(alone, int | float) else ""
        lines.append(f"choice {choice['index']}: {seconds:.3f} s{beside}")
        lines += [f"  {choice[name]}" for name in ("sentence", "remedy") if choice.get(name)]
        for off in choice.get("undrafted") or []:
            lines.append(f"  not drafted in {off['steps']} steps: {off['sentence']}")
        for part in choice.get("parts") or []:
            share = min(1.0, part["seconds"] / seconds) if seconds > 0 else 0.0
            bar = ("#" * round(BAR * share)).ljust(BAR, ".")
            lines.append(f"  [{bar}] {part['seconds'] * 1e3:>9.1f} ms  {part['cause']}")
    return "\n".join(lines) + "\n"
