"""Towers: no entry can be altered unnoticed; tensors as one file or another spells them; what does
not fit is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import eq
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import asdict, replace
from numpy.testing import assert_array_equal
from PIL import Image

from kvasir.checkpoints import tower
from kvasir.checkpoints.loaded import load_model, model_facts
from kvasir.checkpoints.tower import read_tower, seeing_family
from kvasir.checkpoints.tower_weights import build_tower
from kvasir.core.errors import ModelError
from kvasir.core.tiles import TileSpec
from kvasir.exec.tiles import joined
from kvasir.ir.printer import render
from kvasir.models.families import FAMILIES
from kvasir.models.family import TensorNames, TowerSpec
from kvasir.models.tower_programs import plain_positions
from kvasir.serve.text import load_text
from kvasir.vision.messages import Tiles
from kvasir.vision.preparing import Slicing
from kvasir.vision.processor import slicing_of
from kvasir.vision.reader import cut
from kvasir.vision.slicing import shape_grid
from kvasir.weights.bind import bind
from kvasir.weights.source import ModelSource, open_model
from kvasir.weights.transforms import from_floats, padded_columns, padded_heads
from tests import tiny_gemma_vision, tiny_internvl, tiny_llava, tiny_vision
from tests.tiny import TinyModel


@dataclass(frozen=True)
class Kind:
    make: Callable[[], TinyModel]
    write: Callable[..., Path]


KINDS: Mapping[str, Kind] = {
    "smolvlm": Kind(tiny_vision.smolvlm, tiny_vision.write),
    "gemma3_vision": Kind(tiny_gemma_vision.gemma3_vision, tiny_gemma_vision.write),
    "internvl_qwen2": Kind(tiny_internvl.internvl_large, tiny_internvl.write),
    "llava_onevision": Kind(tiny_llava.llava_onevision, tiny_llava.write),
}


def written(name: str, folder: Path, **processor: object) -> ModelSource:
    kind = KINDS[name]
    return open_model(kind.write(kind.make(), folder, **processor))


def seen(source: ModelSource) -> Iterator[str]:
    """All that a test could notice of how a tower is understood."""
    try:
        config = read_tower(source, 64)
        yield f"{config.tile} {config.encoder} {slicing_of(source)}"
        own = build_tower(config)
        bind(own, source, lambda tensor: not config.has(tensor))
        yield "\n".join(map(render, own.programs)) + str(own.positions)
        sight = load_text(source).sight
        assert sight is not None
        places = sight.placeholders
        yield f"{sight.slicing} {sight.spelling} {places.image} {places.n_tokens}"
    except (ModelError, KeyError) as error:
        yield f"refused: {error}"


def altered(spec: TowerSpec) -> Iterator[tuple[str, TowerSpec]]:
    """One entry changed, for each, but for what holds of files that do not say it."""
    for name, field in spec.fields.items():
        fields = {**spec.fields, name: field._replace(hf=f"{field.hf}_other")}
        yield f"key of {name}", replace(spec, fields=fields)
    for table in ("tensors", "connector"):
        weights: Mapping[str, TensorNames] = getattr(spec, table)
        for name, names in weights.items():
            for step in {"", "plus_one", "transposed", "repeated"} - {names.hf_step}:
                changed: dict[str, Any] = {table: {**weights, name: names._replace(hf_step=step)}}
                yield f"{name}: {step}", replace(spec, **changed)
            changed = {table: {**weights, name: names._replace(hf=f"other_{names.hf}")}}
            yield f"{name}: name", replace(spec, **changed)
    for flag, value in asdict(spec.block).items():
        if flag in FLAGS and SAID.get(flag) not in spec.fields:
            block: dict[str, Any] = {flag: FLAGS[flag] if value != FLAGS[flag] else not value}
            yield flag, replace(spec, block=replace(spec.block, **block))
    other: dict[str, Any] = {
        "encoders": ("other.",),
        "connectors": ("other.",),
        "image": spec.image._replace(hf="other", default=3),
        **({"newlines": ("other",), "unused": ("head.",)} if spec.newlines else {}),
        "layers": "other",
    }
    for name, entry in other.items():
        yield name, replace(spec, **{name: entry})
    for cuts in {"grid", "whole", "shape", "paved"} - {spec.cuts}:
        yield f"cuts {cuts}", replace(spec, cuts=cuts)


FLAGS: Mapping[str, Any] = {
    **dict.fromkeys(("gated", "both_ways", "qkv_bias", "o_bias", "mlp_bias", "part_scales"), True),
    **{"norm": "rms", "qk_norm": "heads"},
}
"""Of a tower's blocks, and what alters them."""
SAID = {"qkv_bias": "qkv_bias", "norm": "norm_kind", "qk_norm": "qk_norm"}
"""Of these what files may say."""
QUIET = {"internvl_qwen2": ["key of norm_eps"]}
"""Norms of queries and keys have one epsilon, which is that of files that do not say it."""


