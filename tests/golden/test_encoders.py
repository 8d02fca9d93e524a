"""Golden states of encoders, by ``transformers`` (see tests/oracle), against both executors: within
1e-4 of the largest in float32, 5 % of it with bf16 keys and values."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kvasir.core.request import NO_DRAWS, EngineRequest, PoolKind
from kvasir.core.sizes import EngineSizes
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.exec.reference import ReferenceExecutor, load_weights
from kvasir.ir.pool import with_pool
from tests import tiny
from tests.exactness import MakeExecutor, Sizes, baseline
from tests.loading import Loaded, load
from tests.native import BEST
from tests.oracle.cases import ENCODERS

GOLDEN = Path(__file__).parent
SIZES = Sizes(tiny.VOCAB, max_model_len=128, whole_prompts=True)


def maker(model: Loaded, executor: str) -> MakeExecutor:
    program = with_pool(model.program)

    def make(sizes: EngineSizes) -> CpuExecutor | ReferenceExecutor:
        if executor == "native":
            return CpuExecutor(program, model.binding, sizes, CpuSettings(2, BEST))
        return ReferenceExecutor(program, load_weights(program, model.binding), sizes)

    return make


def worst_error(name: str, model: Loaded, executor: str) -> float:
    """Largest difference over largest number, of the first token's state and the last's."""
    make, found = maker(model, executor), []
    kinds: tuple[PoolKind, ...] = ("cls", "last")
    for prompt in json.loads((GOLDEN / f"{name}.json").read_text())["prompts"]:
        tokens, states = tuple(prompt["tokens"]), prompt["states"]
        asked = [EngineRequest(i, tokens, NO_DRAWS, pooling=x) for i, x in enumerate(kinds)]
        answers = baseline(make, asked, SIZES).answers
        for i, place in enumerate((0, len(tokens) - 1)):
            expected = np.array(states[str(place)])
            state = np.frombuffer(answers[i].vector, np.float32)
            found.append(np.abs(state - expected).max() / np.abs(expected).max())
    assert len(found) == 4
    return float(max(found))


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("executor", ["reference", "native"])
@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_float32(name: str, executor: str, kind: str, tmp_path: Path) -> None:
    made, path = ENCODERS[name](), tmp_path / "m.gguf"
    path = tiny.write_hf(made, tmp_path) if kind == "hf" else tiny.write_gguf_model(made, path)
    assert worst_error(name, load(path, "float32"), executor) <= 1e-4


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("executor", ["reference", "native"])
def test_rounded(name: str, executor: str, tmp_path: Path) -> None:
    path = tiny.write_hf(ENCODERS[name](), tmp_path)
    assert 1e-4 < worst_error(name, load(path, "auto"), executor) <= 0.05
