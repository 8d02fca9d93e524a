"""A model that sees, opened for tests: its bundle with the tower, and requests with images."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from kvasir.checkpoints import build_program, ignorable
from kvasir.checkpoints.loaded import LoadedModel, load_model
from kvasir.checkpoints.tower_weights import build_tower
from kvasir.core.request import EngineRequest
from kvasir.core.sizes import EngineSizes
from kvasir.core.tiles import CHANNELS, Canvas, Media, media_at
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.exec.cpu.passes import lower_passes
from kvasir.exec.reference import ReferenceExecutor, load_weights
from kvasir.ir.bundle import Bundle
from kvasir.ir.pieces import TowerPieces
from kvasir.ir.pool import with_pool
from kvasir.models.family import PixtralTowerSpec
from kvasir.timing.towers import TowerCosts
from kvasir.weights.bind import Binding, bind
from tests.native import BEST


class Crawling(TowerCosts):
    """Every piece is expected to take so many seconds, whatever is measured."""

    def __init__(self, pieces: TowerPieces, each: float = 0.03) -> None:
        super().__init__(pieces)
        self._each = each

    def seconds(self, flops: float) -> float:
        return self._each


@dataclass(frozen=True, slots=True)
class Seeing:
    model: LoadedModel
    bundle: Bundle
    binding: Binding

    @classmethod
    def open(cls, folder: Path, dtype: str, kv_dtype: str) -> Seeing:
        model = load_model(str(folder))
        own = model.tower
        assert own is not None
        raw, tower = build_program(model.config, max_positions=128), build_tower(own)
        binding = bind(raw, model.source, ignorable(model.config))
        more = bind(tower, model.eyes or model.source, lambda tensor: not own.has(tensor))
        binding = replace(binding, weights={**binding.weights, **more.weights})
        formats = binding.formats()
        program = lower_passes(raw, dtype=dtype, formats=formats, kv_dtype=kv_dtype)
        lowered = tower.map(lambda x: lower_passes(x, dtype=dtype, formats=formats, kv_dtype="f32"))
        return cls(model, replace(with_pool(program), tower=lowered), binding)

    @property
    def pieces(self) -> TowerPieces:
        assert self.bundle.tower is not None
        return TowerPieces.of(self.bundle.tower)

    def cpu(self, sizes: EngineSizes, threads: int = 1, level: str = BEST) -> CpuExecutor:
        settings = CpuSettings(threads, level, hashes=True)
        return CpuExecutor(self.bundle, self.binding, sizes, settings)

    def reference(self, sizes: EngineSizes) -> ReferenceExecutor:
        return ReferenceExecutor(self.bundle, load_weights(self.bundle, self.binding), sizes)

    def tile(self, start: int, seed: int) -> Media:
        """Random pixels, the same for each seed; of tiles of any size, and of canvases, one of a
        few."""
        assert self.model.tower is not None
        tile, rng = self.model.tower.tile, random.Random(seed)
        if tile.newline and seed % 4:
            n, across, lines, columns = rng.choice([(2, 2, 2, 6), (2, 1, 5, 4), (4, 2, 4, 3)])
            pixels, canvas = rng.randbytes(n * tile.n_bytes), Canvas(across, 1, 0)
            made = media_at(start, lines * columns, pixels, columns, canvas=canvas)
            assert tile.fits(made)
            return made
        if tile.size:
            return media_at(start, tile.n_tokens, rng.randbytes(tile.n_bytes))
        shapes = [(4, 2), (6, 3), (6, 2), (3, 1), (10, 5)]
        n, columns = rng.choice([x for x in shapes if x[0] <= tile.n_tokens])
        breaks = int(isinstance(self.model.tower.spec, PixtralTowerSpec))
        pixels = rng.randbytes(CHANNELS * n * tile.unit**2)
        return media_at(start, n + breaks * (n // columns), pixels, columns, breaks)

    def with_images(
        self, request: EngineRequest, places: Sequence[int], seeds: Sequence[int], token: int
    ) -> EngineRequest:
        """``request`` with tiles in its prompt, each before the token of its place."""
        prompt: list[int] = []
        media: list[Media] = []
        images = dict(zip(places, seeds, strict=True))
        for i, own in enumerate((*request.prompt, None)):
            if i in images:
                media.append(self.tile(len(prompt), images[i]))
                prompt += [token] * media[-1].n_tokens
            if own is not None:
                prompt.append(own)
        return replace(request, prompt=tuple(prompt), media=tuple(media))
