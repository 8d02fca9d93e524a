"""Towers in files beside GGUF files: tiles, tokens and logits are those of the folder."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

from kvasir.checkpoints.loaded import load_model, model_facts
from kvasir.checkpoints.tower_weights import build_tower
from kvasir.config.resolved import ModelFacts
from kvasir.core.errors import ModelError
from kvasir.core.plan import SlotOpen
from kvasir.exec.reference import ReferenceExecutor
from kvasir.serve.text import load_text
from kvasir.vision.reader import tiles_in
from kvasir.weights.bind import bind
from kvasir.weights.source import open_model
from tests import (
    gguf_mmproj,
    tiny,
    tiny_gemma_vision,
    tiny_internvl,
    tiny_pixtral,
    tiny_qwen_vl,
    tiny_vision,
)
from tests.gguf_writer import write_gguf
from tests.loading import GREEDY, sizes_for
from tests.planned import placed, step_plan
from tests.seeing import Seeing
from tests.tiny import TinyModel

NEAR = 2e-6
"""Of the largest logit: where a constant of a file is float32."""
SAID: dict[str, object] = {
    "query_pre_attn_scalar": 32,
    "attn_logit_softcapping": None,
}


@dataclass(frozen=True)
class Kind:
    make: Callable[[], TinyModel]
    write: Callable[..., Path]
    image: int


def acting(model: TinyModel, act: str, **more: object) -> TinyModel:
    """With the activation that the file of a tower means, and what it cannot say."""
    said = cast(dict[str, object], model.config["vision_config"])
    vision = {**said, "hidden_act": act, **more}
    return replace(model, config={**model.config, "vision_config": vision})


ROPE = {"rope_theta": 10000.0}
TANH = "gelu_pytorch_tanh"
KINDS = {
    "idefics3": Kind(
        lambda: acting(tiny_vision.smolvlm(), TANH), tiny_vision.write, tiny_vision.IMAGE
    ),
    "idefics3_padded": Kind(
        lambda: acting(tiny_vision.smolvlm(hidden=96), TANH, num_attention_heads=4),
        tiny_vision.write,
        tiny_vision.IMAGE,
    ),
    "gemma3": Kind(
        lambda: acting(tiny_gemma_vision.gemma3_vision(**SAID), TANH),
        tiny_gemma_vision.write,
        tiny_gemma_vision.IMAGE,
    ),
    "internvl": Kind(
        lambda: acting(tiny_internvl.internvl(), "gelu"), tiny_internvl.write, tiny_internvl.IMAGE
    ),
    "internvl_large": Kind(
        lambda: acting(tiny_internvl.internvl_large(), "gelu"),
        tiny_internvl.write,
        tiny_internvl.IMAGE,
    ),
    "pixtral": Kind(
        lambda: acting(tiny_pixtral.pixtral(), "silu", **ROPE),
        tiny_pixtral.write,
        tiny_pixtral.IMAGE,
    ),
    "mistral3": Kind(
        lambda: acting(tiny_pixtral.mistral3(), "gelu", **ROPE),
        tiny_pixtral.write,
        tiny_pixtral.IMAGE,
    ),
    "qwen2_vl": Kind(tiny_qwen_vl.qwen2_vl, tiny_qwen_vl.write, tiny_qwen_vl.IMAGE),
    "qwen2_5_vl": Kind(tiny_qwen_vl.qwen2_5_vl, tiny_qwen_vl.write, tiny_qwen_vl.IMAGE),
    "qwen3_vl": Kind(tiny_qwen_vl.qwen3_vl, tiny_qwen_vl.write, tiny_qwen_vl.IMAGE),
    "qwen3_vl_moe": Kind(tiny_qwen_vl.qwen3_vl_moe, tiny_qwen_vl.write, tiny_qwen_vl.IMAGE),
    "qwen3_5_vl": Kind(tiny_qwen_vl.qwen3_5_vl, tiny_qwen_vl.write, tiny_qwen_vl.IMAGE),
    "mistral3_biases": Kind(
        lambda: acting(tiny_pixtral.mistral3(48, True), "gelu", **ROPE),
        tiny_pixtral.write,
        tiny_pixtral.IMAGE,
    ),
}


def both(
    name: str, path: Path, processor: Mapping[str, object] | None = None, **more: Any
) -> tuple[Path, Path]:
    """A folder, and the files of the same model. ``processor``: fields of its own."""
    kind = KINDS[name]
    folder = kind.write(kind.make(), path / "folder", **(processor or {}))
    return folder, gguf_mmproj.write(kind.make(), folder, path / "files", **more)


def answer(path: Path, image: int) -> tuple[Any, Any]:
    """Ids of a prompt with an image, and logits."""
    seeing, sight = Seeing.open(path, "float32", "f32"), load_text(open_model(path)).sight
    assert sight is not None and sight.placeholders.image == image
    levels = np.random.default_rng(3).integers(0, 256, (20, 26, 3), np.uint8)
    tiles = [tiles_in(Image.fromarray(levels), sight.slicing)]
    found = sight.placeholders.expand([2, 9, image, 30, 31, 7], tiles)
    n = len(found.ids)
    sizes = sizes_for(seeing.model.config, n_seqs=1, max_len=-(-n // 16) * 16)
    blocks = tuple(range(-(-n // 16)))
    row = placed(0, 0, found.ids, (blocks,) * len(sizes.groups), n_logits=n)
    opening = SlotOpen(0, GREEDY, found.ids, media=found.media)
    plan = step_plan(0, [row], (opening,))
    executor: ReferenceExecutor = seeing.reference(sizes)
    return found.ids, executor.trace(plan)["logits"]


@pytest.mark.parametrize("name", KINDS)
def test_answers_are_those_of_the_folder(name: str, tmp_path: Path) -> None:
    folder, file = both(name, tmp_path)
    (ids, expected), (own, found) = (answer(x, KINDS[name].image) for x in (folder, file))
    assert own == ids
    assert np.abs(found - expected).max() <= NEAR * np.abs(expected).max()


def test_names_of_older_files(tmp_path: Path) -> None:
    """The first matrix of an MLP as ``ffn_down``."""
    _, new = both("idefics3", tmp_path / "new")
    _, old = both("idefics3", tmp_path / "old", older=True)
    image = KINDS["idefics3"].image
    assert (answer(new, image)[1] == answer(old, image)[1]).all()


def facts(path: Path, mmproj: str | None = None) -> ModelFacts:
    return model_facts(load_model(str(path), mmproj))


def test_a_file_is_found_beside_the_model(tmp_path: Path) -> None:
    """Or named elsewhere, or not wanted; of several nobody chooses, and another model's is none."""
    _, file = both("gemma3", tmp_path)
    beside = file.parent / "mmproj.gguf"
    seeing = load_model(str(file))
    assert seeing.config.sees and seeing.config.block.spans and seeing.tower is not None
    assert facts(file).span_tokens == tiny_gemma_vision.N_TOKENS
    blind = load_model(str(file), "none")
    assert not blind.config.sees and blind.tower is None
    assert facts(file, "none").weight_bytes < facts(file).weight_bytes
    assert seeing.source.stamp_hash != blind.source.stamp_hash
    other = tmp_path / "mmproj-other.gguf"
    shutil.move(beside, other)
    assert not load_model(str(file)).config.sees
    assert load_model(str(file), str(other)).config.sees
    for name in ("mmproj-a.gguf", "mmproj-b.gguf"):
        shutil.copy(other, file.parent / name)
    assert not load_model(str(file)).config.sees
    (file.parent / "mmproj-b.gguf").unlink()
    assert load_model(str(file)).config.sees
    tiny.write_gguf_model(tiny.llama(hidden_size=32), file.parent / "small.gguf")
    assert open_model(file.parent / "small.gguf").sight is None, "its rows have another width"


