"""Real weights of four models against ``transformers``, which reads and dequantizes the same GGUF
files by itself: in float32 the same greedy tokens for 128 steps on 20 prompts. ``KVASIR_WEIGHTS``
names the folder with the files, ``KVASIR_KEPT`` a file that keeps what came out.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pytest

from kvasir import LLM, SamplingParams
from kvasir.bench import report
from tests.oracle.real_files import FILES, real_file, stories
from tests.oracle.test_smollm2 import MAX_LEN, N_STEPS, PROMPTS

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(3600),
]


@dataclass(frozen=True, slots=True)
class Compared:
    """Of one model."""

    prompts: int
    equal: int
    """Prompts whose tokens are all the oracle's."""
    tokens: int
    differing: int
    """Tokens that the oracle would not have written there."""
    least_margin: float
    """Between the oracle's two likeliest tokens at any step, as a share of the largest logit."""


def written(path: Path) -> list[tuple[int, tuple[int, ...]]]:
    """Tokens of a prompt, and all of a text; in one batch, which changes none."""
    params = SamplingParams(temperature=0, max_tokens=N_STEPS, ignore_eos=True)
    with LLM(model=str(path), dtype="float32", max_model_len=MAX_LEN) as llm:
        outputs = llm.generate(list(PROMPTS), params, use_tqdm=False)
    return [
        (len(out.prompt_token_ids), (*out.prompt_token_ids, *out.outputs[0].token_ids))
        for out in outputs
    ]


def compared(path: Path, texts: list[tuple[int, tuple[int, ...]]]) -> Compared:
    torch = pytest.importorskip("torch", reason="the oracle needs PyTorch: make test-oracle")
    transformers = pytest.importorskip("transformers", reason="make test-oracle installs it")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    n_equal, n_differing, margin = 0, 0, float("inf")
    for n_prompt, tokens in texts:
        with torch.no_grad():
            logits = model(torch.tensor([tokens[:-1]]), use_cache=False).logits[0]
        rows = logits[n_prompt - 1 :].numpy()
        wrong = int((rows.argmax(axis=1) != np.array(tokens[n_prompt:])).sum())
        two = np.sort(np.partition(rows, -2, axis=1)[:, -2:], axis=1)
        margin = min(margin, float((two[:, 1] - two[:, 0]).min() / np.abs(rows).max()))
        n_equal, n_differing = n_equal + (not wrong), n_differing + wrong
    n_tokens = sum(len(tokens) - n_prompt for n_prompt, tokens in texts)
    return Compared(len(texts), n_equal, n_tokens, n_differing, round(margin, 9))


def keep(name: str, found: Compared) -> None:
    """Beside what the file has of other models."""
    if "KVASIR_KEPT" not in os.environ:
        return
    path, import_of = Path(os.environ["KVASIR_KEPT"]), pytest.importorskip
    before = json.loads(path.read_text())["results"] if path.exists() else {}
    versions = {x: import_of(x).__version__ for x in ("torch", "transformers")}
    results = {**before, name: {"file": FILES[name].name, **asdict(found)}}
    command = "KVASIR_WEIGHTS=FOLDER make test-oracle TESTS=tests/oracle/test_greedy_tokens.py"
    report.write(report.report("greedy-tokens", versions, results, command=command), path)


@pytest.mark.parametrize("name", FILES)
def test_the_oracle_writes_the_same(name: str, tmp_path: Path) -> None:
    path = real_file(name)
    if name == "stories15M":
        path = stories(path, real_file("TinyLlama-1.1B-Chat"), tmp_path / "stories15M.gguf")
    found = compared(path, written(path))
    print(f"{name}: {found}")
    keep(name, found)
    assert (found.prompts, found.tokens) == (len(PROMPTS), len(PROMPTS) * N_STEPS)
    assert found.differing == 0
