"""Tiny models of each family as llama.cpp's converter writes them: logits as of their folders.

KVASIR_CONVERTER names the folder of the converter (``make test-converter`` fetches it). It knows
no tokenizer of theirs, GPT-J and Ministral of 2024 not at all; Ministral 3 and nomic-bert it reads
with a tokenizer alone, GPT-NeoX with older configs than those of today's transformers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast
from unittest.mock import patch

import numpy as np
import pytest

from tests import (
    tiny,
    tiny_encoders,
    tiny_layer_norms,
    tiny_moe,
    tiny_qwen_vl,
    tiny_rope,
    tiny_state,
)
from tests.loading import load, reference_logits
from tests.oracle.cases import ENCODERS, GGUF_MODELS, GOLDEN_MODELS, PROMPTS
from tests.tiny import TinyModel, write_hf

CONVERTER = os.environ.get("KVASIR_CONVERTER")
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(not CONVERTER, reason="make test-converter"),
]
SCRIPT = Path(__file__).parent / "convert.py"
NEAR = 2e-6
"""Of the largest logit: where a constant of a file is float32, or another order of factors."""

_LEFT_OUT = ("tiny_ministral3", "tiny_nomic_bert", "tiny_gpt_neox", "tiny_jina_v3")
_LEFT_OUT += ("tiny_jina_v3_saved",)
_SLIDING = ["sliding_attention"] * 4
SAID: Mapping[str, Mapping[str, object]] = {
    "tiny_cohere2": {"rotary_pct": 1.0},
    "tiny_gpt2": {"n_ctx": 512},
    "tiny_deepseek_v3": {"scoring_func": "sigmoid"},
    "tiny_modern_bert": {"layer_norm_eps": 2e-5},
    "tiny_hunyuan_dense": {"max_position_embeddings": 32768},
    "tiny_nemotron_h": {"mamba_ssm_cache_dtype": 0},
}
"""What files of these families say, too. The last is refused by today's transformers, which fills
nothing in: the converter sees no experts, as in the files that were published."""


def wide(make: Callable[..., TinyModel], **own: object) -> Callable[[], TinyModel]:
    """MLPs four times as wide as the model, a key for each query: the converter takes it so."""

    def made() -> TinyModel:
        sizes = {"INNER": 4 * tiny_layer_norms.HIDDEN, "KV_HEADS": tiny_layer_norms.HEADS}
        with patch.multiple(tiny_layer_norms, **sizes):
            return make(**own)

    return made


def unnamed(model: TinyModel) -> TinyModel:
    """Whose language model is not named, as in released files."""
    text = dict(cast(dict[str, object], model.config["text_config"]))
    text.pop("architectures")
    return replace(model, config={**model.config, "text_config": text})


MODELS: Mapping[str, Callable[[], TinyModel]] = {
    **{name: GOLDEN_MODELS[name] for name in GGUF_MODELS},
    **ENCODERS,
    # what no GGUF file can say of these families is as everywhere
    "tiny_stablelm": lambda: tiny_layer_norms.stablelm(rope_theta=10000.0),
    "tiny_phi": wide(
        tiny_layer_norms.phi, num_key_value_heads=4, intermediate_size=256, rope_theta=1e4
    ),
    "tiny_gpt2": wide(tiny_layer_norms.gpt2, n_inner=256),
    "tiny_hunyuan_moe": lambda: tiny_moe.hunyuan_moe(rope_scaling=None),
    "tiny_falcon": wide(tiny_layer_norms.falcon, num_kv_heads=1, rope_theta=1e4),
    "tiny_falcon_two_norms": wide(tiny_layer_norms.falcon_two_norms, bias=False, rope_theta=1e4),
    "tiny_lfm2_moe": lambda: tiny_state.lfm2_moe(routed_scaling_factor=1.0),
    "tiny_gemma_embedding": lambda: tiny_encoders.gemma_embedding(layer_types=_SLIDING),
    "tiny_qwen2_5_vl": tiny_qwen_vl.qwen2_5_vl,
    "tiny_qwen3_vl": lambda: unnamed(tiny_qwen_vl.qwen3_vl()),
    "tiny_qwen3_vl_moe": lambda: unnamed(tiny_qwen_vl.qwen3_vl_moe()),
    "tiny_gemma3": lambda: tiny.gemma3(
        query_pre_attn_scalar=32,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        layer_types=_SLIDING,
    ),
}
FUSED: Mapping[str, Callable[[], TinyModel]] = {
    "fused_llama": tiny.llama,
    "fused_qwen2": tiny.qwen2,
    "fused_glm": tiny_rope.glm,
}
"""With q, k and v in one tensor."""
NAMES = [name for name in (*MODELS, *FUSED) if name not in _LEFT_OUT]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All models, each as a folder and what the converter made of it."""
    root = tmp_path_factory.mktemp("converted")
    for name in NAMES:
        model = (MODELS | FUSED)[name]()
        path = write_hf(model, root / name)
        (path / "config.json").write_text(json.dumps({**model.config, **SAID.get(name, {})}))
    for option, names in (("--apart", MODELS), ("--fused", FUSED)):
        paths = [str(root / x) for name in names if name in NAMES for x in (name, f"{name}.gguf")]
        command = [sys.executable, str(SCRIPT), option, str(CONVERTER), *paths]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    return root


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_folder(folder: Path, name: str) -> None:
    refused = folder / f"{name}.gguf.error"
    assert not refused.exists(), refused.read_text("utf-8")
    models = [load(folder / name), load(folder / f"{name}.gguf")]
    for prompt in PROMPTS:
        expected, found = (reference_logits(model, prompt) for model in models)
        assert np.abs(found - expected).max() <= NEAR * np.abs(expected).max()


def test_jina_as_it_was_published(tmp_path: Path) -> None:
    """Under the architecture of XLM-R, with adapters, of which it makes files of their own."""
    model = tiny_encoders.jina_v3()
    said = {"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta"}
    said |= {"lora_adaptations": ["text-matching"], "position_embedding_type": "rotary"}
    said |= {"rotary_emb_base": model.config["rope_theta"]}
    folder = write_hf(model, tmp_path / "published")
    (folder / "config.json").write_text(json.dumps({**model.config, **said}))
    file = tmp_path / "m.gguf"
    command = [sys.executable, str(SCRIPT), "--apart", str(CONVERTER), str(folder), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and file.exists(), done.stderr[-2000:]
    models = [load(write_hf(model, tmp_path / "saved")), load(file)]
    for prompt in PROMPTS:
        expected, found = (reference_logits(model, prompt) for model in models)
        assert np.abs(found - expected).max() <= NEAR * np.abs(expected).max()
