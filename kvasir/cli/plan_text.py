"""The text of ``kvasir plan memory``."""

from __future__ import annotations

from kvasir.checkpoints.loaded import load_model, model_facts
from kvasir.config.advice import MemoryAdvice, Room, advise
from kvasir.config.options import EngineOptions
from kvasir.config.sizes import format_size
from kvasir.engine.build import open_draft
from kvasir.exec.backends import backend_of

HEAD = ("", "tokens", "bytes a token", "max_model_len", "requests of it", "costs")
NOTES = """\
Equal beginnings of prompts are held once with the prefix cache: n requests that share s of their t
tokens hold s + n (t - s). What memory has no room for is kept by --kv-disk DIR. Layers are not
split over machines: more memory than this one has needs a larger one.
"""


def memory_text(options: EngineOptions) -> str:
    """A table: the options as they are, then each remedy with the same KV bytes."""
    model = load_model(options.model, options.mmproj)
    facts = model_facts(model)
    backend = backend_of(options.executor)
    _, draft = open_draft(options, backend, model)
    return advice_text(advise(options, facts, backend.probe(), backend.settings, draft))


def advice_text(advice: MemoryAdvice) -> str:
    kv_bytes = format_size(advice.room.kv_bytes) if advice.room else "none"
    lines = [
        f"weights {format_size(advice.weight_bytes)}, KV blocks {kv_bytes}, "
        f"free memory {format_size(advice.free_memory)}"
    ]
    if advice.refusal:
        lines.append(f"does not start: {advice.refusal}")
    rows = [HEAD, ("as asked", *_cells(advice.room), "")]
    rows += [(each.change, *_cells(each.room), each.cost) for each in advice.remedies]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [text.rjust(width) for text, width in zip(row[1:-1], widths[1:], strict=False)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join(lines) + "\n\n" + NOTES


def _cells(room: Room | None) -> tuple[str, ...]:
    if room is None:
        return ("does not start", "", "", "")
    return (
        str(room.n_tokens),
        f"{room.token_bytes:.0f}",
        str(room.max_model_len),
        f"{room.concurrency:.1f}",
    )
