"""Images of Gemma 4 against ``transformers``, live: pixels of its Pillow processor to the bit,
tokens, defaults, and logits in float32."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvasir.checkpoints import build_program
from kvasir.checkpoints.loaded import load_model
from kvasir.checkpoints.tensors import ignorable
from kvasir.checkpoints.tower import read_tower
from kvasir.core.tiles import TileSpec, media_at
from kvasir.exec.tiles import patches
from kvasir.formats.mapped import TensorTable
from kvasir.serve.text import load_text
from kvasir.vision.messages import Uncut
from kvasir.vision.preparing import Scaling
from kvasir.vision.processor import slicing_of
from kvasir.vision.reader import UnfitImage, tiles_of
from kvasir.weights.bind import bind
from kvasir.weights.source import ModelSource, open_model
from tests import tiny_gemma4_vision
from tests.loading import Loaded, reference_logits
from tests.oracle.cases import PROMPTS
from tests.oracle.test_images import BOUND, MODES, image_file, loaded, logits_of
from tests.seeing import Seeing
from tests.tiny import TinyModel

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

SIZES = ((1, 1), (3, 400), (500, 2), (160, 120), (83, 177), (48, 48), (7, 41), (1, 5000))
WAYS = ((4, 3, 8), (16, 3, 70), (5, 2, 280))
"""Pixels of a patch, patches of a row, rows of an image."""
MODELS: dict[str, Callable[[], TinyModel]] = {
    "padded": tiny_gemma4_vision.gemma4_vision,
    "plain": lambda: tiny_gemma4_vision.gemma4_vision(16, False),
    "causal": lambda: tiny_gemma4_vision.gemma4_vision(32, spans=False),
    "experts": lambda: tiny_gemma4_vision.gemma4_vision(experts=True),
}


def processor(monkeypatch: pytest.MonkeyPatch, patch: int, fold: int, most: int) -> Any:
    module = pytest.importorskip(
        "transformers.models.gemma4.image_processing_pil_gemma4", reason="make test-oracle"
    )
    monkeypatch.setattr(module, "_SUPPORTED_SOFT_TOKENS", (most,))
    return module.Gemma4ImageProcessorPil(
        patch_size=patch, pooling_kernel_size=fold, max_soft_tokens=most
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_pixels(way: tuple[int, int, int], mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, fold, most = way
    reads, how = processor(monkeypatch, *way), Scaling(patch * fold, most, 3)
    spec = TileSpec(0, patch, 1, 1 / 255, (0.0,) * 3, (1.0,) * 3)
    for i, size in enumerate(SIZES):
        data = image_file(mode, size, i)
        try:
            found = tiles_of(data, how)
        except UnfitImage:
            with pytest.raises(ValueError, match="0 x 0"):
                reads(loaded(data), return_tensors="np")
            continue
        assert isinstance(found, Uncut)
        given = reads(loaded(data), return_tensors="np")
        n, columns = found.lines * found.columns, found.columns * fold
        assert given["num_soft_tokens_per_image"] == [n]
        media = media_at(0, n * fold**2, found.pixels, columns)
        own = patches(media, spec).reshape(-1, 3, patch**2).transpose(0, 2, 1)
        expected = given["pixel_values"][0][: len(own)]
        assert (own.reshape(expected.shape) == expected).all(), size
        assert given["image_position_ids"][0][len(own) - 1].tolist() == [
            columns - 1,
            found.lines * fold - 1,
        ]


@pytest.mark.parametrize("executor", ["reference", "cpu"])
@pytest.mark.parametrize("name", MODELS)
def test_logits(name: str, executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt with images of other shapes, beyond the windows, and one without any."""
    torch = pytest.importorskip("torch", reason="make test-oracle")
    from transformers import AutoModelForImageTextToText

    folder = tiny_gemma4_vision.write(MODELS[name](), tmp_path)
    seeing, sight = Seeing.open(folder, "float32", "f32"), load_text(open_model(folder)).sight
    assert sight is not None
    files = [
        image_file("RGB", (30, 13), 1),
        image_file("L", (17, 60), 2),
        image_file("L", (9, 9), 3),
    ]
    read = [tiles_of(file, sight.slicing) for file in files]
    reads = processor(monkeypatch, tiny_gemma4_vision.PATCH, 3, tiny_gemma4_vision.MOST)
    oracle = AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    image = tiny_gemma4_vision.IMAGE
    pictured = sight.placeholders.expand([3, 9, image, 30, 31, image, image, 7, 8, 5], read)
    plain = sight.placeholders.expand(list(range(3, 40)), [])
    for found in (pictured, plain):
        ids = torch.tensor([found.ids])
        more: dict[str, Any] = {"mm_token_type_ids": (ids == image).int()}
        if found.media:
            given = reads([loaded(file) for file in files], return_tensors="pt")
            more |= {key: given[key] for key in ("pixel_values", "image_position_ids")}
        with torch.no_grad():
            expected = oracle(input_ids=ids, **more).logits[0].numpy()
        own = logits_of(seeing, executor, found.ids, found.media)
        assert np.abs(own - expected).max() <= BOUND * np.abs(expected).max()


def test_defaults(tmp_path: Path) -> None:
    """What holds of a tower and a processor that say nothing."""
    transformers = pytest.importorskip("transformers", reason="make test-oracle")
    vision = {"model_type": "gemma4_vision"}
    named = {"architectures": ["Gemma4ForConditionalGeneration"]}
    text = {"hidden_size_per_layer_input": 0}
    full = transformers.AutoConfig.for_model("gemma4", vision_config=vision).to_dict()
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": {"a": 1}}))

    def source(config: Mapping[str, object]) -> ModelSource:
        said = {**config, **named, "text_config": text}
        return ModelSource(tmp_path, "hf", "model", said, TensorTable({}))

    bare = source({"vision_config": vision})
    tower = read_tower(bare, 0)
    assert tower == read_tower(source(full), 0)
    module = pytest.importorskip("transformers.models.gemma4.image_processing_pil_gemma4")
    reads = module.Gemma4ImageProcessorPil()
    unit = reads.patch_size * reads.pooling_kernel_size
    assert slicing_of(bare) == Scaling(unit, reads.max_soft_tokens, reads.resample)
    assert tower.tile.factor == reads.rescale_factor and not reads.do_normalize
    tokens = dict(tower.spec.tokens)
    assert tokens == {name: full[name] for name in tokens}


def test_text_without_the_tower(tmp_path: Path) -> None:
    """Of a model whose layers have embeddings, as E2B and E4B."""
    pytest.importorskip("torch", reason="make test-oracle")
    from tests.oracle.torch_logits import logits

    vocab = tiny_gemma4_vision.VOCAB
    own = tiny_gemma4_vision.gemma4_vision(
        hidden_size_per_layer_input=32,
        vocab_size_per_layer_input=vocab,
        num_kv_shared_layers=2,
        use_double_wide_mlp=True,
    )
    vision = own.config["vision_config"]
    assert isinstance(vision, dict)
    config = {**own.config, "vision_config": {**vision, "use_clipped_linears": True}}
    folder = tiny_gemma4_vision.write(replace(own, config=config), tmp_path)
    model = load_model(str(folder))
    program = build_program(model.config, max_positions=128)
    binding = bind(program, model.source, ignorable(model.config))
    for prompt in PROMPTS:
        found = reference_logits(Loaded(model.config, program, binding), prompt)
        expected = logits(folder, prompt)
        assert np.abs(found - expected).max() <= BOUND * np.abs(expected).max()
