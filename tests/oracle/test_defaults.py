"""What holds in a config.json that says the sizes alone is what ``transformers``' class has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kvasir.formats.mapped import TensorTable
from kvasir.models import ModelConfig, config_from
from kvasir.models.families import FAMILIES
from kvasir.models.family import Family
from kvasir.weights.source import ModelSource
from tests.oracle.cases import GOLDEN_MODELS

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

KINDS = {
    str(config["architectures"]): str(config["model_type"])
    for config in (make().config for make in GOLDEN_MODELS.values())
}


def read(config: Mapping[str, object]) -> ModelConfig:
    source = ModelSource(Path("model"), "hf", "model", config, TensorTable({}))
    return replace(config_from(source), unread=())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_defaults(family: Family) -> None:
    transformers = pytest.importorskip("transformers", reason="make test-oracle")
    named = {"architectures": list(family.architectures)}
    kind = KINDS[str(named["architectures"])]
    full = transformers.AutoConfig.for_model(kind).to_dict() | named
    needed = {field.hf for field in family.fields.values() if field.hf and field.default is None}
    said = {
        name: value
        for name, value in full.items()
        if name in needed - {"layer_types", "no_rope_layers"}
    }
    assert read(said | named) == read(full)
