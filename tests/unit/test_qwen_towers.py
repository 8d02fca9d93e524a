"""Towers of Qwen: no name, size or flag of one can be altered unnoticed, and what fits none is
refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvasir.checkpoints import tower
from kvasir.checkpoints.loaded import load_model
from kvasir.checkpoints.tower import read_tower, seeing_family
from kvasir.checkpoints.tower_weights import build_tower
from kvasir.core.errors import ModelError
from kvasir.formats.mapped import TensorTable
from kvasir.ir.printer import render
from kvasir.models.families import FAMILIES
from kvasir.models.family import Family, QwenTowerSpec
from kvasir.vision.processor import slicing_of
from kvasir.weights.source import ModelSource, open_model
from tests import tiny_qwen_vl
from tests.tiny import TinyModel

MODELS: dict[str, Callable[[], TinyModel]] = {
    "qwen3_vl": tiny_qwen_vl.qwen3_vl,
    "qwen2_5_vl": tiny_qwen_vl.qwen2_5_vl,
    "qwen2_vl": tiny_qwen_vl.qwen2_vl,
}


def altered(spec: QwenTowerSpec) -> Iterator[tuple[str, QwenTowerSpec]]:
    for name, tensor in spec.names.items():
        yield name, replace(spec, names={**spec.names, name: f"other.{tensor}"})
    for name, size in spec.sizes.items():
        other = (size + 1) ** 2 if name == "num_position_embeddings" else 2 * size
        yield name, replace(spec, sizes={**spec.sizes, name: other})
    for name in ("gated", "qkv_bias", "o_bias", "mlp_bias", "both_ways", "parallel"):
        flags = {name: not getattr(spec.block, name)}
        yield name, replace(spec, block=replace(spec.block, **flags))
    for name in spec.keys:
        yield f"key of {name}", replace(spec, keys={**spec.keys, name: "other"})
    yield "norm", replace(spec, block=replace(spec.block, norm="layer"))
    yield "patch_bias", replace(spec, patch_bias=not spec.patch_bias)
    yield "taps", replace(spec, taps=(1,))
    yield "full", replace(spec, full=(1, 2))
    yield "encoders", replace(spec, encoders=("other.",))
    yield "of_gguf", replace(spec, of_gguf=True)


def seen(source: ModelSource, family: Family, bare: Path) -> list[str]:
    """Of a model whose files say all, and of one whose files say the least."""
    config = {"architectures": list(family.architectures), "vision_config": {}}
    try:
        programs = build_tower(read_tower(source, 64)).programs
        found = read_tower(ModelSource(bare, "hf", "bare", config, TensorTable({})), 0)
        return [*map(render, programs), repr(found)]
    except (ModelError, KeyError, ValueError) as error:
        return [repr(error)]


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_altered_unnoticed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_model(tiny_qwen_vl.write(MODELS[name](), tmp_path / "model"))
    family = seeing_family(source)
    assert family is not None and isinstance(family.tower, QwenTowerSpec)
    patch = {"patch_size": family.tower.sizes["patch_size"]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(patch))
    expected = seen(source, family, tmp_path)
    assert len(expected) > 2
    for what, spec in altered(family.tower):
        changed = replace(family, tower=spec)
        table = tuple(changed if each is family else each for each in FAMILIES)
        monkeypatch.setattr(tower, "FAMILIES", table)
        assert seen(source, changed, tmp_path) != expected, what


WRONG: dict[str, tuple[dict[str, object], str]] = {
    "sizes": ({"out_hidden_size": 48}, "the 64 numbers of an embedding"),
    "heads": ({"num_heads": 5}, "multiple of 4 x num_heads"),
    "table": ({"num_position_embeddings": 26}, "a square"),
    "taps": ({"deepstack_visual_indexes": [1, 0]}, "ascending numbers of the 3 layers"),
    "late": ({"deepstack_visual_indexes": [3]}, "ascending numbers of the 3 layers"),
    "word": ({"deepstack_visual_indexes": "all"}, "ascending numbers of the 3 layers"),
    "act": ({"hidden_act": "relu"}, "gelu_pytorch_tanh"),
    "channels": ({"in_channels": 4}, "expected 3"),
    "patch": ({"patch_size": 8}, "the 8 of vision_config"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_fits_no_tower_is_refused(name: str, tmp_path: Path) -> None:
    fields, why = WRONG[name]
    model = tiny_qwen_vl.qwen3_vl({**tiny_qwen_vl.VISION, **fields})
    with pytest.raises(ModelError, match=why):
        load_model(str(tiny_qwen_vl.write(model, tmp_path)))


def test_a_processor_that_reads_in_another_way_is_refused(tmp_path: Path) -> None:
    folder = tiny_qwen_vl.write(tiny_qwen_vl.qwen3_vl(), tmp_path, do_resize=False)
    with pytest.raises(ModelError, match="do_resize is False"):
        slicing_of(open_model(folder))


def test_sections_that_are_not_all_pairs_are_refused(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "mrope_section": [6, 5, 4]}
    model = tiny_qwen_vl.qwen3_vl()
    text = {**dict(model.config["text_config"]), "rope_scaling": rope}  # type: ignore[call-overload]
    folder = tiny_qwen_vl.write(model, tmp_path)
    (folder / "config.json").write_text(json.dumps({**model.config, "text_config": text}))
    with pytest.raises(ModelError, match="three sizes that add up to 16 pairs"):
        load_model(str(folder))
