"""What a batch keeps of its input counts, also when the file is deleted."""

from __future__ import annotations

import asyncio

import pytest

from kvasir.core.errors import CapacityError
from kvasir.serve.state import entries
from kvasir.serve.state.batches import Batches, StoredBatch
from kvasir.serve.state.entries import Quota
from kvasir.serve.state.files import Files
from kvasir.serve.state.store import Store

OWNER = b"somebody"
N_BYTES = 10_000


async def begun(batches: Batches) -> StoredBatch:
    """A batch whose file is deleted."""
    files = batches.files
    async with files.upload(OWNER) as upload:
        await upload.write(b"x" * N_BYTES)
        file = await upload.keep("input", "batch", None)
    batch = await batches.create(
        OWNER, file, endpoint="/v1/x", window=("24h", 9), output_seconds=None, metadata=None
    )
    await files.delete(file.id, OWNER)
    return batch


async def used(batches: Batches) -> int:
    return (await batches.store.run(lambda db: entries.used(db, OWNER))).bytes


def test_until_it_ends() -> None:
    store = Store(None, Quota(9, 4 * N_BYTES, 9, 4 * N_BYTES))

    async def run() -> None:
        batches = Batches(store, Files(store, max_bytes=N_BYTES, days=1), 1)
        first, _ = await begun(batches), await begun(batches)
        assert 2 * N_BYTES < await used(batches) < 3 * N_BYTES
        with pytest.raises(CapacityError, match="bytes"):
            await begun(batches)
        await batches.change(first.id, ("validating",), status="in_progress")
        assert await used(batches) > 2 * N_BYTES
        await batches.finish(first.id, "completed", [], None)
        assert N_BYTES < await used(batches) < 3 * N_BYTES
        assert not store.folder.content(first.id).exists()

    asyncio.run(run())
    store.close()
