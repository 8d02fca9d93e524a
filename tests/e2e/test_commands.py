"""The commands on a tiny model, from its file to standard output."""

from __future__ import annotations

import io
import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image
from rich.console import Console

from kvasir import LLM, SamplingParams
from kvasir.bench.memory import KV_BYTES
from kvasir.cli.chat import Conversation
from kvasir.cli.local import LocalModel
from kvasir.cli.main import run_command
from kvasir.cli.start_local import Local, start_local
from kvasir.config.options import EngineOptions
from kvasir.core.errors import RequestError
from kvasir.engine.build import build_engine
from kvasir.exec.cpu.executor import CpuExecutor
from kvasir.ir.bundle import Bundle
from kvasir.ir.printer import render
from kvasir.ir.program import Program
from kvasir.serve.sync_client import EngineGone
from tests import tiny, tiny_vision

SMALL = ["--max-model-len", "128", "--kv-memory", "1MiB", "--threads", "1"]
PROMPT = "the cat sat"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    return str(tiny.write_hf(tiny.llama(), folder))


@pytest.fixture
def local(model: str) -> Local:
    return start_local(EngineOptions(model=model, max_model_len=128, kv_memory="1MiB", threads=1))


LASTING = SamplingParams(temperature=0.0, max_tokens=4000, ignore_eos=True)
"""An answer that is not over before something is done about it."""


@pytest.fixture
def patient(tmp_path: Path) -> Local:
    """With room for such an answer."""
    model = tiny.write_hf(tiny.llama(max_position_embeddings=4096), tmp_path / "long")
    return start_local(EngineOptions(model=str(model), kv_memory="16MiB", threads=1))


def engines() -> list[psutil.Process]:
    """Of this process; a server that other tests share is none."""
    children = psutil.Process().children()
    return [child for child in children if "tests.e2e.fault_server" not in child.cmdline()]


def offline(model: str, *, chats: bool) -> str:
    """What the offline class answers, greedy."""
    params = SamplingParams(temperature=0.0, max_tokens=12)
    with LLM(model, max_model_len=128, kv_memory="1MiB", threads=1) as llm:
        talk = [{"role": "user", "content": PROMPT}]
        found = llm.chat(talk, params, False) if chats else llm.generate(PROMPT, params, False)
    return found[0].outputs[0].text


@pytest.mark.parametrize("raw", [False, True])
def test_run_answers_like_the_offline_class(
    model: str, raw: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", model, PROMPT, "--max-tokens", "12", *SMALL, *(["--raw"] if raw else [])]
    assert run_command(words) == 0
    assert capsys.readouterr().out == offline(model, chats=not raw) + "\n"


def test_run_reads_standard_input(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(PROMPT))
    assert run_command(["run", model, "-", "--max-tokens", "12", *SMALL]) == 0
    assert capsys.readouterr().out == offline(model, chats=True) + "\n"


def test_run_and_chat_see_an_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tiny_vision.write(tiny_vision.smolvlm(), tmp_path / "model"))
    path, sizes = tmp_path / "image.png", ["--max-model-len", "256", "--threads", "1"]
    picture = Image.linear_gradient("L").resize((90, 50)).convert("RGB")
    picture.save(path)
    parts = [{"type": "image_pil", "image_pil": picture}, {"type": "text", "text": PROMPT}]
    with LLM(folder, max_model_len=256, threads=1) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=12)
        (found,) = llm.chat([{"role": "user", "content": parts}], params, False)
    expected = found.outputs[0].text
    asked = ["run", folder, PROMPT, "--image", str(path), "--max-tokens", "12", *sizes]
    assert run_command(asked) == 0
    assert capsys.readouterr().out == expected + "\n"
    screen = io.StringIO()
    with closing(start_local(EngineOptions(model=folder, max_model_len=256, threads=1))) as model:
        talk = Conversation(model, params, None, Console(file=screen, width=400))
        talk.take(f"/image {tmp_path / 'none.png'}")
        talk.take(PROMPT)
        assert "No such file" in screen.getvalue() and talk.messages == []
        talk.take(f"/image {path}")
        talk.take(PROMPT)
    assert talk.messages[1] == {"role": "assistant", "content": expected}
    assert run_command(["run", folder, PROMPT, "--image", str(tmp_path), *sizes]) != 0
    assert "give --image a file" in capsys.readouterr().err
    assert run_command(["run", folder, PROMPT, "--image", str(path), "--raw", *sizes]) != 0
    assert "--raw" in capsys.readouterr().err


