"""Lookups whose index of texts is the native core's."""

from __future__ import annotations

from kvasir import _native
from kvasir.config.speculation import Speculation
from kvasir.speculate.lookup import Lookup


def native_lookup(asked: Speculation) -> Lookup:
    """The same drafts as of ``speculate.text.PlainIndex``."""
    return Lookup(asked.min_match, asked.max_match, asked.n_stored, _native.TextIndex)
