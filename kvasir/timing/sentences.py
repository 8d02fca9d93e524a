"""Why a request took as long as it did, in words: what happened, and what helps."""

from __future__ import annotations

from collections.abc import Mapping

from kvasir.timing.why import EnginePlaces, Why

SENTENCES: Mapping[str, tuple[str, str]] = {
    "grammar": (
        "its schema, grammar or expression was compiled, or the next mask of it made",
        "send the same one again: it is compiled once; or make it smaller",
    ),
    "before": (
        "it was read, rendered and tokenized",
        "shorten the prompt",
    ),
    "load": (
        "the model was loaded, or its engine was started, woken or replaced",
        "keep the engine awake with a longer --sleep-idle-seconds; the log says why one ended",
    ),
    "slots": (
        "it waited for a place: all {n_slots} were taken",
        "raise --max-num-seqs, or ask with fewer choices at a time",
    ),
    "blocks": (
        "it waited for KV blocks: fewer were free than its prompt needs",
        "raise --kv-memory, store keys and values smaller (--kv-cache-dtype int8), or shorten "
        "prompts and max_tokens",
    ),
    "disk": (
        "what --kv-disk has of its prompt was read",
        "put --kv-disk on a faster disk, or keep more in memory (--kv-memory)",
    ),
    "prompt": (
        "its own prompt was computed",
        "begin prompts alike, since what they share is computed once; or shorten it",
    ),
    "turn": (
        "others were served first",
        "ask with priority_class realtime, or with a key of its own",
    ),
    "others_prompts": (
        "prompts of others were computed in its steps",
        "lower --itl-target-ms: chunks of prompts become smaller beside answers",
    ),
    "others_answers": (
        "answers of others were computed in its steps",
        "lower --max-num-seqs, or give the server more cores (--threads)",
    ),
    "preemption": (
        "it gave its KV blocks to another and was computed again",
        "raise --kv-memory, or keep what it had with --kv-disk",
    ),
    "restart": (
        "the engine ended or was replaced, and another computed it again",
        "the server's log says why the engine ended",
    ),
    "machine": (
        "its steps took longer than steps like them do: somebody else had the CPU",
        "look for what runs beside the server (kvasir doctor), or lower --threads",
    ),
    "engine": (
        "nothing of it was computed between its steps",
        "see /v1/timeline for what the engine did meanwhile",
    ),
    "reader": (
        "it was computed, and waited for its client, which read slowly",
        "read the stream apart from what is done with it; look for a proxy or a terminal that "
        "stands still; ask for fewer logprobs",
    ),
}
"""Of each cause: what happened, and what helps."""
NOTHING = "Nothing slowed it down much: it took {seconds}, and alone would take about {alone}."


def sentence(why: Why, places: EnginePlaces) -> tuple[str, str]:
    """In words: why, and what to do; the latter empty where nothing needs to be done."""
    if why.cause is None:
        told = NOTHING.format(seconds=_told(why.seconds), alone=_told(why.alone))
        return told, ""
    (part,) = (x for x in why.parts if x.cause == why.cause)
    what, remedy = SENTENCES[why.cause]
    what = what.format(n_slots=places.n_slots)
    return f"{_told(part.seconds)} of {_told(why.seconds)}: {what}.", remedy


def _told(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