def test_an_invalid_parameter_is_one_line(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", model, PROMPT, "--top-p", "2", *SMALL]) == 2
    assert capsys.readouterr().err.startswith("kvasir: top_p must be")


def test_an_answer_that_is_dropped_frees_its_blocks(patient: Local) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    answer = patient.complete(PROMPT, LASTING)
    next(answer)
    answer.close()
    whole = "".join(patient.complete(PROMPT, params))
    assert whole == "".join(patient.complete(PROMPT, params))
    assert isinstance(patient, LocalModel)
    stats = patient.stats
    assert (stats.n_running, stats.n_cancelled) == (0, 1)
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
    patient.close()


def test_images_for_a_model_that_sees_none_are_told(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its template, which may know no parts of a message, is asked."""
    monkeypatch.setattr(local, "_template", None)
    url = "data:image/png;base64,iVBORw0KGgo="
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what?"}]
    with pytest.raises(RequestError, match="this model reads no images"):
        next(local.chat([{"role": "user", "content": parts}], LASTING))
    local.close()


def test_an_engine_that_dies_is_told(patient: Local) -> None:
    assert isinstance(patient, LocalModel)
    (engine,) = engines()
    answer = patient.complete(PROMPT, LASTING)
    next(answer)
    engine.kill()
    with pytest.raises(EngineGone, match=r"ended by SIGKILL \(status -9\): "):
        list(answer)
    patient.close()


def test_an_interrupted_close_kills_the_engine(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(local, LocalModel)

    def interrupt(message: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(local._client, "_send", interrupt)
    with pytest.raises(KeyboardInterrupt):
        local.close()
    assert engines() == []


@pytest.mark.parametrize(
    ("options", "status"), [(("--kv-memory", "1TiB"), 2), (("--cpu-affinity", "65535"), 2)]
)
def test_what_the_engine_refuses_is_told(
    model: str, options: tuple[str, ...], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["run", model, PROMPT, *options]) == status
    assert capsys.readouterr().err.startswith("kvasir: ")
    assert engines() == []


def test_a_model_that_is_not_there_leaves_no_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["run", str(tmp_path / "none.gguf"), PROMPT]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert engines() == []


def test_a_conversation_that_outgrows_the_context_says_so(local: Local) -> None:
    screen = io.StringIO()
    params = SamplingParams(temperature=0.0, max_tokens=8)
    talk = Conversation(local, params, None, Console(file=screen, width=200))
    talk.take("word " * 200)
    assert talk.messages == []
    assert "context holds 128" in screen.getvalue()
    with pytest.raises(RequestError):
        local.complete("word " * 200, params)
    local.close()


def test_inspect_shows_the_model_and_its_program(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["inspect", "model", model, "--tensors"]) == 0
    shown = capsys.readouterr().out
    assert "family                  llama" in shown
    assert "model.embed_tokens.weight" in shown
    ops = {}
    for stage in ("raw", "fused", "lowered"):
        assert run_command(["inspect", "program", model, "--stage", stage]) == 0
        ops[stage] = capsys.readouterr().out
    assert " = rope(" in ops["raw"]
    assert " = rope_write(" in ops["fused"]
    assert " = rope_write(" in ops["lowered"]
    assert re.search(r"\nphases \d+, \d+\.\d a layer\n$", ops["lowered"])


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
def test_inspect_shows_the_program_that_runs(
    model: str, dtype: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are float32: with auto they decide the layouts and the type of the cache."""
    assert run_command(["inspect", "program", model, "--dtype", dtype]) == 0
    shown = capsys.readouterr().out
    run: list[Program] = []

    class Shown(CpuExecutor):
        def __init__(self, bundle: Bundle, *rest: Any) -> None:
            run.append(bundle.target)
            super().__init__(bundle, *rest)

    monkeypatch.setattr("kvasir.exec.cpu.backend.CpuExecutor", Shown)
    build_engine(EngineOptions(model=model, dtype=dtype)).engine.close()
    assert shown.startswith(render(run[0]))


@pytest.mark.parametrize("kind", ["latency", "throughput"])
def test_bench_writes_a_complete_report(model: str, kind: str, tmp_path: Path) -> None:
    shape = ["--input-len", "8", "--output-len", "4", "--repeat", "2", "--no-ceilings"]
    more = ["--prefill", "32"] if kind == "latency" else ["--num-prompts", "3"]
    path = tmp_path / "report.json"
    command = ["bench", kind, model, *shape, *more, "--output", str(path), *SMALL]
    assert run_command(command) == 0
    report = json.loads(path.read_text())
    assert report["kind"] == kind
    assert report["engine"]["resolved"]["threads"].startswith("1: ")
    name = "tokens_per_second" if kind == "latency" else "output_tokens_per_second"
    results = report["results"]["decode"] if kind == "latency" else report["results"]
    assert len(results[name]["runs"]) == 2


def test_bench_start_measures_both_commands(model: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert (
        run_command(["bench", "start", model, "--repeat", "1", "--output", str(path), *SMALL]) == 0
    )
    report = json.loads(path.read_text())
    assert report["engine"]["options"] == SMALL
    for name in ("run", "serve"):
        assert 0.1 < report["results"][name]["seconds_to_first_token"]["median"] < 60


def test_bench_start_tells_why_a_process_failed(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["bench", "start", model, "--repeat", "1", "--isa", "none"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("kvasir: kvasir run failed: ")
    assert "isa" in said


def test_bench_memory_counts_both_processes(model: str, tmp_path: Path) -> None:
    output = tmp_path / "memory.json"
    assert run_command(["bench", "memory", model, "--output", str(output), *SMALL]) == 0
    results = json.loads(output.read_text())["results"]
    api, engine = results["processes"]["api"], results["processes"]["engine"]
    for process in (api, engine):
        assert 10_000_000 < process["proportional"] <= process["resident"] < 500_000_000
        assert 0 <= process["weights"] < process["resident"]
    resident = api["resident"] + engine["resident"]
    weights = api["weights"] + engine["weights"]
    assert results["beyond_weights"] == resident - weights - KV_BYTES
    assert results["limit"] == 150_000_000 + 500 * tiny.llama().size("vocab_size")
