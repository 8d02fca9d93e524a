"""The merges of a vocabulary whose file leaves them out, as SentencePiece's do."""

from __future__ import annotations

from collections.abc import Sequence


def merges_by_score(tokens: Sequence[str], order: Sequence[int]) -> list[tuple[str, str]]:
    """All ways to split the tokens ``order`` into two of ``tokens``, in that order, then by the ids
    of the halves: SentencePiece makes the best union first.

    ``tokens`` are distinct, fewer than 2^21.
    """
    # Imported for who needs it: most files have their merges, and NumPy takes 0.1 s and 20 MB.
    from kvasir.tokenizer.cuts import cuts_of

    return cuts_of(tokens, order)
