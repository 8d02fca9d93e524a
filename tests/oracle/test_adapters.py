"""LoRA adapters that are merged when a model is opened: as PEFT computes them, live."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvasir import LLM
from tests import tiny, tiny_encoders
from tests.loading import load, reference_logits
from tests.oracle.cases import PROMPTS
from tests.oracle.test_vectors import pooled

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]
BOUND = 1e-4


def trained(kind: str, folder: Path, modules: Sequence[str], into: Path, **config: Any) -> Any:
    """A model of ``transformers`` with an adapter of random numbers, which is saved to ``into``."""
    torch = pytest.importorskip("torch", reason="the oracle needs PyTorch: make test-oracle")
    peft = pytest.importorskip("peft", reason="the oracle needs PEFT: make test-oracle")
    transformers = pytest.importorskip("transformers", reason="make test-oracle installs it")
    base = getattr(transformers, kind).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    model = peft.get_peft_model(base, peft.LoraConfig(target_modules=list(modules), **config))
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "lora_" in name:
                tensor.copy_(torch.rand(tensor.shape, generator=generator) * 0.4 - 0.2)
    model.save_pretrained(into)
    return model.eval()


@pytest.mark.parametrize("rslora", [False, True])
def test_tasks_of_an_encoder(rslora: bool, tmp_path: Path) -> None:
    """Folders within that of the model, as those of jina-embeddings-v3; embeddings, too."""
    import torch

    folder = tiny.write_hf(tiny_encoders.jina_v3_saved(), tmp_path / "model")
    modules = ("q_proj", "v_proj", "o_proj", "fc1", "word_embeddings", "token_type_embeddings")
    into = folder / "retrieval_query"
    model = trained("AutoModel", folder, modules, into, r=3, lora_alpha=5, use_rslora=rslora)
    plain = load(folder)
    with LLM(str(into), dtype="float32", max_model_len=64, threads=1) as llm:
        found = llm.encode([list(prompt) for prompt in PROMPTS], pooling="mean")
    for prompt, output in zip(PROMPTS, found, strict=True):
        with torch.no_grad():
            states = model(torch.tensor([prompt])).last_hidden_state[0].numpy()
        expected = pooled(states, "mean")
        assert np.abs(output.outputs.data - expected).max() <= BOUND * np.abs(expected).max()
        other = reference_logits(plain, prompt)
        assert not np.allclose(other, reference_logits(load(into), prompt), atol=0.1)


def test_a_decoder_by_the_name_of_its_model(tmp_path: Path) -> None:
    import torch

    folder = tiny.write_hf(tiny.llama(), tmp_path / "model")
    into = tmp_path / "elsewhere" / "adapter"
    modules = ("q_proj", "down_proj")
    model = trained("AutoModelForCausalLM", folder, modules, into, r=2, lora_alpha=4)
    for prompt in PROMPTS:
        with torch.no_grad():
            expected = model(torch.tensor([prompt])).logits[0].numpy()
        found = reference_logits(load(into), prompt)
        assert np.abs(found - expected).max() <= BOUND * np.abs(expected).max()
