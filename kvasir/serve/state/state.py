"""All that outlives a request, as one value."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvasir.config.serving import ServeOptions
from kvasir.serve.state.batches import Batches
from kvasir.serve.state.chats import Chats
from kvasir.serve.state.conversations import Conversations
from kvasir.serve.state.entries import Quota
from kvasir.serve.state.files import Files
from kvasir.serve.state.progress import SparseProgress
from kvasir.serve.state.repeats import Repeats
from kvasir.serve.state.responses import Responses
from kvasir.serve.state.store import Store

MEMORY_ENTRIES, MEMORY_BYTES = 1_000, 2**30
"""Of all keys together, without a folder."""
LASTING_ENTRIES, LASTING_BYTES = 100_000, 16 * 2**30
"""Of each key, with one."""


class State(msgspec.Struct, frozen=True):
    store: Store
    files: Files
    batches: Batches
    progress: SparseProgress
    responses: Responses
    chats: Chats
    conversations: Conversations
    repeats: Repeats


def open_state(options: ServeOptions, *, follows: bool = False) -> State:
    """``follows``: a server that has the state gives it up. Raises ConfigError."""
    path = None if options.state_dir is None else Path(options.state_dir)
    store = Store(path, quota_of(options), follows=follows)
    files = Files(store, max_bytes=options.max_file_bytes, days=options.state_days)
    days = options.state_days
    conversations = Conversations(store, days)
    return State(
        store=store,
        files=files,
        batches=Batches(store, files, days),
        progress=SparseProgress(store),
        responses=Responses(store, conversations, days),
        chats=Chats(store, days),
        conversations=conversations,
        repeats=Repeats(store),
    )


def quota_of(options: ServeOptions) -> Quota:
    if options.state_dir is not None:
        return Quota(options.state_entries or LASTING_ENTRIES, options.state_bytes or LASTING_BYTES)
    entries = options.state_entries or MEMORY_ENTRIES
    size = options.state_bytes or MEMORY_BYTES
    return Quota(entries, size, entries, size)
