"""What ends an answer: ids, strings and regular expressions."""

from __future__ import annotations

from kvasir.core.errors import RequestError
from kvasir.validation.checks import check_ids, check_list, check_text
from kvasir.validation.names import Names
from kvasir.validation.regex import MAX_PATTERN_BYTES, MAX_PATTERNS, automaton
from kvasir.validation.sampling import SamplingParams

MAX_STOP_STRINGS = 32
MAX_STOP_BYTES = 4096
"""UTF-8 bytes of one stop string."""
MAX_STOP_IDS = 128


def check_stops(params: SamplingParams, vocab_size: int, names: Names) -> None:
    """Raises RequestError (400)."""
    if params.stop_token_ids is not None:
        ids = check_list("stop_token_ids", params.stop_token_ids, "token ids", MAX_STOP_IDS)
        check_ids("stop_token_ids", ids, vocab_size)
    strings, patterns = stop_strings(params), stop_patterns(params)
    stop = names.of("stop")
    for string in check_list(stop, strings, "strings", MAX_STOP_STRINGS):
        check_text(stop, string, MAX_STOP_BYTES)
    for pattern in check_list("stop_regex", patterns, "patterns", MAX_PATTERNS):
        check_text("stop_regex", pattern, MAX_PATTERN_BYTES)
    for name, found in ((stop, strings), ("stop_regex", patterns)):
        if found and not params.detokenize:
            raise RequestError(
                f"{name} needs text: leave detokenize true or use stop_token_ids", param=name
            )
    if patterns:
        automaton(patterns)


def stop_strings(params: SamplingParams) -> tuple[str, ...]:
    """``stop`` as a tuple, whatever form the caller wrote."""
    return _several("stop", params.stop)


def stop_patterns(params: SamplingParams) -> tuple[str, ...]:
    """``stop_regex`` as a tuple."""
    return _several("stop_regex", params.stop_regex)


def _several(name: str, written: str | list[str] | None) -> tuple[str, ...]:
    if written is None:
        return ()
    if isinstance(written, str):
        return (written,)
    if not isinstance(written, list | tuple):
        raise RequestError(f"{name} must be a string or a list of strings", param=name)
    return tuple(written)
