"""What a model file says about tokens reaches requests: it is checked when it is read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvasir import LLM, SamplingParams
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ModelError, RequestError
from kvasir.core.params import TokenParams
from kvasir.core.request import EngineRequest
from kvasir.engine.build import build_engine
from kvasir.tokenizer.chat import ChatTemplate
from kvasir.tokenizer.load import load_tokenizer
from kvasir.weights.source import open_model
from tests import tiny
from tests.gguf_writer import write_gguf
from tests.tiny_vocab import sentence_piece

MODEL = tiny.llama(num_hidden_layers=1)
SMALL = {"max_model_len": 64, "threads": 1, "packed_cache": "off"}
GENERATION, SETTINGS = "generation_config.json", "tokenizer_config.json"
TOKENIZER = "tokenizer.json"
TEXT = {"Sequence": {"id": "A", "type_id": 0}}
AFFIX = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "x", "type_id": 0}}, TEXT],
    "pair": [TEXT, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {"x": {"id": "x", "ids": [320], "tokens": ["x"]}},
}


def changed(folder: Path, name: str, **fields: object) -> Path:
    """A tiny model's folder; the dotted ``fields`` of the JSON file ``name`` are set."""
    tiny.write_hf(MODEL, folder)
    path = folder / name
    tree = json.loads(path.read_text()) if path.exists() else {}
    for dotted, value in fields.items():
        *parents, last = dotted.split(".")
        place: Any = tree
        for parent in parents:
            place = place[parent]
        place[last] = value
    path.write_text(json.dumps(tree))
    return folder


def read(path: Path) -> None:
    source = open_model(path)
    ChatTemplate(source, load_tokenizer(source))


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        (GENERATION, {"eos_token_id": [2, 999999]}, "is 999999, the model has the ids 0 to 319"),
        (GENERATION, {"eos_token_id": 320}, "eos_token_id is 320"),
        (GENERATION, {"eos_token_id": 1 << 70}, "eos_token_id is 11805916207174113"),
        (GENERATION, {"eos_token_id": -1}, "eos_token_id is -1"),
        (GENERATION, {"eos_token_id": [True]}, "eos_token_id is True"),
        (GENERATION, {"eos_token_id": {"a": 1}}, "eos_token_id is {'a': 1}"),
        ("config.json", {"eos_token_id": [[1]]}, "eos_token_id is [1]"),
        (SETTINGS, {"eos_token": 3}, "eos_token is 3, expected the name of a token"),
        (SETTINGS, {"eos_token": {"text": "x"}}, "eos_token is {'text': 'x'}"),
        (SETTINGS, {"eos_token": "</x>"}, "is '</x>', which tokenizer.json does not have"),
        (SETTINGS, {"bos_token": ["a"]}, "bos_token is ['a']"),
        (SETTINGS, {"bos_token": "<none>"}, "bos_token is '<none>'"),
        (SETTINGS, {"chat_template": 3}, "chat_template of tokenizer_config.json is no text"),
        (SETTINGS, {"chat_template": ["x"]}, "chat_template of"),
        (SETTINGS, {"chat_template": [{"name": "default", "template": 1}]}, "chat_template of"),
        (SETTINGS, {"chat_template": [{"name": "other", "template": 5}]}, "chat_template of"),
        (
            SETTINGS,
            {"chat_template": [{"name": ["odd"]}, {"name": "default", "template": "x"}]},
            "chat_template of",
        ),
        (
            TOKENIZER,
            {"post_processor": AFFIX},
            "post_processor of the tokenizer puts the ids [3",
        ),
        (TOKENIZER, {"model.continuing_subword_prefix": "x" * 9}, "json is not a tokenizer: range"),
        (TOKENIZER, {"model.vocab.zz": 1 << 31}, "vocab has the id 2147483648"),
    ],
)
def test_folders(tmp_path: Path, name: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=re.escape(message)) as caught:
        read(changed(tmp_path / "m", name, **fields))
    assert str(tmp_path / "m") in caught.value.message
    assert name in caught.value.message or "post_processor" in message


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        (GENERATION, {"eos_token_id": [1, 319]}),
        (GENERATION, {"eos_token_id": None}),
        (GENERATION, {"eos_token_id": []}),
        (SETTINGS, {"bos_token": None, "eos_token": {"content": "<|eos|>"}}),
    ],
)
def test_folders_that_are_right(tmp_path: Path, name: str, fields: dict[str, Any]) -> None:
    read(changed(tmp_path / "m", name, **fields))


def test_a_bos_id_without_a_name(tmp_path: Path) -> None:
    folder = changed(tmp_path / "m", "config.json", bos_token_id=320)
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"config\.json: bos_token_id is 320"):
        read(folder)


def shorter(metadata: dict[str, object], tensors: dict[str, Any]) -> None:
    """The vocabulary goes on where the embedding ends."""
    for name in ("token_embd.weight", "output.weight"):
        kind, rows = tensors[name]
        tensors[name] = kind, rows[:310]