@pytest.mark.parametrize("name", KINDS)
def test_no_entry_is_altered_unnoticed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = written(name, tmp_path)
    expected, family = [*seen(source)], seeing_family(source)
    assert len(expected) == 3 and not expected[-1].startswith("refused")
    assert family is not None and isinstance(family.tower, TowerSpec)
    quiet = []
    for what, spec in altered(family.tower):
        changed = replace(family, tower=spec)
        table = tuple(changed if each is family else each for each in FAMILIES)
        monkeypatch.setattr(tower, "FAMILIES", table)
        if all(map(eq, seen(source), expected)):
            quiet.append(what)
    assert quiet == QUIET.get(name, [])


def test_every_family_that_sees_is_here() -> None:
    towers = [family.tower for family in FAMILIES if family.name in KINDS]
    own = [family.tower for family in FAMILIES if isinstance(family.tower, TowerSpec)]
    assert all(spec in towers for spec in own)


SPELLINGS = {
    "released": {},
    "saved": {
        "language_model.model.": "model.language_model.",
        "vision_tower.vision_model.": "model.vision_tower.",
        "multi_modal_projector.": "model.multi_modal_projector.",
    },
    "saved before": {
        "language_model.model.": "model.language_model.",
        "vision_tower.": "model.vision_tower.",
        "multi_modal_projector.": "model.multi_modal_projector.",
    },
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_names_of_tensors_of_gemma3(spelling: str, tmp_path: Path) -> None:
    model = tiny_gemma_vision.gemma3_vision()
    tensors = dict(model.tensors)
    for old, new in SPELLINGS[spelling].items():
        tensors = {name.replace(old, new, 1): x for name, x in tensors.items()}
    assert spelling == "released" or tensors.keys() != model.tensors.keys()
    named = TinyModel(model.name, model.config, tensors)
    loaded = load_model(str(tiny_gemma_vision.write(named, tmp_path)))
    own = loaded.tower
    assert own is not None
    bind(build_tower(own), loaded.source, lambda tensor: not own.has(tensor))
    facts = model_facts(loaded)
    assert facts.weight_bytes == 4 * sum(x.size for x in tensors.values())
    assert facts.span_tokens == tiny_gemma_vision.N_TOKENS


def test_a_window_smaller_than_an_image_is_refused(tmp_path: Path) -> None:
    model = tiny_gemma_vision.gemma3_vision(sliding_window=3)
    with pytest.raises(
        ModelError, match="windows of 3 tokens, expected at least the 4 of an image"
    ):
        load_model(str(tiny_gemma_vision.write(model, tmp_path)))


REFUSED: Mapping[str, tuple[dict[str, object], dict[str, object], str]] = {
    "pan and scan": ({"do_pan_and_scan": True}, {}, "do_pan_and_scan is True"),
    "not square": ({"size": {"height": 32, "width": 64}}, {}, "width is 64"),
    "another size": ({"size": {"height": 64, "width": 64}}, {}, "the 32 pixels of vision_config"),
    "rows": ({}, {"mm_tokens_per_image": 9}, "mm_tokens_per_image is 9"),
    "no square": ({}, {"mm_tokens_per_image": 8}, "mm_tokens_per_image is 8"),
    "a user's token": ({}, {"boi_token_index": 40}, "no special token 40"),
    "no token": ({}, {"eoi_token_index": 10**6}, "no special token 1000000"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name: str, tmp_path: Path) -> None:
    processor, fields, why = REFUSED[name]
    model = tiny_gemma_vision.gemma3_vision()
    model = TinyModel(model.name, {**model.config, **fields}, model.tensors)
    folder = tiny_gemma_vision.write(model, tmp_path, **processor)
    with pytest.raises(ModelError, match=why):
        load_text(open_model(folder))


@pytest.mark.parametrize(
    ("field", "value"),
    [("use_qk_norm", True), ("norm_type", "batch_norm"), ("use_mean_pooling", False)],
)
def test_other_towers_of_internvl_are_refused(field: str, value: object, tmp_path: Path) -> None:
    model = tiny_internvl.internvl()
    vision = dict(cast(Mapping[str, object], model.config["vision_config"]), **{field: value})
    model = TinyModel(model.name, {**model.config, "vision_config": vision}, model.tensors)
    with pytest.raises(ModelError, match=f"vision_config: {field} is"):
        load_model(str(tiny_internvl.write(model, tmp_path)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vision_feature_layer", -2),
        ("vision_feature_select_strategy", "full"),
        ("projector_hidden_act", "relu"),
        ("downsample_ratio", 0.4),
    ],
)
def test_other_connectors_of_internvl_are_refused(
    field: str, value: object, tmp_path: Path
) -> None:
    model = tiny_internvl.internvl()
    model = TinyModel(model.name, {**model.config, field: value}, model.tensors)
    with pytest.raises(ModelError, match=f"config.json: {field} is"):
        load_model(str(tiny_internvl.write(model, tmp_path)))


@pytest.mark.parametrize(
    ("kind", "family"), [("qwen2", "internvl_qwen2"), ("qwen3", "internvl_qwen3")]
)
def test_of_families_that_see_the_language_model_chooses(
    kind: str, family: str, tmp_path: Path
) -> None:
    make = {"qwen2": tiny_internvl.internvl, "qwen3": tiny_internvl.internvl_qwen3}[kind]
    assert load_model(str(tiny_internvl.write(make(), tmp_path))).config.family == family


def test_the_processor_is_asked_for_the_rows_of_an_image(tmp_path: Path) -> None:
    folder = tiny_gemma_vision.write(tiny_gemma_vision.gemma3_vision(), tmp_path)
    (folder / "processor_config.json").write_text(json.dumps({"image_seq_length": 256}))
    with pytest.raises(ModelError, match="image_seq_length is 256, expected the 4 rows"):
        load_text(open_model(folder))


def test_rows_are_means_of_their_patches() -> None:
    tile = TileSpec(24, 4, 3, 1.0, (0.0,) * 3, (1.0,) * 3, averages=True)
    grid = np.arange(36, dtype=np.float32).reshape(6, 6)
    rows = grid.reshape(-1)[plain_positions(tile)][:, None]
    expected = [[grid[y : y + 3, x : x + 3].mean()] for y in (0, 3) for x in (0, 3)]
    assert_array_equal(joined(rows, tile), expected)
    side_by_side = TileSpec(24, 4, 3, 1.0, (0.0,) * 3, (1.0,) * 3)
    assert joined(rows, side_by_side).shape == (4, 9)


def test_padded_heads() -> None:
    values = np.arange(24, dtype=np.float32).reshape(6, 4)
    rows = padded_heads(from_floats(values), 2, 3, 5).decode()
    assert_array_equal(rows.reshape(2, 5, 4)[:, :3], values.reshape(2, 3, 4))
    assert not rows.reshape(2, 5, 4)[:, 3:].any()
    bias = padded_heads(from_floats(values[:, 0]), 2, 3, 5).decode()
    assert_array_equal(bias, rows[:, 0])
    columns = padded_columns(from_floats(values.T), 2, 3, 5).decode()
    assert_array_equal(columns, rows.T)


def test_an_image_is_spelled_where_the_template_writes_it(tmp_path: Path) -> None:
    """Line feeds around it join those of the template; what a user writes stands for none."""
    text = load_text(written("gemma3_vision", tmp_path))
    assert text.sight is not None
    begin, image, end = (getattr(tiny_gemma_vision, x) for x in ("BEGIN", "IMAGE", "END"))
    part, words = {"type": "image"}, {"type": "text", "text": "<start_of_image><image_soft_token>"}
    for content in ([part], [words, part], [part, words]):
        ids = text.template.encode([{"role": "user", "content": content}])
        assert [ids.count(x) for x in (begin, image, end)] == [1, 1, 1]
        at = ids.index(image)
        assert ids[at - 1 : at + 2] == [begin, image, end]
        lines = "\n\n\n" if content[0] is part else "\n\n"
        before = text.tokenizer.encode(lines, add_special=False)
        assert ids[at - 1 - len(before) : at - 1] == before
    assert text.template.encode([{"role": "user", "content": "<start_of_image>"}]).count(begin) == 0


def test_tiles_by_shape_stand_between_two_tokens(tmp_path: Path) -> None:
    text = load_text(written("internvl_qwen2", tmp_path))
    assert text.sight is not None
    begin, image, end = (getattr(tiny_internvl, x) for x in ("BEGIN", "IMAGE", "END"))
    said = [{"type": "image"}, {"type": "text", "text": "<img><IMG_CONTEXT></img>"}]
    ids = text.template.encode([{"role": "user", "content": said}])
    assert [ids.count(x) for x in (begin, image, end)] == [0, 1, 0]
    found = text.sight.placeholders.expand(ids, [Tiles(1, 2, (b"a", b"b", b"c"))], first=5)
    at, n = found.ids.index(begin), tiny_internvl.N_TOKENS
    assert found.ids[at : at + 3 * n + 2] == (begin, *(image,) * 3 * n, end)
    assert [x.start - 5 for x in found.media] == [at + 1 + i * n for i in range(3)]
    assert [x.pixels for x in found.media] == [b"a", b"b", b"c"]


PLAIN = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_images_in_a_template_that_knows_none(tmp_path: Path) -> None:
    """As GGUF files of InternVL have it: the prompt is that of the folder's own template."""
    folder = tiny_internvl.write(tiny_internvl.internvl(), tmp_path)
    said = [{"type": "image"}, {"type": "text", "text": "a <IMG_CONTEXT>"}, {"type": "image"}]
    messages = [{"role": "system", "content": "b"}, {"role": "user", "content": said}]
    expected = load_text(open_model(folder)).template.encode(messages)
    assert expected.count(tiny_internvl.IMAGE) == 2
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": PLAIN}))
    template = load_text(open_model(folder)).template
    assert template.encode(messages) == expected
    rest = template.encode([*messages, {"role": "assistant", "content": "c"}], continues=True)
    assert rest[: len(expected)] == expected


@pytest.mark.parametrize(
    ("size", "least", "most", "expected"),
    [
        ((10, 10), 1, 4, (1, 1)),
        ((64, 64), 1, 4, (2, 2)),
        ((64, 32), 1, 4, (2, 1)),
        ((10, 5), 1, 8, (2, 1)),
        ((128, 64), 1, 8, (4, 2)),
        ((5, 500), 1, 12, (1, 12)),
        ((500, 5), 2, 3, (3, 1)),
    ],
    ids=str,
)
def test_tiles_of_the_nearest_shape(
    size: tuple[int, int], least: int, most: int, expected: tuple[int, int]
) -> None:
    assert shape_grid(size, 32, least, most) == expected
    tiles = cut(Image.new("RGB", size), Slicing(32, 0, most > 1, 3, least, most))
    n = expected[0] * expected[1]
    assert len(tiles.pixels) == (n + 1 if n > 1 else 1)
