"""Gemma 4: heads of layers, whose keys and values a layer reads, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvasir.checkpoints import config_from
from kvasir.checkpoints.loaded import load_model, model_facts
from kvasir.config.kvgroups import divide_layers
from kvasir.core.errors import ModelError
from kvasir.exec.cpu.kvmem import KVMemory
from kvasir.models import ModelConfig
from kvasir.weights.source import open_model
from tests import tiny
from tests.loading import load, sizes_for
from tests.tiny import TinyModel
from tests.tiny_gemma import TYPES, gemma4, gemma4_moe, gemma4_saved

_WRITERS: dict[str, Callable[[TinyModel, Path], Path]] = {
    "hf": tiny.write_hf,
    "gguf": lambda model, folder: tiny.write_gguf_model(model, folder / "m.gguf"),
}


def read(model: TinyModel, folder: Path, kind: str = "hf") -> ModelConfig:
    return config_from(open_model(_WRITERS[kind](model, folder)))


@pytest.mark.parametrize("kind", _WRITERS)
def test_layers(kind: str, tmp_path: Path) -> None:
    """Heads by what a layer sees; the last two read the last that see as much, with a wide MLP."""
    layers = read(gemma4(), tmp_path, kind).layers
    assert [(x.head_dim, x.n_kv_heads, x.window) for x in layers] == [(16, 2, 8), (32, 2, 0)] * 3
    assert [x.source for x in layers] == [None, None, None, None, 2, 3]
    assert [x.ffn_size for x in layers] == [64] * 4 + [128] * 2
    assert not any(x.keys_are_values for x in layers)


@pytest.mark.parametrize("kind", _WRITERS)
def test_layers_with_experts(kind: str, tmp_path: Path) -> None:
    layers = read(gemma4_moe(), tmp_path, kind).layers
    assert [x.n_kv_heads for x in layers] == [2, 1] * 3
    assert [x.keys_are_values for x in layers] == [False, True, False, True, False, False]
    assert all(x.experts is not None and x.ffn_size == 32 for x in layers)
    assert [x.experts.shared_size for x in layers if x.experts] == [64] * 4 + [128] * 2


def test_a_saved_folder_says_heads_layer_by_layer(tmp_path: Path) -> None:
    said, saved = read(gemma4_moe(), tmp_path / "said"), read(gemma4_saved(), tmp_path / "saved")
    assert saved == said


@pytest.mark.parametrize("own", [{"01": {"head_dim": 32}}, {"01": {"sinks": 1}}, {"x": {}}, 7])
def test_what_no_reader_knows_of_a_layer_is_refused(own: object, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"per_layer_config is .*, expected "):
        read(gemma4(per_layer_config=own), tmp_path)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"layer_types": TYPES[1:] + TYPES[:1]}, "layer_types is .* expected none there"),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers is 5, expected fewer: "),
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers is 6, expected at most 5"),
        ({"vocab_size_per_layer_input": 300}, "is 300, expected at least the vocabulary of 320"),
        ({"global_head_dim": 33}, "global_head_dim is 33, expected an even number"),
        ({"per_layer_config": {"1": {"head_dim": 33}}}, "is 33, expected an even number"),
        ({"rope_parameters": None}, "rope_parameters: type is missing"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all', expected"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    change: dict[str, object], error: str, tmp_path: Path
) -> None:
    model = gemma4()
    with pytest.raises(ModelError, match=error):
        read(replace(model, config={**model.config, **change}), tmp_path)


def test_memory_is_for_layers_that_write(tmp_path: Path) -> None:
    """Two with windows and heads of 16, two without and heads of 32; 2 KV heads each."""
    facts = model_facts(load_model(str(tiny.write_hf(gemma4(), tmp_path))))
    assert facts.windows == (8, 0, 8, 0)
    assert facts.kv_layers == ((64, 4), (128, 4)) * 2
    assert (facts.kv_values_per_token, facts.kv_vectors_per_token) == (384, 16)
    groups = divide_layers(facts.windows, 768, 16, 512, (), (128, 256, 128, 256))
    assert [(x.window, x.n_layers, x.block_bytes) for x in groups] == [(0, 2, 8192), (8, 2, 4096)]


def test_groups_hold_what_the_executor_takes(tmp_path: Path) -> None:
    model = load(tiny.write_hf(gemma4(), tmp_path), "bfloat16")
    memory = KVMemory.allocate(model.program.kv, sizes_for(model.config))
    assert [spec.layer for spec in model.program.kv] == [0, 1, 2, 3]
    assert memory.groups[0].shape[1] == 16 * 2 * 384


def test_keys_of_layers_that_write_none_are_left_unread(tmp_path: Path) -> None:
    """Checkpoints have them."""
    model = gemma4()
    part = "model.layers.4.self_attn"
    shapes = {"k_proj": (32, 64), "v_proj": (32, 64), "k_norm": (16,)}
    more = {f"{part}.{x}.weight": tiny.uniform(x, shape, 1.0) for x, shape in shapes.items()}
    load(tiny.write_hf(replace(model, tensors={**model.tensors, **more}), tmp_path / "shared"))
    own = {f"{part.replace('4', '3')}.v_norm.weight": tiny.uniform("v", (32,), 1.0)}
    with pytest.raises(ModelError, match="v_norm"):
        load(tiny.write_hf(replace(model, tensors={**model.tensors, **own}), tmp_path / "own"))
