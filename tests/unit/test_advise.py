"""Which format to take: sizes are those that are written, what does not fit is refused, the choice
weighs speed and distance, and what is measured is the model's own shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kvasir.bench import pretend_times
from kvasir.bench.advise import AdvisedFormat, AskedAdvice, _fitting, _timed, choice
from kvasir.bench.candidates import AS_IT_IS, candidates, named
from kvasir.bench.pretend import pretended
from kvasir.bench.pretend_times import FormatTimes, RequestLoad
from kvasir.checkpoints import build_program, ignorable
from kvasir.checkpoints.loaded import LoadedModel, load_model
from kvasir.cli.advise_text import advice_text
from kvasir.cli.main import run_command
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError
from kvasir.evaluation.figures import Against, Figures, Interval
from kvasir.exec.cpu.passes import lower_passes
from kvasir.quantize.quantize import CalibratedMethod, quantize
from kvasir.weights.bind import bind
from tests import tiny
from tests.quantized_kinds import llama
from tests.tiny import write_gguf_model
from tests.tiny_encoders import gemma_embedding

LOAD = ["--batch", "2", "--prompt", "48", "--output", "8", "--threads", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_hf(llama(), tmp_path_factory.mktemp("advise") / "model")


def figures(kld: float) -> Figures:
    one = Interval(kld, kld, kld)
    return Figures("m", 2, 512, 512, 9.0, 0.1, Against("o", 9.0, 0.1, one, one, 0.1, 0.1, one, 0.1))


def test_sizes_are_those_that_are_written(folder: Path, tmp_path: Path) -> None:
    found = {x.name: x for x in candidates(load_model(str(folder)))}
    assert list(found) == [
        *(AS_IT_IS, "int8", "smoothquant", "fp8", "mxfp4"),
        *("gptq 4 bits", "awq 4 bits", "rtn 4 bits"),
    ]
    for name in ("int8", "fp8", "mxfp4", "rtn 4 bits"):
        method = found[name].method
        assert method is not None
        made = quantize(str(folder), method, tmp_path / name.split()[0])
        assert made.n_bytes == found[name].n_bytes
        assert made.method == method.name


def test_files_of_gguf(tmp_path: Path) -> None:
    """What is quantized is not made into something else, but may be fetched."""
    path = write_gguf_model(tiny.llama(), tmp_path / "m.gguf", "Q8_0")
    found = {x.name: x for x in candidates(load_model(str(path)))}
    assert "Q8_0" not in found and found["Q4_0"].method is None
    assert found["Q4_0"].command == "a Q4_0 file of the model"
    assert set(found["Q4_K_M"].formats.values()) == {"Q5_0"}  # of rows below 256, but the head's
    plain = write_gguf_model(tiny.llama(), tmp_path / "f.gguf", "F32")
    found = {x.name: x for x in candidates(load_model(str(plain)))}
    for name in ("Q4_0", "Q4_K_M"):
        method = found[name].method
        assert method is not None
        made = quantize(str(plain), method, tmp_path / f"{name}.gguf")
        assert made.n_bytes == found[name].n_bytes


def layouts(model: LoadedModel) -> dict[str, str]:
    program = build_program(model.config, max_positions=64)
    binding = bind(program, model.source, ignorable(model.config))
    lowered = lower_passes(program, dtype="auto", formats=binding.formats())
    return {weight.name: weight.layout for weight in lowered.weights.values()}


def test_what_is_measured_has_the_layouts_of_what_would_be_made(
    folder: Path, tmp_path: Path
) -> None:
    model = load_model(str(folder))
    for candidate in candidates(model):
        if candidate.method is None or isinstance(candidate.method, CalibratedMethod):
            continue
        output = tmp_path / candidate.name.split()[0]
        quantize(str(folder), candidate.method, output)
        made = layouts(load_model(str(output)))
        assert made == layouts(pretended(model, candidate.formats, 99)), candidate.name


def test_fewer_layers_say_what_all_take(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert FormatTimes(3.0, 0.5).to_layers(FormatTimes(2.0, 0.3), 2, 4, 10) == FormatTimes(6.0, 1.1)
    model = load_model(str(folder))
    layers = (model.config.layers * 4)[:6]
    assert len(pretended(model, {}, 1).config.layers) == 1
    asked = []

    def measured(model: Any, formats: Any, n: int, load: Any, options: Any) -> FormatTimes:
        asked.append(n)
        return FormatTimes(1.0 + n, 0.5 * n)

    monkeypatch.setattr(pretend_times, "_measured", measured)
    large = replace(model, config=replace(model.config, layers=layers))
    n_bytes = 3 * pretend_times.WHOLE_BYTES
    found = pretend_times.format_times(large, {}, n_bytes, RequestLoad(), EngineOptions())
    assert asked == [1, 2] and found == FormatTimes(7.0, 3.0)


def test_memory_is_that_of_each_format(folder: Path) -> None:
    """There is a size that has room for the smaller alone."""
    model = load_model(str(folder))
    found = [x for x in candidates(model) if x.name in (AS_IT_IS, "rtn 4 bits")]
    load, fits = RequestLoad(1, 48, 8), dict[str, list[int]]()
    for one in found:
        asked = [AskedAdvice(load, memory) for memory in range(50_000, 4_000_000, 50_000)]
        judged = [_fitting(model, one, x, EngineOptions(threads=1)) for x in asked]
        fits[one.name] = [i for i, x in enumerate(judged) if not x.refusal]
    assert 0 < min(fits["rtn 4 bits"]) < min(fits[AS_IT_IS])


def test_contexts_make_steps_longer() -> None:
    """By the positions beyond those that steps were measured with."""
    one = _timed(AdvisedFormat("a", 1, ""), FormatTimes(1.0, 0.5), RequestLoad(2, 100, 40), 0.01)
    assert (one.prefill, one.decode) == (100, pytest.approx(2 / 1.38))
    assert one.seconds == pytest.approx(2 * 1.0 + 40 * 1.38)


def test_the_choice() -> None:
    own = AdvisedFormat(AS_IT_IS, 100, "", seconds=2.0)
    quick, near = AdvisedFormat("a", 30, "", seconds=1.0), AdvisedFormat("b", 50, "", seconds=1.04)
    assert choice([]) is None and choice([AdvisedFormat("x", 1, "", refusal="no")]) is None
    assert choice([quick, near, own]) == near  # about as fast, and more of the model is left
    measured = [
        AdvisedFormat("a", 30, "", seconds=1.0, figures=figures(0.1)),
        AdvisedFormat("b", 50, "", seconds=1.04, figures=figures(0.2)),
    ]
    assert choice([*measured, own]) == measured[0]
    assert choice([AdvisedFormat("a", 30, "", seconds=1.99), own]) == own
    text = advice_text(AskedAdvice(RequestLoad()), [AdvisedFormat("a", 30, "", seconds=1.99), own])
    assert "take it as it is" in text
    assert "nothing serves this load" in advice_text(AskedAdvice(RequestLoad()), [])
    for is_made, how in ((True, "--text self says"), (False, "kvasir evaluate FILE")):
        other = AdvisedFormat("a", 30, "", seconds=1.0, decode=1.0, prefill=1.0, is_made=is_made)
        whole = [other, replace(own, decode=1.0, prefill=1.0)]
        assert how in advice_text(AskedAdvice(RequestLoad()), whole)


def test_names(folder: Path) -> None:
    found = candidates(load_model(str(folder)))
    assert named(found, None) == found
    assert [x.name for x in named(found, "Int, gptq")] == [AS_IT_IS, "int8", "gptq 4 bits"]
    with pytest.raises(ConfigError, match="--formats names q9: this model has as it is, awq"):
        named(found, "q9")


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["advise", str(folder), *LOAD]
    assert run_command([*words, "--json", "--formats", "int8,rtn"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["load"] == {"batch": 2, "prompt": 48, "output": 8}
    names = {x["name"] for x in said["formats"]}
    assert names == {AS_IT_IS, "int8", "rtn 4 bits"} and said["choice"] in names
    assert all(x["decode"] > 0 and x["prefill"] > 0 for x in said["formats"])
    for x in said["formats"]:
        assert x["seconds"] == pytest.approx(2 * 48 / x["prefill"] + 2 * 8 / x["decode"])
    assert run_command([*words, "--memory", "100KiB", "--formats", "int8"]) == 0
    text = capsys.readouterr().out
    assert "nothing serves this load here" in text
    assert run_command([*words, "--require", "kld<=1"]) == 2
    assert "--require is of --text" in capsys.readouterr().err


def test_what_is_too_far_off_is_not_taken(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["advise", str(folder), *LOAD, "--formats", "int8,rtn", "--text", "self"]
    assert run_command([*words, "--chunks", "2", "--require", "kld<=1e-9", "--json"]) == 0
    said = {x["name"]: x for x in json.loads(capsys.readouterr().out)["formats"]}
    assert "kld is" in said["int8"]["refusal"] and said[AS_IT_IS]["refusal"] == ""
    kld = {
        name: said[name]["figures"]["against"]["kld"]["value"] for name in ("int8", "rtn 4 bits")
    }
    assert 0 < kld["int8"] < kld["rtn 4 bits"]


def test_the_whole_context_is_a_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what makes vectors has no answers to be measured."""
    model = tiny.write_hf(tiny.llama(max_position_embeddings=128), tmp_path / "model")
    words = ["--threads", "1", "--formats", "int8", "--json"]
    for n_prompt, n_output in ((100, 28), (120, 8), (40, 88)):
        load = ["--prompt", str(n_prompt), "--output", str(n_output)]
        assert run_command(["advise", str(model), *load, *words]) == 0
        assert json.loads(capsys.readouterr().out)["choice"]
    assert (
        run_command(["advise", str(model), *load, *words, "--text", "self", "--chunks", "2"]) == 0
    )
    found = {x["name"]: x["figures"] for x in json.loads(capsys.readouterr().out)["formats"]}
    assert found["int8"]["chunk_size"] == 128
    monkeypatch.setattr("kvasir.bench.advise.attention_seconds", None)  # said before it is measured
    assert run_command(["advise", str(model), *words, "--text", str(tmp_path / "no")]) == 2
    assert "is no file" in capsys.readouterr().err
    vectors = tiny.write_hf(gemma_embedding(), tmp_path / "vectors")
    assert run_command(["advise", str(vectors), *words]) == 2
    assert "makes vectors" in capsys.readouterr().err


def test_what_cannot_be_compared_meets_no_requirement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf_model(tiny.llama(), tmp_path / "m.gguf", "Q8_0")
    words = ["advise", str(path), *LOAD, "--formats", "Q4_0", "--text", "self", "--chunks", "2"]
    for gates, refusal in (([], ""), (["--require", "kld<=1"], "does not make it of this model")):
        assert run_command([*words, *gates, "--json"]) == 0
        said = {x["name"]: x["refusal"] for x in json.loads(capsys.readouterr().out)["formats"]}
        assert (
            said[AS_IT_IS] == "" and refusal in said["Q4_0"] and bool(said["Q4_0"]) == bool(gates)
        )


def test_what_is_judged_needs_room(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the largest format that is made, before anything is measured."""
    usage = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr("kvasir.bench.advise.shutil.disk_usage", lambda path: usage)
    words = ["advise", str(folder), *LOAD, "--formats", "int8,rtn", "--text", "self"]
    assert run_command(words) == 2
    said = capsys.readouterr().err
    assert "int8 is made there" in said and "TMPDIR" in said and "976.6 KiB free" in said
