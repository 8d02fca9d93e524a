"""What ``kvasir advise`` says."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvasir.bench.advise import AdvisedFormat, AskedAdvice, choice
from kvasir.bench.candidates import AS_IT_IS
from kvasir.config.sizes import format_size

HEAD = ("", "size", "decode tok/s", "prefill tok/s", "seconds", "KLD")


def advice_json(asked: AskedAdvice, found: Sequence[AdvisedFormat]) -> str:
    best = choice(found)
    said = msgspec.json.encode(
        {"load": asked.load, "memory": asked.memory, "choice": best and best.name, "formats": found}
    )
    return msgspec.json.format(said, indent=2).decode() + "\n"


def advice_text(asked: AskedAdvice, found: Sequence[AdvisedFormat]) -> str:
    """A table, the best first, what does not serve, and the first choice with its reason."""
    load = asked.load
    able = [x for x in found if not x.refusal]
    lines = [f"{load.batch} at a time, prompts of {load.prompt}, answers of {load.output} tokens"]
    rows = [HEAD, *map(_cells, able)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    lines += _refused(found)
    return "\n".join([*lines, "", _choice(able)]) + "\n"


def _refused(found: Sequence[AdvisedFormat]) -> list[str]:
    """A line for each reason."""
    names: dict[str, list[str]] = {}
    for one in found:
        if one.refusal:
            names.setdefault(one.refusal, []).append(one.name)
    return [f"{', '.join(each)}: {why}" for why, each in names.items()]


def _cells(one: AdvisedFormat) -> tuple[str, ...]:
    measured = (one.decode, one.prefill, one.seconds)
    figures = ["" if x is None else f"{x:.3g}" for x in measured]
    against = None if one.figures is None else one.figures.against
    kld = "" if against is None else f"{against.kld.value:.4f}"
    return (one.name, format_size(one.n_bytes), *figures, kld)


def _choice(able: Sequence[AdvisedFormat]) -> str:
    best = choice(able)
    if best is None:
        return "nothing serves this load here: more memory, fewer requests, or shorter ones"
    if best.name == AS_IT_IS:
        return "take it as it is: no other format is faster by more than a twentieth"
    own = next((x for x in able if x.name == AS_IT_IS), None)
    why = ["the model as it is does not serve" if own is None else _gain(best, own)]
    if best.figures is None:
        how = "--text self" if best.is_made else "kvasir evaluate FILE --reference MODEL"
        why.append(f"how far it is from the model is not measured: {how} says")
    return f"take {best.name}: {'; '.join(why)}\n  {best.command}"


def _gain(best: AdvisedFormat, own: AdvisedFormat) -> str:
    assert best.decode and own.decode and best.prefill and own.prefill
    return (
        f"decode {best.decode / own.decode:.2f}x, prefill {best.prefill / own.prefill:.2f}x, "
        f"{best.n_bytes / own.n_bytes:.2f}x the bytes of the model as it is"
    )
