"""``kvasir evaluate``: figures as NumPy has them of the executor's logits, bounds, errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from kvasir.cli.main import run_command
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError
from kvasir.core.groups import KVGroup
from kvasir.engine.build import build_engine
from kvasir.evaluation.evaluate import Evaluation, evaluate
from kvasir.evaluation.figures import t_quantile
from kvasir.evaluation.gates import parse_gate
from kvasir.evaluation.reader import ChunkReader
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.tokenizer.load import load_tokenizer
from kvasir.weights.source import open_model
from tests import tiny
from tests.loading import Loaded, load, sizes_for, whole_prompt
from tests.native import BEST, native_logits, plan_logits
from tests.tiny_encoders import bert
from tests.tiny_scan import mamba2

TEXT = "the rain in the north ends and stars are seen on the stone in order to lead us home. " * 9
SIZE = 64


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "text.txt").write_text(TEXT)
    llama = tiny.llama()
    return {
        "text": folder / "text.txt",
        "exact": tiny.write_gguf_model(llama, folder / "exact.gguf"),
        "rounded": tiny.write_gguf_model(llama, folder / "rounded.gguf", "Q4_0"),
        "windows": tiny.write_gguf_model(tiny.gemma3(), folder / "windows.gguf"),
        "states": tiny.write_hf(mamba2(), folder / "states"),
        "vectors": tiny.write_hf(bert(), folder / "vectors"),
        "other": tiny.write_hf(tiny.llama(vocab_size=352), folder / "other"),
    }


def asked(models: dict[str, Path], model: str, text: str = "", **more: object) -> Evaluation:
    options = EngineOptions(model=str(models[model]), threads=2, dtype="float32")
    return Evaluation(options, text or str(models["text"]), **{"chunk_size": SIZE, **more})  # type: ignore[arg-type]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


def logs(path: Path, chunk: list[int]) -> np.ndarray:
    """Of one step over the whole chunk, [scored tokens, vocab]."""
    return log_softmax(native_logits(load(path, "float32"), tuple(chunk))[SIZE // 2 : -1])


def test_figures_are_those_of_the_logits(models: dict[str, Path]) -> None:
    found = evaluate(asked(models, "rounded", reference=str(models["exact"]), n_chunks=3))
    source = open_model(models["exact"])
    ids = load_tokenizer(source).encode(TEXT)
    loss, ref, kld, same, dp = [], [], [], [], []
    for i in range(3):
        chunk = ids[i * SIZE : (i + 1) * SIZE]
        p, q = logs(models["rounded"], chunk), logs(models["exact"], chunk)
        targets = (np.arange(len(p)), chunk[SIZE // 2 + 1 :])
        loss.append(-p[targets])
        ref.append(-q[targets])
        kld.append((np.exp(q) * (q - p)).sum(axis=1))
        same.append(p.argmax(axis=1) == q.argmax(axis=1))
        dp.append(np.exp(p[targets]) - np.exp(q[targets]))
    means = np.mean(loss, axis=1)
    assert found.tokens == 3 * (SIZE // 2 - 1)
    assert found.ppl == pytest.approx(np.exp(means.mean()))
    assert found.ppl_error == pytest.approx(found.ppl * means.std(ddof=1) / 3**0.5)
    beside = found.against
    assert beside is not None and beside.ppl == pytest.approx(np.exp(np.mean(ref)))
    assert beside.kld.value == pytest.approx(np.mean(kld)) and beside.kld.value > 0
    assert beside.top1.value == pytest.approx(np.mean(same))
    assert beside.rms_dp == pytest.approx(np.sqrt(np.mean(np.square(dp))))
    gaps = np.mean(np.array(loss) - np.array(ref), axis=1)
    width = 4.3027 * gaps.std(ddof=1) / 3**0.5
    assert beside.ppl_ratio.low == pytest.approx(np.exp(gaps.mean() - width))
    assert beside.ppl_ratio.high == pytest.approx(np.exp(gaps.mean() + width))


@pytest.mark.parametrize("name", ["windows", "states"])
def test_windows_and_states_read_in_steps_as_whole(name: str, models: dict[str, Path]) -> None:
    """Chunks of 256 are read in two steps; a window of 8 leaves most blocks behind."""
    found = evaluate(asked(models, name, chunk_size=256))
    ids, size = load_tokenizer(open_model(models[name])).encode(TEXT), 256
    loss = []
    for i in range(len(ids) // size):
        chunk = ids[i * size : (i + 1) * size]
        model = load(models[name], "float32", 256)
        p = log_softmax(_second_half(model, chunk)[:-1])
        loss.append(-p[np.arange(len(p)), chunk[size // 2 + 1 :]])
    assert found.chunks == len(loss) and found.ppl == pytest.approx(np.exp(np.mean(loss)))


def _second_half(model: Loaded, chunk: list[int]) -> np.ndarray:
    sizes = sizes_for(model.config, n_seqs=1, max_len=256)
    executor = CpuExecutor(model.program, model.binding, sizes, CpuSettings(2, BEST))
    plan = whole_prompt(tuple(chunk), len(chunk) // 2, n_groups=len(sizes.groups))
    return plan_logits(executor, plan)


def test_windows_with_few_blocks_take_shorter_steps(models: dict[str, Path]) -> None:
    """Three blocks of 16 tokens for a window of 8: the same logits, from blocks used again."""
    path = str(models["windows"])
    options = EngineOptions(
        model=path, max_model_len=128, max_num_seqs=1, max_num_batched_tokens=128, threads=2
    )
    reader = ChunkReader(build_engine(options).executor)
    expected = reader.read(tokens := [(17 * i * i + 5 * i) % 320 for i in range(128)], 0, 128, 64)
    expected = expected.copy()
    (window,) = reader._sizes.windows
    few = (KVGroup(3, window.window),)
    reader._sizes = structs.replace(reader._sizes, windows=few)
    assert reader._reach(0) == 48 and window.n_blocks > 3
    assert np.array_equal(reader.read(tokens, 0, 128, 64), expected)


def test_a_model_beside_itself_and_its_own_texts(models: dict[str, Path]) -> None:
    """Equal models have no divergence, and the texts of a seed are the same ones."""
    first, again, other = (
        evaluate(
            asked(models, "exact", "self", reference=str(models["exact"]), n_chunks=2, seed=seed)
        )
        for seed in (3, 3, 4)
    )
    beside = first.against
    assert beside is not None and first == again and first != other
    assert beside.kld.value == beside.kld_max == beside.rms_dp == 0
    assert beside.top1.value == beside.ppl_ratio.value == 1
    assert 1 < first.ppl < tiny.VOCAB


def test_bounds_decide_the_status(
    models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", str(models["rounded"]), "--reference", str(models["exact"])]
    words += ["--text", str(models["text"]), "--chunk-size", "64", "--chunks", "2", "--json"]
    assert run_command([*words, "--require", "kld<=9", "--require", "top1>=0"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert run_command([*words, "--require", "kld < 1e-9"]) == 1
    told = capsys.readouterr()
    assert f"kld is {said['against']['kld']['value']:.6g}, required < 1e-09" in told.err
    assert json.loads(told.out) == said
    assert run_command([x for x in words if x != "--json"]) == 0
    assert "KL divergence" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([], ["no text", "--text self"]),
        (["--text", "nothing.txt"], ["nothing.txt is no file"]),
        (["--text", "self", "--require", "kld<=1"], ["--reference"]),
        (["--text", "self", "--require", "loss<1"], ["'loss<1'", "kld"]),
        (["--text", "self", "--chunks", "1"], ["--chunks is 1", "2"]),
        (["--text", "self", "--chunk-size", "63"], ["--chunk-size is 63"]),
        (["--text", "TEXT", "--chunk-size", "512"], ["chunks of 512", "--chunk-size"]),
        (["--text", "TEXT", "--reference", "OTHER"], ["320 and 352 tokens", "vocabularies"]),
    ],
)
def test_what_cannot_be_evaluated_says_what_to_give(
    more: list[str],
    words: list[str],
    models: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"TEXT": str(models["text"]), "OTHER": str(models["other"])}
    said = ["evaluate", str(models["exact"]), *(places.get(x, x) for x in more)]
    assert run_command(said) == 2
    told = capsys.readouterr().err
    assert all(word in told for word in words), told


@pytest.mark.parametrize("text", ["kld", "kld=1", "kld<=", "kld<=nan", "kld<=1e999", "kld<=1-"])
def test_a_bound_that_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match="--require"):
        parse_gate(text)


def test_a_model_that_writes_nothing_is_refused(models: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="writes none"):
        evaluate(asked(models, "vectors"))


def test_quantiles_of_t() -> None:
    """As tables have them."""
    known = {1: 12.706, 4: 2.776, 5: 2.571, 9: 2.262, 19: 2.093, 30: 2.042, 1000: 1.962}
    assert {n: t_quantile(n) for n in known} == pytest.approx(known, abs=4e-3)
