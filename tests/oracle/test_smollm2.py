"""The default model against ``transformers``, which reads and dequantizes the same GGUF file by
itself.

float32: the same greedy tokens for 128 steps on 20 prompts, and logits within FLOAT32 of the
oracle's largest. bfloat16 and int8 (auto), teacher-forced on those texts: logits within BOUNDS,
the same argmax wherever the oracle's margin exceeds that of JUDGED, and perplexity within 0.5 %.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from kvasir import LLM, SamplingParams
from kvasir.core.plan import SlotOpen
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from tests.loading import BLOCK, GREEDY, load, sizes_for
from tests.native import BEST
from tests.planned import placed, step_plan
from tests.smollm2 import smollm2

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(900),
]

N_STEPS = 128
MAX_LEN = 256
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "The three laws of thermodynamics are",
    "def fibonacci(n):",
    "In 1969, the first humans",
    "Water boils at",
    "The recipe needs two eggs, a cup of flour and",
    "import numpy as np\n",
    "Question: What is 7 times 8?\nAnswer:",
    "The quick brown fox",
    "To be or not to be,",
    "Photosynthesis is the process by which",
    "The stock market fell today because",
    "She opened the door and saw",
    "List of the planets of the solar system:\n1.",
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
    "Dear Sir or Madam,",
    "A binary search tree is",
    "The history of the Roman Empire begins",
    "Es war einmal ein König, der",
)
FLOAT32 = 2e-5
"""Largest difference over the oracle's largest logit (measured 7.5e-6)."""
BOUNDS = {"bfloat16": 0.05, "auto": 0.12}
"""As FLOAT32, for the modes that round activations (measured 0.037 and 0.082; perplexity 0.01 % and
0.39 % off)."""
PERPLEXITY = 0.005
JUDGED = {"bfloat16": (0.01, 2250), "auto": (0.03, 1650)}
"""The oracle's margin, as a share of the text's largest logit, from which on the argmax is judged,
and how many positions that must be (measured 2307 and 1727 of 2719). Far below twice the bounds,
which alone would say nothing more; the largest margin at which they differ was 0.0024 and 0.0136.
"""

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt, what the model wrote after it in float32, and the oracle's logits after each
    token."""

    tokens: tuple[int, ...]
    n_prompt: int
    expected: Logits


@pytest.fixture(scope="module")
def oracle() -> Callable[[tuple[int, ...]], Logits]:
    torch = pytest.importorskip("torch", reason="the oracle needs PyTorch: make test-oracle")
    transformers = pytest.importorskip("transformers", reason="make test-oracle installs it")
    path = smollm2()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()

    def logits(tokens: tuple[int, ...]) -> Logits:
        with torch.no_grad():
            return np.asarray(model(torch.tensor([tokens]), use_cache=False).logits[0].numpy())

    return logits


@pytest.fixture(scope="module")
def texts(oracle: Callable[[tuple[int, ...]], Logits]) -> list[Text]:
    """Written in one batch: one answer makes it equal to one at a time."""
    params = SamplingParams(temperature=0, max_tokens=N_STEPS, ignore_eos=True)
    with LLM(model=str(smollm2()), dtype="float32", max_model_len=MAX_LEN) as llm:
        outputs = llm.generate(list(PROMPTS), params, use_tqdm=False)
    return [
        Text(tokens, len(out.prompt_token_ids), oracle(tokens))
        for out in outputs
        for tokens in [(*out.prompt_token_ids, *out.outputs[0].token_ids)]
    ]


def native_logits(dtype: str, texts: list[Text]) -> list[Logits]:
    """Teacher-forced, after each token."""
    model = load(smollm2(), dtype, max_positions=MAX_LEN)
    sizes = sizes_for(model.config, 1, MAX_LEN)
    executor = CpuExecutor(model.program, model.binding, sizes, CpuSettings(2, BEST))
    found = []
    for text in texts:
        n = len(text.tokens)
        row = placed(0, 0, text.tokens, (tuple(range(-(-n // BLOCK))),), n_logits=n)
        logits = np.zeros((n, sizes.vocab_size), np.float32)
        executor.run(step_plan(0, (row,), (SlotOpen(0, GREEDY, text.tokens),)), logits=logits)
        found.append(logits)
    return found


def relative_errors(found: list[Logits], texts: list[Text]) -> list[float]:
    return [
        float(np.abs(logits - text.expected).max() / np.abs(text.expected).max())
        for logits, text in zip(found, texts, strict=True)
    ]


def perplexity(logits: list[Logits], texts: list[Text]) -> float:
    """Of the texts after their prompts."""
    losses = []
    for rows, text in zip(logits, texts, strict=True):
        scores = rows[text.n_prompt - 1 : -1].astype(np.float64)
        top = scores.max(axis=1)
        logsumexp = np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top
        losses.append(
            logsumexp - scores[np.arange(len(scores)), list(text.tokens[text.n_prompt :])]
        )
    return float(np.exp(np.concatenate(losses).mean()))


def test_float32_writes_what_the_oracle_writes(texts: list[Text]) -> None:
    for text in texts:
        written = text.tokens[text.n_prompt :]
        assert len(written) == N_STEPS
        assert tuple(text.expected[text.n_prompt - 1 : -1].argmax(axis=1)) == written


def test_float32_logits(texts: list[Text]) -> None:
    errors = relative_errors(native_logits("float32", texts), texts)
    print(f"float32: largest error {max(errors):.2e} of the largest logit")
    assert max(errors) <= FLOAT32


@pytest.mark.parametrize("dtype", BOUNDS)
def test_rounded_modes_teacher_forced(dtype: str, texts: list[Text]) -> None:
    found = native_logits(dtype, texts)
    errors = relative_errors(found, texts)
    ratio = perplexity(found, texts) / perplexity([text.expected for text in texts], texts)
    print(f"{dtype}: error {max(errors):.3f} of the largest logit, perplexity {ratio - 1:+.2%}")
    assert max(errors) <= BOUNDS[dtype]
    assert abs(ratio - 1) < PERPLEXITY
    least_margin, least_judged = JUDGED[dtype]
    n_judged = 0
    for logits, text in zip(found, texts, strict=True):
        two = np.sort(text.expected, axis=1)[:, -2:]
        sure = two[:, 1] - two[:, 0] > least_margin * np.abs(text.expected).max()
        assert (logits.argmax(axis=1) == text.expected.argmax(axis=1))[sure].all()
        n_judged += int(sure.sum())
    print(f"{dtype}: {n_judged} positions judged")
    assert n_judged >= least_judged