def as_sentence_piece(metadata: dict[str, object], tensors: dict[str, Any]) -> None:
    metadata |= sentence_piece()
    metadata["tokenizer.ggml.scores"] = [*metadata["tokenizer.ggml.scores"][:-1], float("nan")]  # type: ignore[index]


@pytest.mark.parametrize(
    ("fields", "change", "message"),
    [
        ({"eos_token_id": 320}, None, "eos_token_id is 320, the model has the ids 0 to 319"),
        ({"eos_token_id": 312}, shorter, "eos_token_id is 312, the model has the ids 0 to 309"),
        ({"eot_token_id": 315}, shorter, "tokenizer.ggml.eot_token_id is 315"),
        ({"bos_token_id": 310}, shorter, "tokenizer.ggml.bos_token_id is 310"),
        ({"eos_token_id": np.int32(-1)}, None, "tokenizer.ggml.eos_token_id is -1"),
        ({}, as_sentence_piece, "tokenizer.ggml.scores holds a score that is not finite"),
    ],
)  # fmt: skip
def test_gguf_files(
    tmp_path: Path, fields: dict[str, object], change: Callable[..., None] | None, message: str
) -> None:
    metadata, tensors = tiny.gguf_parts(MODEL, "Q8_0")
    metadata |= {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
    if change is not None:
        change(metadata, tensors)
    write_gguf(tmp_path / "m.gguf", metadata, tensors)
    with pytest.raises(ModelError, match=re.escape(message)) as caught:
        read(tmp_path / "m.gguf")
    assert str(tmp_path / "m.gguf") in caught.value.message


def test_tokens_beyond_the_embedding_end_nothing(tmp_path: Path) -> None:
    metadata, tensors = tiny.gguf_parts(MODEL, "Q8_0")
    shorter(metadata, tensors)
    names = list(metadata["tokenizer.ggml.tokens"])  # type: ignore[call-overload]
    names[315] = "<|endoftext|>"
    metadata["tokenizer.ggml.tokens"] = names
    metadata["tokenizer.ggml.merges"] = []
    write_gguf(tmp_path / "m.gguf", metadata, tensors)
    with LLM(str(tmp_path / "m.gguf"), **SMALL) as llm:
        assert llm.get_tokenizer().eos_ids == (1, 3)
        (output,) = llm.generate("hi", SamplingParams(max_tokens=3), use_tqdm=False)
        assert output.outputs[0].token_ids


def test_what_surrounds_a_text_is_found_once(tmp_path: Path) -> None:
    metadata, tensors = tiny.gguf_parts(MODEL, "Q8_0")
    metadata |= {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    write_gguf(tmp_path / "m.gguf", metadata, tensors)
    tokenizer = load_tokenizer(open_model(tmp_path / "m.gguf"))
    assert tokenizer.surround([7, 8]) == [0, 7, 8, 1]
    assert tokenizer.surround([]) == [0, 1]


def test_a_tokenizer_that_cannot_read_is_refused(tmp_path: Path) -> None:
    words = {"type": "WordLevel", "vocab": {"b": 0}, "unk_token": "?"}
    folder = changed(tmp_path / "m", "tokenizer.json", model=words, added_tokens=[])
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelError, match="tokenizer cannot read the text: WordLevel error"):
        read(folder)


@pytest.mark.parametrize("params", [{"stop_ids": (5, 320)}, {"logit_bias": ((-1, 1.0),)}])
def test_an_id_that_no_logits_have_ends_its_request_alone(
    tmp_path: Path, params: dict[str, Any]
) -> None:
    """Whoever sent it: no validator stands between."""
    path = tiny.write_gguf_model(MODEL, tmp_path / "m.gguf", "Q8_0")
    engine = build_engine(EngineOptions(model=str(path), **SMALL)).engine  # type: ignore[arg-type]
    bad = TokenParams(seed=0, max_tokens=2, **params)
    good = EngineRequest(2, (5, 6), TokenParams(seed=0, max_tokens=2))
    engine.submit([EngineRequest(1, (5, 6), bad), good])
    events = []
    while engine.has_work:
        events += engine.step().events
    assert [event.finish for event in events if event.id == 1] == ["error"]
    assert sum(len(event.tokens) for event in events if event.id == 2) == 2
    with pytest.raises(RequestError, match="the model has the ids 0 to 319"):
        engine.add(EngineRequest(3, (5, 6), bad))
    engine.close()


def test_a_model_with_experts_answers(tmp_path: Path) -> None:
    path = tiny.write_gguf_model(tiny.mixtral(), tmp_path / "m.gguf", "Q8_0")
    with LLM(str(path), **SMALL) as llm:
        (output,) = llm.generate("hi", SamplingParams(max_tokens=3, seed=1), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 3
