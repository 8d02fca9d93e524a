"""Opening a model: GGUF files, Hugging Face folders, identity, and what is refused."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace as with_fields

from kvasir.checkpoints.loaded import load_model
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ModelError
from kvasir.engine.build import build_engine
from kvasir.formats.decode import values_of
from kvasir.weights.source import open_model
from tests import tiny
from tests.gguf_writer import write_gguf, write_safetensors

WEIGHTS = np.arange(8192, dtype=np.float32).reshape(2, 4096)
WHEN = 1_700_000_000


def hf_folder(folder: Path, **config: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    write_safetensors(folder / "model.safetensors", {"w": WEIGHTS})
    return folder


def gguf_file(path: Path, weights: np.ndarray = WEIGHTS, **metadata: object) -> Path:
    write_gguf(path, {"general.architecture": "llama", **metadata}, {"w": ("F32", weights)})
    os.utime(path, (WHEN, WHEN))
    return path


def test_gguf_file(tmp_path: Path) -> None:
    source = open_model(str(gguf_file(tmp_path / "tiny.Q4_1.gguf")))
    assert (source.kind, source.name) == ("gguf", "tiny.Q4_1")
    assert source.config["general.architecture"] == "llama"
    assert values_of(source.tensors["w"]).tolist() == WEIGHTS.tolist()
    assert source.read("config.json") is None


def test_hf_folder(tmp_path: Path) -> None:
    source = open_model(hf_folder(tmp_path / "tiny"))
    assert (source.kind, source.name) == ("hf", "tiny")
    assert source.config == {"model_type": "llama"}
    assert source.tensors["w"].shape == (2, 4096)
    assert source.read_json("generation_config.json") == {}
    (source.path / "generation_config.json").write_text('{"eos_token_id": 2}')
    assert source.read_json("generation_config.json") == {"eos_token_id": 2}
    with pytest.raises(ModelError, match="larger than the 10 bytes"):
        source.read("generation_config.json", limit=10)


def test_code_of_a_model_is_never_imported(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "m", auto_map={"AutoModel": "modeling_evil.Evil"})
    (folder / "modeling_evil.py").write_text("raise SystemExit('imported')")
    assert open_model(folder).tensors["w"].format == "F32"


def test_split_gguf_is_refused(tmp_path: Path) -> None:
    path = gguf_file(tmp_path / "m-00001-of-00002.gguf", **{"split.count": 2})
    with pytest.raises(ModelError, match=r"split\.count is 2.*merge them"):
        open_model(path)
    assert open_model(gguf_file(tmp_path / "m.gguf", **{"split.count": 1})).kind == "gguf"


def test_missing_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist: check the path") as caught:
        open_model(tmp_path / "none.gguf")
    assert caught.value.code == "model_not_found"


def test_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        open_model(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.ckpt"])
def test_pickles_are_refused_unread(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match="pickled checkpoint"):
        open_model(tmp_path / name)


def test_lone_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="give the folder"):
        open_model(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("[]", "holds a list"),
        ('{"a": 1, "a": 2}', "'a' appears twice"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        (" " * (4 << 20) + "{}", "larger than"),
        (
            '{"quantization_config": {"quant_method": "gptq"}}',
            "bits is None, expected one of 2, 3, 4, 8",
        ),
    ],
)
def test_bad_config_is_named(tmp_path: Path, text: str, message: str) -> None:
    folder = hf_folder(tmp_path / "m")
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelError, match=message) as caught:
        open_model(folder)
    assert "config.json" in caught.value.message


def test_a_file_without_matrices(tmp_path: Path) -> None:
    whole = tiny.write_gguf_model(tiny.llama(), tmp_path / "m.gguf", "Q8_0")
    loaded = load_model(str(whole))
    vectors = {name: x for name, x in loaded.source.tensors.items() if len(x.shape) == 1}
    source = replace(loaded.source, tensors=vectors)
    with pytest.raises(ModelError, match=r"m\.gguf: none of its \d+ tensors is a matrix"):
        build_engine(EngineOptions(), loaded=with_fields(loaded, source=source))
