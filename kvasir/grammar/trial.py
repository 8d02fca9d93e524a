"""Compiles grammars that nobody has compiled before, in a process that may die of it.

``python -m kvasir.grammar.trial MODEL N_IDS MEGABYTES`` reads lines of JSON, each the text of a
grammar, and answers each with a line: the ``GrammarRefusal``, or null. A grammar that takes more
memory ends the process; one that takes too long is for the reader to end. Ends with its input.
"""

from __future__ import annotations

import json
import os
import resource
import sys

import numpy as np
from msgspec.json import encode

from kvasir.core.params import mask_words
from kvasir.grammar.errors import GrammarRefusal, InvalidGrammar, UnsupportedSchema
from kvasir.grammar.masks import check_compiles
from kvasir.grammar.matcher import GrammarTokens, load_tokens

NICE = 5
"""Steps of the engine go before what a client sends."""


def main(path: str, n_ids: int, megabytes: int) -> None:
    tokens = load_tokens(path, n_ids)  # somebody waits for it: on a busy machine half a minute
    os.nice(NICE)
    _limit(megabytes * 2**20)
    bits = np.zeros(mask_words(n_ids), np.uint32)
    print("null", flush=True)
    for line in sys.stdin:
        print(encode(_tried(tokens, json.loads(line), bits)).decode(), flush=True)


def _tried(
    tokens: GrammarTokens, text: str, bits: np.ndarray[tuple[int], np.dtype[np.uint32]]
) -> GrammarRefusal | None:
    try:
        check_compiles(tokens, text, bits)
    except UnsupportedSchema as error:
        return GrammarRefusal(error.message, error.keyword)
    except InvalidGrammar as error:
        return GrammarRefusal(error.message)
    return None


def _limit(n_bytes: int) -> None:
    """Of address space, beyond what is used now."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + n_bytes, used + n_bytes))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
