"""Whatever stands in a config: a model that can be built, or an error that names its field."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.checkpoints import build_program, config_from
from kvasir.core.errors import ModelError
from kvasir.formats.mapped import TensorTable
from kvasir.ir.verify import verify
from kvasir.weights.source import ModelSource
from tests.oracle.cases import GOLDEN_MODELS

MODELS = tuple(make() for make in GOLDEN_MODELS.values())
NUMBERS = st.integers(-2, 40) | st.integers() | st.floats() | st.booleans()
WORDS = st.sampled_from(["linear", "llama3", "default", "yarn", "silu", "gelu", "full_attention"])
SCALARS = st.none() | NUMBERS | WORDS | st.text(max_size=8)
ROPE_FIELDS = st.sampled_from(["type", "rope_type", "factor", "rope_theta", "low_freq_factor"])
VALUES = SCALARS | st.lists(SCALARS, max_size=4) | st.dictionaries(ROPE_FIELDS, SCALARS, max_size=4)
EXTRA = ("rope_scaling", "rope_parameters", "sliding_window", "attention_bias", "layer_types")


@st.composite
def configs(draw: st.DrawFn) -> Mapping[str, Any]:
    """A tiny model's config with up to three fields replaced or removed."""
    config = dict(draw(st.sampled_from(MODELS)).config)
    for field in draw(st.lists(st.sampled_from(sorted({*config, *EXTRA})), max_size=3)):
        if draw(st.booleans()):
            config[field] = draw(VALUES)
        else:
            config.pop(field, None)
    return config


@settings(max_examples=200, deadline=None)
@given(configs())
def test_a_config_is_built_or_refused(config: Mapping[str, Any]) -> None:
    source = ModelSource(Path("model"), "hf", "model", config, TensorTable({}))
    try:
        read = config_from(source)
    except ModelError as error:
        assert "config.json" in error.message
        return
    verify(build_program(read, max_positions=4), "raw")
