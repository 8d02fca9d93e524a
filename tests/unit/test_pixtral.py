"""Towers of Pixtral and Mistral 3: nothing of one can be altered unnoticed, what fits none is
refused; and the tokens between the lines of an image are their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kvasir.checkpoints import config_from, tower
from kvasir.checkpoints.loaded import load_model
from kvasir.checkpoints.tower import read_tower, seeing_family
from kvasir.checkpoints.tower_weights import build_tower
from kvasir.core.errors import ModelError
from kvasir.core.plan import Row, SlotOpen, StepPlan
from kvasir.core.request import NO_DRAWS
from kvasir.core.tiles import TileSpec, media_at
from kvasir.exec.media import MediaSlots
from kvasir.ir.printer import render
from kvasir.models.families import FAMILIES
from kvasir.models.family import PixtralTowerSpec
from kvasir.serve.text import load_text
from kvasir.vision.messages import Uncut
from kvasir.vision.preparing import Bounding
from kvasir.vision.slicing import bounded_size
from kvasir.weights.bind import bind
from kvasir.weights.source import ModelSource, open_model
from tests import tiny_pixtral
from tests.tiny import TinyModel

MODELS: dict[str, Callable[[], TinyModel]] = {
    "mistral3": tiny_pixtral.mistral3,
    "pixtral": tiny_pixtral.pixtral,
}


def altered(spec: PixtralTowerSpec) -> Iterator[tuple[str, PixtralTowerSpec]]:
    for name, tensor in spec.names.items():
        yield name, replace(spec, names={**spec.names, name: f"other.{tensor}"})
    for name, size in spec.sizes.items():
        yield name, replace(spec, sizes={**spec.sizes, name: 2 * size})
    for name in ("gated", "qkv_bias", "o_bias", "mlp_bias", "both_ways", "parallel"):
        flags: dict[str, Any] = {name: not getattr(spec.block, name)}
        yield name, replace(spec, block=replace(spec.block, **flags))
    yield "norm", replace(spec, block=replace(spec.block, norm="layer"))
    yield "act", replace(spec, block=replace(spec.block, act="silu"))
    yield "patch_bias", replace(spec, patch_bias=not spec.patch_bias)
    yield "encoders", replace(spec, encoders=("other.",))
    yield "connectors", replace(spec, connectors=("other.", "others."))
    yield "fold", replace(spec, fold=("", 4))
    yield "merger_bias", replace(spec, merger_bias=not spec.merger_bias)
    for name, (wanted, default) in spec.above.items():
        yield f"{name} said", replace(spec, above={**spec.above, name: ("other", default)})
        if wanted == default:
            yield name, replace(spec, above={**spec.above, name: (wanted, "other")})


def seen(source: ModelSource, bare: ModelSource) -> list[str]:
    """Of a model whose files say all, and of one whose files say the least."""
    try:
        programs = build_tower(read_tower(source, 64)).programs
        return [*map(render, programs), repr(read_tower(bare, 0))]
    except (ModelError, KeyError, ValueError) as error:
        return [repr(error)]


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_altered_unnoticed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_model(tiny_pixtral.write(MODELS[name](), tmp_path))
    least = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
    least = {} if name == "mistral3" else least
    kinds = source.config["architectures"]
    config = {"architectures": kinds, "vision_config": {}, "text_config": {}, **least}
    bare = with_fields(source, config=config)
    family = seeing_family(source)
    assert family is not None and isinstance(family.tower, PixtralTowerSpec)
    expected = seen(source, bare)
    assert len(expected) > 2
    for what, spec in altered(family.tower):
        changed = replace(family, tower=spec)
        table = tuple(changed if each is family else each for each in FAMILIES)
        monkeypatch.setattr(tower, "FAMILIES", table)
        assert seen(source, bare) != expected, what


REFUSED: dict[str, tuple[dict[str, object], dict[str, object], str]] = {
    "another tower": ({"vision_config": {"model_type": "clip"}}, {}, "expected one of pixtral"),
    "another layer": ({"vision_feature_layer": -2}, {}, "vision_feature_layer is -2"),
    "activation": ({"projector_hidden_act": "relu"}, {}, "projector_hidden_act is 'relu'"),
    "rows": ({"spatial_merge_size": 4}, {}, "spatial_merge_size is 2, expected the 4"),
    "size": ({}, {"size": {"longest_edge": 4000}}, "at most 4096 tokens"),
    "crops": ({}, {"do_center_crop": True}, "do_center_crop is True"),
    "users": ({"image_token_index": 40}, {}, "no special token 40"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name: str, tmp_path: Path) -> None:
    above, processor, why = REFUSED[name]
    model = tiny_pixtral.mistral3()
    folder = tiny_pixtral.write(model, tmp_path, **processor)
    source = open_model(folder)
    with pytest.raises(ModelError, match=why):
        load_text(with_fields(source, config={**source.config, **above}))


@pytest.mark.parametrize("prefix", ["", "model."])
def test_names_of_tensors(prefix: str, tmp_path: Path) -> None:
    """As they are released, and as they are saved today."""
    model = tiny_pixtral.mistral3()
    tensors = dict(model.tensors)
    if prefix:
        olds = {"language_model.model.": "model.language_model.", "language_model.lm": "lm"}
        olds |= {x: f"model.{x}" for x in ("vision_tower.", "multi_modal_projector.")}
        for old, new in olds.items():
            tensors = {
                new + name.removeprefix(old) if name.startswith(old) else name: x
                for name, x in tensors.items()
            }
        assert all(name.startswith(("model.", "lm_head.")) for name in tensors)
    loaded = load_model(str(tiny_pixtral.write(TinyModel("m", model.config, tensors), tmp_path)))
    own = loaded.tower
    assert own is not None
    bind(build_tower(own), loaded.source, lambda tensor: not own.has(tensor))


@pytest.mark.parametrize("says", [True, False])
def test_a_head_of_its_own_is_read_where_nothing_says_otherwise(says: bool, tmp_path: Path) -> None:
    """Mistral Small 3.1 says nothing, and its class that heads are tied."""
    source = open_model(tiny_pixtral.write(tiny_pixtral.mistral3(), tmp_path))
    config = {k: v for k, v in source.config.items() if k != "tie_word_embeddings"}
    config |= {"tie_word_embeddings": True} if says else {}
    assert config_from(with_fields(source, config=config)).tied == says


def test_tokens_between_lines_stand_for_no_row(tmp_path: Path) -> None:
    text = load_text(open_model(tiny_pixtral.write(tiny_pixtral.mistral3(), tmp_path)))
    assert text.sight is not None
    unit, image = 8, tiny_pixtral.IMAGE
    read = Uncut(2, 3, bytes(3 * 6 * unit**2))
    found = text.sight.placeholders.expand([5, image, 6], [read], first=10)
    line = (image,) * 3
    assert found.ids == (5, *line, tiny_pixtral.BREAK, *line, tiny_pixtral.END, 6)
    (media,) = found.media
    assert (media.start, media.n_tokens, media.n_rows, media.grid) == (11, 8, 6, (2, 3))
    assert TileSpec(0, 4, 2, 1.0, (0.0,) * 3, (1.0,) * 3).fits(media)
    assert [*media.runs(0, 8)] == [(0, 0, 3), (4, 3, 3)]
    assert [*media.runs(2, 6)] == [(2, 2, 1), (4, 3, 2)]
    assert [*media.runs(3, 4)] == []


def test_chunks_of_an_image_with_breaks() -> None:
    """However a prompt is cut, each row stands where it does in the whole."""
    media = media_at(2, 8, b"", 3, 1)
    opening = SlotOpen(0, NO_DRAWS, tuple(range(12)), media=(media,))

    def placed(*cuts: int) -> set[tuple[int, int]]:
        slots, found = MediaSlots(), set()
        for i, (begin, end) in enumerate(itertools.pairwise(cuts)):
            row = Row(0, begin, tuple(range(begin, end)))
            for run in slots.of(StepPlan(i, (row,), () if i else (opening,))):
                found |= {(begin + run.at + j, run.first + j) for j in range(run.n)}
        return found

    whole = placed(0, 12)
    assert whole == {(2, 0), (3, 1), (4, 2), (6, 3), (7, 4), (8, 5)}
    for cut in range(1, 12):
        assert placed(0, cut, 12) == whole


@pytest.mark.parametrize(
    ("size", "expected"),
    [((10, 10), (16, 16)), ((48, 48), (48, 48)), ((96, 24), (48, 16)), ((1000, 3), (48, 0))],
    ids=str,
)
def test_sizes(size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert bounded_size(size, Bounding(8, 48, 3)) == expected
