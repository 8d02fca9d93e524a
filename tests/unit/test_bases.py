"""Names of a folder's tensors, with and without what a head puts before them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvasir.checkpoints import config_from
from kvasir.core.errors import ModelError
from kvasir.weights.source import open_model
from tests import tiny, tiny_encoders, tiny_layer_norms
from tests.loading import load, reference_logits
from tests.tiny import TinyModel

PROMPT = (7, 300, 41)


def renamed(model: TinyModel, name: str, rename: Callable[[str], str]) -> TinyModel:
    tensors = {rename(key): x for key, x in model.tensors.items()}
    return replace(model, config={**model.config, "architectures": [name]}, tensors=tensors)


@pytest.mark.parametrize(
    ("make", "architecture", "rename"),
    [
        (tiny.qwen3, "Qwen3ForCausalLM", lambda x: x.removeprefix("model.")),
        (tiny.llama, "LlamaForCausalLM", lambda x: f"language_model.{x}"),
        (tiny.llama, "LlamaForCausalLM", lambda x: x.replace("model.", "model.language_model.")),
        (tiny_layer_norms.gpt2, "GPT2LMHeadModel", lambda x: x.removeprefix("transformer.")),
        (tiny_encoders.bert, "BertModel", lambda x: f"bert.{x}"),
        (tiny_encoders.roberta, "RobertaModel", lambda x: f"roberta.{x}"),
        (tiny_encoders.modern_bert, "ModernBertModel", lambda x: f"model.{x}"),
    ],
)
def test_what_stands_before_all_names(
    make: Callable[[], TinyModel], architecture: str, rename: Callable[[str], str], tmp_path: Path
) -> None:
    model = make()
    other = renamed(model, architecture, rename)
    assert set(other.tensors) != set(model.tensors)
    plain, found = (
        load(tiny.write_hf(x, tmp_path / x.name / str(i))) for i, x in enumerate((model, other))
    )
    assert np.array_equal(reference_logits(plain, PROMPT), reference_logits(found, PROMPT))


def test_a_model_without_its_head_writes_nothing(tmp_path: Path) -> None:
    model = renamed(tiny.llama(), "LlamaModel", lambda x: x.removeprefix("model."))
    del model.tensors["lm_head.weight"]
    config = config_from(open_model(tiny.write_hf(model, tmp_path)))
    assert config.headless
    assert not config.writes


@pytest.mark.parametrize(
    ("make", "name"),
    [(tiny_encoders.bert, "BertLMHeadModel"), (tiny_encoders.modern_bert, "ModernBertForCausalLM")],
)
def test_an_encoder_that_should_write_is_refused(
    make: Callable[[], TinyModel], name: str, tmp_path: Path
) -> None:
    source = open_model(tiny.write_hf(renamed(make(), name, str), tmp_path))
    with pytest.raises(ModelError, match=f"architecture '{name}' is not supported"):
        config_from(source)


def test_a_causal_model_is_no_embedding_gemma(tmp_path: Path) -> None:
    source = open_model(
        tiny.write_hf(tiny_encoders.gemma_embedding(use_bidirectional_attention=False), tmp_path)
    )
    with pytest.raises(ModelError, match="use_bidirectional_attention is False, expected true"):
        config_from(source)
