"""A folder with a LoRA adapter opens as its model, with the adapter merged; what is more than LoRA,
or of another model, is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvasir.checkpoints.loaded import load_model
from kvasir.core.errors import ModelError
from kvasir.formats.decode import values_of
from kvasir.quantize.methods import method_named
from kvasir.quantize.quantize import quantize
from kvasir.weights.source import open_model
from tests import tiny, tiny_encoders
from tests.gguf_writer import write_safetensors
from tests.tiny import Array, uniform

Q = "model.layers.0.self_attn.q_proj"
E = "model.embed_tokens"
SAID: dict[str, object] = {"peft_type": "LORA", "r": 2, "lora_alpha": 3, "bias": "none"}


def adapter(folder: Path, tensors: dict[str, Array] | None = None, **said: object) -> Path:
    """In a folder of its own within that of a model."""
    model = tiny.llama()
    if not folder.exists():
        tiny.write_hf(model, folder)
    n, k = model.tensors[f"{Q}.weight"].shape
    own = {
        f"base_model.model.{Q}.lora_A.weight": uniform("a", (2, k), 0.5),
        f"base_model.model.{Q}.lora_B.weight": uniform("b", (n, 2), 0.5),
    }
    path = folder / "task"
    path.mkdir(exist_ok=True)
    (path / "adapter_config.json").write_text(json.dumps({**SAID, **said}))
    write_safetensors(path / "adapter_model.safetensors", own if tensors is None else tensors)
    return path


def test_it_is_merged_and_named(tmp_path: Path) -> None:
    path = adapter(tmp_path / "base")
    source, base = open_model(path), open_model(path.parent)
    a, b = uniform("a", (2, 64), 0.5), uniform("b", (base.tensors[f"{Q}.weight"].shape[0], 2), 0.5)
    wide = values_of(base.tensors[f"{Q}.weight"]) + 1.5 * (b.astype(float) @ a.astype(float))
    np.testing.assert_allclose(values_of(source.tensors[f"{Q}.weight"]), wide, rtol=1e-6, atol=1e-7)
    assert source.name == "base-task"
    assert source.path == path.parent, "its tokenizer is there"
    assert open_model(source.origin).stamp_hash == source.stamp_hash != base.stamp_hash
    same = set(base.tensors) - {f"{Q}.weight"}
    assert all(source.tensors[x].data == base.tensors[x].data for x in same)


def test_what_is_cached_knows_the_adapter(tmp_path: Path) -> None:
    hashes = {open_model(adapter(tmp_path / "base")).stamp_hash}
    hashes.add(open_model(tmp_path / "base").stamp_hash)
    path = tmp_path / "base" / "task" / "adapter_config.json"
    path.write_text(json.dumps({**SAID, "lora_alpha": 4}))
    hashes.add(open_model(path.parent).stamp_hash)
    assert len(hashes) == 3


def test_embeddings(tmp_path: Path) -> None:
    tensors = {
        f"base_model.model.{E}.lora_embedding_A": uniform("a", (2, tiny.VOCAB), 0.5),
        f"base_model.model.{E}.lora_embedding_B": uniform("b", (64, 2), 0.5),
    }
    path = adapter(tmp_path / "base", tensors, use_rslora=True)
    a, b = (x.astype(float) for x in tensors.values())
    wide = values_of(open_model(path.parent).tensors[f"{E}.weight"]) + 3 / 2**0.5 * (b @ a).T
    found = values_of(open_model(path).tensors[f"{E}.weight"])
    np.testing.assert_allclose(found, wide, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type = 'IA3': expected LORA"),
        ({"bias": "all"}, "bias = 'all': expected none"),
        ({"use_dora": True}, "use_dora = True: is not computed"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern = .* is not computed"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save = .* is not computed"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out = True: is not computed"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa': expected True"),
        ({"r": 0}, "r is 0, expected a rank"),
        ({"lora_alpha": "a"}, "lora_alpha is 'a', expected a number"),
        ({"lora_alpha": float("nan")}, "lora_alpha is 'nan', expected a number"),
        ({"lora_alpha": 10**400}, "lora_alpha is '1000*', expected a number"),
        ({"use_rslora": "false"}, "use_rslora is 'false', expected true or false"),
        ({"r": 4}, "expected rank 4 and sizes of"),
    ],
)
def test_more_than_lora_is_refused(said: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        open_model(adapter(tmp_path / "base", **said))


def pair(module: str, down: tuple[int, ...], up: tuple[int, ...]) -> dict[str, Array]:
    ends = {"A": down, "B": up}
    return {
        f"base_model.model.{module}.lora_{x}.weight": uniform(x, shape, 0.5)
        for x, shape in ends.items()
    }


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (pair("model.layers.9.self_attn.q_proj", (2, 64), (64, 2)), "the model has none"),
        (pair("q_proj", (2, 64), (64, 2)), "the model has [2-9]"),
        (pair(Q, (2, 63), (64, 2)), "expected rank 2 and sizes of"),
        (pair(Q, (2, 64), (64, 3)), "expected rank 2 and sizes of"),
        (pair(Q, (3, 64), (64, 3)), "expected rank 2 and sizes of"),
        (pair(Q, (2,), (64, 2)), "expected rank 2 and sizes of"),
        (pair(Q, (2, 64), (64, 2)) | pair(Q[6:], (2, 64), (64, 2)), "more than one of its modules"),
        ({"base_model.model.x.weight": uniform("x", (2, 2), 1.0)}, "is no part of LoRA"),
        ({f"{Q}.lora_A.weight": uniform("x", (2, 64), 1.0)}, "has no .* beside it"),
        ({}, "it is empty"),
        (pair(Q, (2, 64), (64, 2)) | {f"{Q}.lora_A.weight": uniform("x", (2, 2), 1.0)}, "beside"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    tensors: dict[str, Array], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        open_model(adapter(tmp_path / "base", tensors))


def test_numbers_that_no_weight_has_are_refused(tmp_path: Path) -> None:
    tensors = pair(Q, (2, 64), (64, 2))
    tensors[f"base_model.model.{Q}.lora_B.weight"][0, 0] = np.inf
    source = open_model(adapter(tmp_path / "base", tensors))
    with pytest.raises(ModelError, match="not finite"):
        values_of(source.tensors[f"{Q}.weight"])


@pytest.mark.parametrize("has_copy", [False, True])
def test_one_of_embeddings_and_head_that_are_one_is_refused(has_copy: bool, tmp_path: Path) -> None:
    """PEFT adds to embeddings alone, or to the head alone."""
    model = tiny.llama(tie_word_embeddings=True)
    embed = model.tensors[f"{E}.weight"]
    copy = {"lm_head.weight": embed} if has_copy else {}
    folder = tiny.write_hf(replace(model, tensors={**model.tensors, **copy}), tmp_path / "base")
    n, k = embed.shape
    ends = {f"{E}.lora_embedding_A": (2, n), f"{E}.lora_embedding_B": (k, 2)}
    of_rows = {f"base_model.model.{x}": uniform(x, shape, 0.5) for x, shape in ends.items()}
    path = adapter(folder, pair("lm_head", (2, k), (n, 2)) if has_copy else of_rows)
    with pytest.raises(ModelError, match="which embeds tokens and writes them"):
        load_model(str(path))


def test_embeddings_of_what_writes_nothing_are_merged(tmp_path: Path) -> None:
    """There is no head that they are, too."""
    model, name = tiny_encoders.bert(), "embeddings.word_embeddings"
    weight = next(x for x in model.tensors if x.endswith(f"{name}.weight"))
    n, k = model.tensors[weight].shape
    tensors = {
        f"base_model.model.{name}.lora_embedding_A": uniform("a", (2, n), 0.5),
        f"base_model.model.{name}.lora_embedding_B": uniform("b", (k, 2), 0.5),
    }
    path = adapter(tiny.write_hf(model, tmp_path / "base"), tensors)
    found = values_of(load_model(str(path)).source.tensors[weight])
    assert not np.array_equal(found, model.tensors[weight])


@pytest.mark.parametrize("base", ["", "x" * 5000, "x" * 300 + "/y", "\ud800/x", "x\0y", "."])
def test_names_of_models_that_are_none(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty one is not the folder that we are in."""
    alone = adapter(tmp_path / "base", base_model_name_or_path=base).rename(tmp_path / "alone")
    monkeypatch.chdir(tmp_path / "base" if not base else tmp_path)
    with pytest.raises(ModelError):
        open_model(alone)


def test_what_is_merged_and_not_quantized_is_copied_as_it_is(tmp_path: Path) -> None:
    n = tiny.VOCAB
    tensors = pair(Q, (2, 64), (64, 2)) | {
        f"base_model.model.{E}.lora_embedding_A": uniform("a", (2, n), 0.5),
        f"base_model.model.{E}.lora_embedding_B": uniform("b", (64, 2), 0.5),
    }
    path, made = adapter(tmp_path / "base", tensors), tmp_path / "made"
    quantize(str(path), method_named("int8", None, None, None), made)
    expected, found = (values_of(open_model(x).tensors[f"{E}.weight"]) for x in (path, made))
    assert np.array_equal(found, expected)


def test_a_model_that_is_not_here(tmp_path: Path) -> None:
    path = adapter(tmp_path / "base", base_model_name_or_path="nobody/has-this")
    alone = path.rename(tmp_path / "alone")
    with pytest.raises(ModelError, match="nobody/has-this is not here"):
        open_model(alone)
    (alone / "adapter_config.json").write_text(json.dumps(SAID))
    with pytest.raises(ModelError, match="an adapter for an unnamed model"):
        open_model(alone)
