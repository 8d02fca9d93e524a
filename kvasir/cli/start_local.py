"""Starts a model for ``run`` and ``chat``: the engine process loads its weights while this one
imports and builds what text needs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from kvasir.cli.speaking import Speaker
from kvasir.cli.waiting import waiting
from kvasir.config.controls import one_line
from kvasir.config.options import EngineOptions
from kvasir.config.pixels import pixel_bounds
from kvasir.serve.settle import hurry
from kvasir.serve.spawn import spawn_engine
from kvasir.serve.sync_client import SyncClient
from kvasir.validation.sampling import SamplingParams
from kvasir.weights.default import default_model


class Local(Speaker, Protocol):
    """A model of this machine, one conversation at a time."""

    def complete(self, prompt: str, params: SamplingParams) -> Iterator[str]: ...


def start_local(options: EngineOptions) -> Local:
    """Raises ModelError and ConfigError."""
    model = str(options.model or default_model())
    client = SyncClient(spawn_engine(replace(options, model=model)))
    hurry()
    try:
        # Imported now: the engine process is loading.
        from kvasir.cli.local import LocalModel

        bounds = pixel_bounds(options.mm_processor_kwargs)
        with waiting(f"loading {one_line(Path(model).name)}"):
            return LocalModel(model, client, bounds, options.mmproj)
    except BaseException:
        client.kill()
        raise
    finally:
        gc.enable()
