"""Heads for labels behind a dense layer, and pairs of texts, against ``transformers``, live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from kvasir import LLM
from tests.tiny_heads import HEADS, write

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(300),
]
OPTIONS: dict[str, Any] = {"max_model_len": 100, "threads": 1, "dtype": "float32"}
QUERY, DOCUMENTS = "the quick fox", ["a lazy dog", "the", "nothing of this kind"]


@pytest.mark.parametrize("executor", ["cpu", "reference"])
@pytest.mark.parametrize("name", HEADS)
def test_labels_of_texts_and_pairs(name: str, executor: str, tmp_path: Path) -> None:
    """BERT's tokens of the second text are of the second kind, which changes what comes out."""
    torch = pytest.importorskip("torch", reason="the oracle needs PyTorch: make test-oracle")
    transformers = pytest.importorskip("transformers", reason="make test-oracle installs it")
    folder = write(HEADS[name](), tmp_path)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))

    def expected(*texts: str) -> list[float]:
        found = tokenizer.encode(*texts)
        own = {} if model.config.model_type == "modernbert" else {"token_type_ids": found.type_ids}
        asked = {k: torch.tensor([x]) for k, x in {"input_ids": found.ids, **own}.items()}
        with torch.no_grad():
            logits = model(**asked).logits[0].double()
        odds = torch.sigmoid(logits) if len(logits) == 1 else torch.softmax(logits, 0)
        return [float(x) for x in odds]

    with LLM(str(folder), executor=executor, **OPTIONS) as llm:
        told = [output.outputs.probs for output in llm.classify([QUERY, *DOCUMENTS])]
        wanted = [expected(text) for text in (QUERY, *DOCUMENTS)]
        assert np.allclose(told, wanted, atol=2e-5)
        assert np.ptp(np.array(wanted), axis=0).max() > 1e-3
        if len(wanted[0]) > 1:
            return
        scores = [output.outputs.score for output in llm.score(QUERY, DOCUMENTS)]
        pairs = [expected(QUERY, document)[0] for document in DOCUMENTS]
        assert np.allclose(scores, pairs, atol=2e-5)
        assert np.ptp(pairs) > 1e-3
