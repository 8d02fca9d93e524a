"""The fake executor as a backend: there is no model."""

from __future__ import annotations

from kvasir.checkpoints.loaded import LoadedModel
from kvasir.config.hardware import Hardware, probe
from kvasir.config.resolved import EngineConfig, ModelFacts
from kvasir.core.vectors import VectorFacts
from kvasir.exec.backend import Built, Drafter, Wishes, python_settings
from kvasir.exec.fake import VECTOR_SIZE, FakeExecutor

FAKE_FACTS = ModelFacts(
    name="fake",
    vocab_size=256,
    context_length=4096,
    kv_values_per_token=16,
    weight_bytes=0,
    weight_dtype="float32",
    kv_vectors_per_token=2,
    vectors=VectorFacts(VECTOR_SIZE),
)
MISSES = 4
"""Its draft sees one in so many contexts wrongly."""


class FakeBackend:
    settings = staticmethod(python_settings)

    def probe(self) -> Hardware:
        return probe(())

    def open(self, path: str | None, mmproj: str | None = None) -> None:
        """Whatever the path."""

    def facts(self, model: LoadedModel | None) -> ModelFacts:
        return FAKE_FACTS

    def build(
        self,
        model: LoadedModel | None,
        config: EngineConfig,
        wishes: Wishes,
        draft: Drafter | None = None,
    ) -> Built:
        misses = None if config.draft is None else MISSES
        return Built(FakeExecutor(config.sizes, misses=misses), "fake", "fake", "")
