"""What a server holds in memory beyond the weights that it maps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil

from kvasir.bench.fingerprint import Meter
from kvasir.bench.report import report
from kvasir.bench.start import flags, run_once, running_server
from kvasir.checkpoints.loaded import load_model
from kvasir.config.options import EngineOptions
from kvasir.exec.cpu.packing import SUFFIX

LIMIT_BYTES = 150 * 10**6
LIMIT_BYTES_PER_TOKEN = 500
"""For each entry of the vocabulary."""
KV_BYTES, MODEL_LEN = 64 * 2**20, 512
SETTLE_SECONDS = 10.0


def measure_memory(options: EngineOptions) -> dict[str, Any]:
    """The report of a server that has answered one request, packed weights kept from a run before,
    with so little KV memory that all of it has its pages soon. Without huge pages, so that weights
    are those of a mapped file, which can be told from other memory.

    ``resident`` and ``proportional`` (pages shared by n processes count 1/n) are the bytes of each
    process, ``weights`` those in mapped files of weights. ``beyond_weights``, resident without
    these and the KV memory, still holds the arena; small models and ``--packed-cache off`` keep
    their weights in it too. No ceilings: nothing is timed.
    Raises KvasirError when a process fails.
    """
    loaded = load_model(options.model, options.mmproj)
    model = str(loaded.source.origin)
    words = [*flags(options), "--kv-memory", str(KV_BYTES), "--max-model-len", str(MODEL_LEN)]
    words += ["--huge-pages", "none"]
    files = weight_files(loaded.source.path)
    run_once(model, words)
    with Meter() as meter, running_server(model, words) as server:
        server.first_token()
        api = psutil.Process(server.process.pid)
        (engine,) = api.children()
        settle(engine)
        processes = {"api": memory_of(api, files), "engine": memory_of(engine, files)}
    beyond = sum(found["resident"] - found["weights"] for found in processes.values()) - KV_BYTES
    limit = LIMIT_BYTES + LIMIT_BYTES_PER_TOKEN * loaded.config.vocab_size
    source = {"model": loaded.source.name, "weights_hash": loaded.source.content_hash}
    results = {"processes": processes, "beyond_weights": beyond, "limit": limit}
    results["foreign"] = meter.foreign
    return report("memory", {**source, "options": words}, results)


def settle(process: psutil.Process) -> None:
    """Returns when ``process`` has not grown for half a second, or after ``SETTLE_SECONDS``."""
    before, deadline = 0, time.monotonic() + SETTLE_SECONDS
    while (now := process.memory_info().rss) != before and time.monotonic() < deadline:
        before = now
        time.sleep(0.5)


def weight_files(model: Path) -> frozenset[str]:
    """The file, or those of the folder, as /proc names them: absolute, without links."""
    found = model.iterdir() if model.is_dir() else (model,)
    return frozenset(str(path.resolve()) for path in found)


def memory_of(process: psutil.Process, files: frozenset[str]) -> dict[str, int]:
    """Bytes of one process by /proc/PID/smaps; ``huge`` are those in huge pages."""
    maps = process.memory_maps()
    return {
        "resident": sum(entry.rss for entry in maps),
        "proportional": sum(entry.pss for entry in maps),
        "huge": _huge_bytes(process.pid),
        "weights": sum(entry.rss for entry in maps if _holds_weights(entry.path, files)),
    }


def _huge_bytes(pid: int, proc: Path = Path("/proc")) -> int:
    """Anonymous and of files."""
    lines = (proc / str(pid) / "smaps_rollup").read_text(encoding="ascii").splitlines()
    words = (line.split() for line in lines)
    names = ("AnonHugePages:", "FilePmdMapped:")
    return sum(1024 * int(found[1]) for found in words if found[0] in names)


def _holds_weights(path: str, files: frozenset[str]) -> bool:
    return path.endswith(SUFFIX) or path in files
