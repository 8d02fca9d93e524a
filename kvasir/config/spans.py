"""Room for tokens of images that see each other, which one step computes."""

from __future__ import annotations

from dataclasses import replace

from kvasir.core.errors import ConfigError
from kvasir.core.groups import KVGroup


def span_step(span: int, n_tokens: int, n_seqs: int, model: str, *, is_asked: bool) -> int:
    """``n_tokens``, or as many as hold ``span`` tokens and one of each other request. Raises
    ConfigError where fewer were asked for."""
    least = span + n_seqs if span else 0
    if n_tokens < least and is_asked:
        raise ConfigError(
            f"max_num_batched_tokens {n_tokens} is less than {least}: {model} computes the {span} "
            f"tokens of an image in one step, beside one of each of {n_seqs} requests: raise it, "
            "or lower --max-num-seqs"
        )
    return max(n_tokens, least)


def in_spans(groups: tuple[KVGroup, ...], span: int) -> tuple[KVGroup, ...]:
    """``groups`` of which windows hold what a step of ``span`` tokens sees."""
    return tuple(
        replace(x, span=max(1, span)) if x.window and not x.state_bytes else x for x in groups
    )
