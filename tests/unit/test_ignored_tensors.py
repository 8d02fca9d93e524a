"""What lies beside the weights in real checkpoints, of types that no weight has; and what must."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from kvasir.checkpoints import build_program, ignorable
from kvasir.checkpoints.loaded import load_model, model_facts
from kvasir.cli.start_local import start_local
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ModelError
from kvasir.weights.bind import bind
from tests import tiny, tiny_encoders, tiny_layer_norms
from tests.tiny import TinyModel


def add_tensor(folder: Path, name: str, dtype: str, shape: list[int], n_bytes: int) -> None:
    """Behind the others of the folder's only file."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    (n_header,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + n_header]), data[8 + n_header :]
    header[name] = {
        "dtype": dtype,
        "shape": shape,
        "data_offsets": [len(body), len(body) + n_bytes],
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body + bytes(n_bytes))


@pytest.mark.parametrize(
    ("model", "tensor", "dtype", "shape", "size"),
    [
        (tiny_encoders.bert(), "embeddings.position_ids", "I64", [1, 128], 1024),
        (tiny_layer_norms.gpt_neox(), "gpt_neox.layers.0.attention.bias", "BOOL", [1, 1, 8, 8], 64),
        (tiny_layer_norms.gpt2(), "transformer.h.1.attn.bias", "U8", [1, 1, 8, 8], 64),
    ],
    ids=["position ids", "masks", "old masks"],
)
def test_buffers_are_left_alone(
    model: TinyModel, tensor: str, dtype: str, shape: list[int], size: int, tmp_path: Path
) -> None:
    folder = tiny.write_hf(model, tmp_path)
    before = model_facts(load_model(str(folder)))
    add_tensor(folder, tensor, dtype, shape, size)
    loaded = load_model(str(folder))
    assert model_facts(loaded) == before
    program = build_program(loaded.config, max_positions=16)
    assert bind(program, loaded.source, ignorable(loaded.config))


def test_an_encoder_without_its_table_of_types_is_refused(tmp_path: Path) -> None:
    made = tiny_encoders.bert()
    name = "embeddings.token_type_embeddings.weight"
    lacking = replace(made, tensors={k: x for k, x in made.tensors.items() if k != name})
    loaded = load_model(str(tiny.write_hf(lacking, tmp_path)))
    with pytest.raises(ModelError, match="token_type_embeddings"):
        bind(build_program(loaded.config), loaded.source, ignorable(loaded.config))


def test_nobody_chats_with_an_encoder(tmp_path: Path) -> None:
    folder = tiny.write_hf(tiny_encoders.bert(), tmp_path)
    with pytest.raises(ModelError, match="makes vectors or labels of texts and writes none"):
        start_local(EngineOptions(model=str(folder), dtype="float32", threads=1))


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ({"word_embedding_dimension": 64}, "no mode"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_best_token": True}, "pooling_mode_best"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_best_token": True}, "pooling_mode_best"),
        ({"pooling_mode": "best"}, "pooling_mode"),
    ],
)
def test_a_pooling_file_of_no_known_mode_is_refused(
    said: dict[str, object], asked: str, tmp_path: Path
) -> None:
    """Any other pooling would make other vectors."""
    folder = tiny.write_hf(tiny.llama(), tmp_path)
    (folder / "1_Pooling").mkdir()
    file = folder / "1_Pooling" / "config.json"
    file.write_text(json.dumps(said))
    with pytest.raises(ModelError, match=f"1_Pooling/config.json asks for {asked}.*, expected"):
        model_facts(load_model(str(folder)))
    file.write_text('{"pooling_mode_cls_token": false, "pooling_mode_lasttoken": true}')
    assert model_facts(load_model(str(folder))).vectors.trained == "last"