def test_a_file_of_another_type_is_left_or_refused(tmp_path: Path) -> None:
    _, file = both("idefics3", tmp_path)
    beside = file.parent / "mmproj.gguf"
    said = {"general.architecture": "clip", "clip.projector_type": "ldp"}
    write_gguf(beside, {**said, "clip.vision.projection_dim": 64}, {})
    assert not load_model(str(file)).config.sees
    with pytest.raises(ModelError, match="type 'ldp' do not run: idefics3, gemma3"):
        load_model(str(file), str(beside))
    with pytest.raises(ModelError, match="no file of a tower"):
        load_model(str(file), str(file))
    with pytest.raises(ModelError, match="has its own tower"):
        load_model(str(tmp_path / "folder"), str(beside))


def test_a_model_beside_another_ones_tower(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that sees nothing is read without it; a file that is named is refused."""
    _, file = both("mistral3", tmp_path / "a")
    plain = tiny.write_gguf_model(tiny.llama(), file.parent / "plain.gguf")
    assert not load_model(str(plain)).config.sees
    assert "no token '[IMG]'" in caplog.text and "read without it" in caplog.text
    with pytest.raises(ModelError, match=r"no token '\[IMG\]'"):
        load_model(str(plain), str(file.parent / "mmproj.gguf"))
    _, file = both("qwen2_5_vl", tmp_path / "b")
    plain = tiny.write_gguf_model(tiny.qwen2(), file.parent / "plain.gguf")
    assert not load_model(str(plain)).config.sees
    with pytest.raises(ModelError, match=r"is of models of qwen2vl, .* is qwen2"):
        load_model(str(plain), str(file.parent / "mmproj.gguf"))


def test_a_broken_file_beside_the_model_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, file = both("idefics3", tmp_path)
    beside = file.parent / "mmproj.gguf"
    beside.write_bytes(beside.read_bytes()[:4000])
    assert not load_model(str(file)).config.sees
    assert str(beside) in caplog.text and "no tower of images" in caplog.text


@pytest.mark.parametrize("name", ["mistral3", "idefics3_padded"])
def test_towers_in_blocks(name: str, tmp_path: Path) -> None:
    """Columns of the matrix that merges patches change places, and those behind heads of 24 numbers
    get zeros."""
    _, plain = both(name, tmp_path / "plain")
    _, blocks = both(name, tmp_path / "blocks", form="Q8_0")
    (ids, expected), (own, found) = (answer(x, KINDS[name].image) for x in (plain, blocks))
    assert own == ids
    assert 0 < np.abs(found - expected).max() <= 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("name", ["gemma3", "internvl", "mistral3", "qwen2_5_vl", "qwen3_vl"])
def test_broken_files_are_refused_by_name(name: str, tmp_path: Path) -> None:
    """Or mean something: bytes of a file's head altered."""
    _, file = both(name, tmp_path)
    mmproj, rng = file.parent / "mmproj.gguf", random.Random(name)
    good, n_refused = mmproj.read_bytes(), 0
    for _ in range(40):
        data = bytearray(good)
        data[rng.randrange(2500)] ^= 1 << rng.randrange(8)
        mmproj.write_bytes(data)
        try:
            model = load_model(str(file), str(mmproj))
            own, eyes = model.tower, model.eyes
            assert own is not None and eyes is not None
            bind(build_tower(own), eyes, lambda tensor, own=own: not own.has(tensor))
        except ModelError as error:
            n_refused += 1
            assert str(file.parent) in error.message
    assert n_refused
