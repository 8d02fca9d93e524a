"""What a batch keeps counts: of its input, also when the file is deleted, and of its lines."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from kvasir.core.errors import CapacityError
from kvasir.serve.batch.check import InputCheck
from kvasir.serve.state import entries, lines
from kvasir.serve.state.batches import Batches, StoredBatch
from kvasir.serve.state.entries import Quota
from kvasir.serve.state.files import Files
from kvasir.serve.state.lines import BatchLine
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


def line(number: int, n_bytes: int) -> BatchLine:
    return BatchLine(number, str(number), b"", bytes(n_bytes))


def test_lines_count_until_they_go_also_after_a_restart(tmp_path: Path) -> None:
    quota = Quota(9, 4 * N_BYTES)

    async def begin(batches: Batches) -> tuple[str, int]:
        batch = await begun(batches)
        before, few = await used(batches), [line(1, 1000), line(2, 500)]
        await batches.store.run(lambda db: lines.add(db, batch.id, few, quota))
        assert await used(batches) == before + 1500
        await batches.store.run(lambda db: lines.answer(db, batch.id, 1, 200, b"x" * 70))
        assert await used(batches) == before + 1570
        return batch.id, before

    async def go_on(batches: Batches, batch_id: str, before: int) -> None:
        assert await used(batches) == before + 1570
        many = [line(3, 3 * N_BYTES)]
        with pytest.raises(CapacityError, match="bytes"):
            await batches.store.run(lambda db: lines.add(db, batch_id, many, quota))
        assert await used(batches) == before + 1570
        await batches.store.run(lambda db: lines.clear(db, batch_id))
        assert await used(batches) == before

    def opened() -> Batches:
        store = Store(tmp_path / "state", quota)
        return Batches(store, Files(store, max_bytes=N_BYTES, days=1), 1)

    first = opened()
    batch_id, before = asyncio.run(begin(first))
    first.store.close()
    second = opened()
    asyncio.run(go_on(second, batch_id, before))
    second.store.close()


def test_a_batch_whose_lines_have_no_room_fails() -> None:
    """Nothing of it is computed, and nothing is left of its lines."""
    store = Store(None, Quota(9, 4 * N_BYTES, 9, 4 * N_BYTES))
    service: Any = SimpleNamespace(
        state=SimpleNamespace(store=store),
        options=SimpleNamespace(max_body_bytes=N_BYTES),
        caller_of=lambda owner: None,
    )

    async def run() -> None:
        batches = Batches(store, Files(store, max_bytes=N_BYTES, days=1), 1)
        batch = await begun(batches)
        store.folder.content(batch.id).write_bytes(b"{}\n" * 9)
        batch = structs.replace(batch, endpoint="/v1/completions")
        check = InputCheck(service, batch, OWNER, asyncio.Event())

        async def read(number: int, data: bytes) -> BatchLine:
            return line(number, N_BYTES)

        check._reader.read = read  # type: ignore[method-assign]
        await check.run()
        (error,) = check.errors
        assert (error.code, error.line) == ("quota_exceeded", 1)
        assert "raise --state-bytes" in error.message

    asyncio.run(run())
    store.close()
