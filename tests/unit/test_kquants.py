"""K-quants: blocks say what they should with the least error, mixtures are llama.cpp's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kvasir.checkpoints.loaded import LoadedModel, load_model
from kvasir.cli.main import run_command
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError, ModelError
from kvasir.evaluation.calibrate import Calibration, calibrated_by
from kvasir.evaluation.imatrix import write_imatrix
from kvasir.formats.decode import decode, values_of
from kvasir.formats.gguf import open_gguf
from kvasir.quantize.choose import Selection, linear_tensors
from kvasir.quantize.gguf_rows import BLOCK_FORMATS, Blocks, ImportantRows
from kvasir.quantize.imatrix import Imatrix
from kvasir.quantize.kpacking import K_ENCODERS
from kvasir.quantize.methods import method_named
from kvasir.quantize.mixtures import GgufMethod, LayerAt, ModelSizes, fitting, read_override
from kvasir.quantize.quantize import quantize
from kvasir.weights.source import open_model
from tests import tiny
from tests.gguf_writer import write_gguf
from tests.loading import load, reference_logits

Floats = NDArray[np.float32]
PROMPT = tuple((17 * i * i + 5 * i + 3) % tiny.VOCAB for i in range(12))

# Relative square errors of 16,384 weights of Student's t with 6 degrees of freedom, and of the same
# weighted by what columns meet, as ggml's encoders leave them: ours may be 2.5 % above.
ERRORS = {
    "Q8_0": (4.192e-05, 4.202e-05),
    "Q4_0": (0.01055, 0.009117),
    "Q4_1": (0.007743, 0.005165),
    "Q5_0": (0.002662, 0.002211),
    "Q5_1": (0.001822, 0.001208),
    "IQ4_NL": (0.007384, 0.006315),
    "Q2_K": (0.1074, 0.06574),
    "Q3_K": (0.02953, 0.02364),
    "Q4_K": (0.006538, 0.005384),
    "Q5_K": (0.001665, 0.001428),
    "Q6_K": (0.0004255, 0.0003658),
}


def sample() -> tuple[Floats, Floats]:
    """Rows, and mean squares of what their columns meet."""
    rng = np.random.default_rng(1)
    rows = (rng.standard_t(6, (16, 1024)) * 0.02).astype(np.float32)
    return rows, np.exp(rng.standard_normal(1024)).astype(np.float32)


def errors(format: str, rows: Floats, inputs: Floats | None) -> float:
    """Weighted by ``inputs``, over the weights themselves."""
    data = np.frombuffer(Blocks(format, inputs).encode(rows)[0], np.uint8)
    left = decode(format, data).reshape(rows.shape) - rows
    by = np.ones(1, np.float32) if inputs is None else inputs
    return float((np.square(left) * by).sum() / (np.square(rows) * by).sum())


@pytest.mark.parametrize("format", BLOCK_FORMATS)
def test_errors_are_no_larger_than_ggmls(format: str) -> None:
    rows, inputs = sample()
    assert errors(format, rows, None) <= 1.025 * ERRORS[format][0]
    assert errors(format, rows, inputs) <= 1.025 * ERRORS[format][1]


@pytest.mark.parametrize("format", K_ENCODERS)
def test_every_bit_of_a_block_is_in_its_place(format: str) -> None:
    """Blocks whose runs lie on a grid of their own come back nearly whole, whatever their scales
    are: one that lay elsewhere would be off by far more."""
    rng = np.random.default_rng(2)
    size = 32 if format in ("Q4_K", "Q5_K") else 16
    top = {"Q2_K": 3, "Q3_K": 7, "Q4_K": 15, "Q5_K": 31, "Q6_K": 63}[format]
    codes = rng.integers(0, top + 1, (40, 256 // size, size))
    codes[..., 0], codes[..., 1] = 0, top
    if format in ("Q3_K", "Q6_K"):
        x = (codes - (top + 1) // 2) * rng.integers(1, 32, (40, 256 // size, 1))
    else:
        top_scale = 16 if format == "Q2_K" else 64
        scales, lows = (rng.integers(1, top_scale, (40, 256 // size, 1)) for _ in range(2))
        x = codes * scales - lows * (top + 1) // 2
    rows = (x / 1024).reshape(40, 256).astype(np.float32)
    bound = {"Q2_K": 0.03, "Q3_K": 5e-3, "Q4_K": 2e-3, "Q5_K": 6e-4, "Q6_K": 2e-4}[format]
    assert errors(format, rows, None) < bound


@pytest.mark.parametrize("format", BLOCK_FORMATS)
def test_odd_weights(format: str) -> None:
    """Zeros stay zeros, one sign alone and lone numbers are met, what f16 cannot scale is refused;
    runs of rows make no difference."""
    zeros = np.zeros((2, 256), np.float32)
    data = np.frombuffer(Blocks(format).encode(zeros)[0], np.uint8)
    assert not decode(format, data).any()
    rng = np.random.default_rng(3)
    for rows in (rng.uniform(1, 2, (4, 256)), -rng.uniform(1, 2, (4, 256)), np.eye(4, 256)):
        assert errors(format, rows.astype(np.float32), None) < 0.05
    with pytest.raises(ModelError, match="largest f16"):
        Blocks(format).encode(np.linspace(-3e9, 3e9, 512, dtype=np.float32).reshape(2, 256))
    rows, inputs = sample()
    whole = Blocks(format, inputs).encode(np.tile(rows, (5, 1)))[0]
    assert whole == b"".join(Blocks(format, inputs).encode(rows)) * 5


def test_mixtures() -> None:
    """As llama-quantize takes them; 32 layers of one head of values for one of queries."""
    sizes = ModelSizes(32, 1, 0)

    def of(recipe: str, part: str, sizes: ModelSizes = sizes) -> str:
        found = [GgufMethod(recipe)._wide(f"blk.{i}.{part}.weight", sizes, True) for i in range(32)]
        usual = max(set(found), key=found.count)
        odd = [i for i in range(32) if found[i] != usual]
        return usual if not odd else f"{usual}, {found[odd[0]]} of {odd}"

    more = [i for i in range(32) if LayerAt(i, 32).takes_more]
    assert more == [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]
    for recipe in ("Q4_K_M", "Q5_K_M"):
        methods = [GgufMethod(recipe)._wide(f"blk.{i}.ffn_down.weight", sizes, True) for i in more]
        assert set(methods) == {"Q6_K"} and of(recipe, "ffn_up") == recipe[:4]
    assert of("Q4_K_S", "attn_v") == "Q4_K, Q5_K of [0, 1, 2, 3]"
    assert of("Q4_K_S", "ffn_down") == "Q4_K, Q5_K of [0, 1, 2, 3]"
    assert of("Q3_K_M", "ffn_down") == "Q4_K, Q5_K of [0, 1]"
    assert of("Q3_K_M", "attn_v") == "Q4_K, Q5_K of [0, 1]"
    assert of("Q3_K_M", "attn_output") == "Q4_K" and of("Q3_K_L", "ffn_down") == "Q5_K"
    assert of("Q2_K", "attn_v") == "Q3_K" and of("Q2_K", "attn_v", ModelSizes(32, 4, 0)) == "Q4_K"
    assert of("Q4_K_M", "attn_k", ModelSizes(32, 4, 8)) == "Q8_0"
    assert of("Q4_K_M", "attn_output", ModelSizes(32, 4, 8)) == "Q5_K"
    assert of("Q4_K_S", "attn_v", ModelSizes(80, 8, 0)) == "Q5_K"
    assert of("Q6_K", "ffn_down") == "Q6_K" and of("Q4_K_M", "attn_qkv") == "Q5_K"
    for has_head, head, embeddings in ((True, "Q6_K", "Q4_K"), (False, "Q4_K", "Q6_K")):
        method = GgufMethod("Q4_K_M")
        assert method._wide("output.weight", sizes, has_head) == head
        assert method._wide("token_embd.weight", sizes, has_head) == embeddings
    assert [fitting(x, 576) for x in K_ENCODERS] == ["IQ4_NL", "IQ4_NL", "Q5_0", "Q5_1", "Q8_0"]


def wide() -> tiny.TinyModel:
    """Rows of whole super-blocks, and some that have none."""
    sizes = {"hidden_size": 256, "intermediate_size": 288, "num_attention_heads": 4}
    return tiny.llama(**sizes, head_dim=64, num_key_value_heads=2)


def test_files(tmp_path: Path) -> None:
    """Each tensor is in its mixture's format; a text weighs; patterns win; the same bytes again."""
    origin = str(tiny.write_gguf_model(wide(), tmp_path / "origin.gguf"))
    made = tmp_path / "made.gguf"
    quantize(origin, method_named("gguf:Q4_K_M", None, None, None), made)
    source = open_model(made)
    formats = {x.name: x.format for x in source.tensors.listing() if len(x.shape) == 2}
    assert formats["blk.0.ffn_up.weight"] == "Q4_K" and formats["token_embd.weight"] == "Q4_K"
    assert formats["blk.0.ffn_down.weight"] in ("Q5_0", "Q8_0")
    assert formats["output.weight"] == "Q6_K"
    assert source.config["general.file_type"] == 15
    expected, found = (reference_logits(load(tmp_path / x), PROMPT) for x in ("origin.gguf", made))
    assert 0 < np.square(found - expected).mean() < 0.25 * np.square(expected).mean()

    def calibrated(
        model: LoadedModel, tensors: Sequence[str], kept: Path | None = None
    ) -> Calibration:
        options = EngineOptions(threads=1)
        return Calibration(model, tensors, options, "self", 2, has_grams=False)

    how = method_named("gguf:Q4_K_M", None, None, None, ("attn_q=q8_0", "attn_=Q5_K"))
    weighed = [tmp_path / x for x in ("weighed.gguf", "again.gguf")]
    for path in weighed:
        told = quantize(origin, how, path, calibrate=calibrated)
    assert set(told.rounded) == {"token_embd.weight", "output.weight"}
    assert weighed[0].read_bytes() == weighed[1].read_bytes()
    source = open_model(weighed[0])
    assert source.tensors["blk.1.attn_q.weight"].format == "Q8_0"
    assert source.tensors["blk.1.attn_k.weight"].format == "Q5_K"
    assert source.config["quantize.method"] == "gguf:Q4_K_M, attn_q=Q8_0, attn_=Q5_K"
    names = ["blk.0.ffn_up.weight", "blk.1.ffn_gate.weight"]
    model = load_model(origin)
    calibration = calibrated(model, names)
    for name in names:
        inputs, w = calibration.inputs(name), values_of(model.source.tensors[name])
        assert inputs is not None and not inputs.gram.size
        one, other = (
            float((np.square(values_of(open_model(x).tensors[name]) - w) * inputs.squares).sum())
            for x in (weighed[0], made)
        )
        assert one < other


def test_imatrix_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of llama.cpp weighs; one of another model, and what is none, are refused."""
    origin = tiny.write_gguf_model(wide(), tmp_path / "origin.gguf")
    name = "blk.0.ffn_up.weight"
    squares = np.exp(np.random.default_rng(6).standard_normal(256)).astype(np.float32)
    counts = np.full((1, 1), 8, np.float32)
    tensors = {f"{name}.in_sum2": ("F32", 8 * squares[None]), f"{name}.counts": ("F32", counts)}
    for i, path in enumerate((tmp_path / "i.gguf", tmp_path / "other.gguf")):
        if i:
            tensors[f"{name}.in_sum2"] = ("F32", np.ones((1, 128), np.float32))
        write_gguf(path, {"general.type": "imatrix"}, tensors)
    made = tmp_path / "made.gguf"
    words = ["quantize", str(origin), "--output", str(made), "--method", "gguf:Q4_K_M", "--imatrix"]
    assert run_command([*words, str(tmp_path / "other.gguf")]) == 1
    assert "rows of 256, and squares of 128" in capsys.readouterr().err
    for count in (np.nan, np.inf, -1):
        spoilt = {**tensors, f"{name}.counts": ("F32", np.full((1, 1), count, np.float32))}
        write_gguf(tmp_path / "spoilt.gguf", {"general.type": "imatrix"}, spoilt)
        assert run_command([*words, str(tmp_path / "spoilt.gguf")]) == 1
        assert "sums that are none" in capsys.readouterr().err
    assert run_command([*words, str(origin)]) == 1
    assert "is no imatrix" in capsys.readouterr().err and not made.exists()
    assert run_command([*words, str(tmp_path / "i.gguf")]) == 0
    rows = values_of(open_model(origin).tensors[name])
    data = Blocks("Q4_K", squares).encode(rows)[0]
    assert bytes(open_model(made).tensors[name].data) == data != Blocks("Q4_K").encode(rows)[0]


def test_imatrix_files_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what the calibration knows, as llama-imatrix names it; and weigh as the text does."""
    origin = tiny.write_gguf_model(wide(), tmp_path / "origin.gguf")
    made, chunks = tmp_path / "i.gguf", ("--calibration", "self", "--calibration-chunks", "2")
    words = ["imatrix", str(origin), *chunks, "--output", str(made)]
    assert run_command(words) == 0 and "chunks of" in capsys.readouterr().out
    file = open_gguf(made)
    said = {x: file.metadata[x] for x in ("general.type", "imatrix.chunk_count")}
    assert said == {"general.type": "imatrix", "imatrix.chunk_count": 2}
    assert list(file.metadata["imatrix.datasets"]) == ["self"]
    model, found = load_model(str(origin)), Imatrix(made)
    names = linear_tensors(model)
    assert len(file.tensors) == 2 * len(names)
    read = calibrated_by(EngineOptions(), "self", 2, lambda done, n: None, has_grams=False)(
        model, names, tmp_path / "text"
    )
    for name in names:
        expected, one = read.inputs(name), found.inputs(name)
        assert expected is not None and one is not None
        assert np.allclose(one.squares, expected.squares, rtol=1e-6, atol=0)
        assert values_of(file.tensors[f"{name}.counts"]).tolist() == [[expected.n]]
    read.close()
    assert run_command(words) == 2 and "is there already" in capsys.readouterr().err
    folder = tiny.write_hf(wide(), tmp_path / "folder")
    assert run_command(["imatrix", str(folder), "--output", str(tmp_path / "x.gguf")]) == 2
    assert "is a folder" in capsys.readouterr().err
    nowhere = str(tmp_path / "nowhere" / "x.gguf")
    assert run_command(["imatrix", str(origin), "--output", nowhere]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert not list(tmp_path.glob(".*")) and not list(tmp_path.glob("x*"))


def test_imatrix_files_of_quantized_ones(tmp_path: Path) -> None:
    """What their linears read is known as of any other, in f32."""
    origin = tiny.write_gguf_model(wide(), tmp_path / "origin.gguf")
    coded, text = tmp_path / "coded.gguf", tmp_path / "text.txt"
    text.write_text("What is known is known by what was read. " * 40)
    quantize(str(origin), method_named("gguf:Q8_0", None, None, None), coded)
    found = []
    for path in (origin, coded):
        write_imatrix(str(path), str(text), 2, tmp_path / f"i-{path.name}")
        found.append(Imatrix(tmp_path / f"i-{path.name}"))
    for name in linear_tensors(load_model(str(origin))):
        one, other = (x.inputs(name) for x in found)
        assert one is not None and other is not None
        assert np.allclose(one.squares.mean(), other.squares.mean(), rtol=0.05)


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    origin = str(tiny.write_gguf_model(replace(wide()), tmp_path / "origin.gguf"))
    for text in ("attn_v", "=Q8_0", "attn_v=Q9", "(=Q8_0", f"a{{{9**30}}}=Q8_0"):
        with pytest.raises(ConfigError, match="--tensor-type"):
            read_override(text)
    with pytest.raises(ConfigError, match="no tensor is called so"):
        method = GgufMethod("Q8_0", (("nothing", "Q4_0"),))
        method.formats(open_model(Path(origin)), Selection((), (), ()))
    words = ["quantize", origin, "--output", str(tmp_path / "made.gguf"), "--method"]
    assert run_command([*words, "gguf:Q8_0", "--calibration", "self"]) == 2
    assert "--calibration is an option of gptq" in capsys.readouterr().err
    assert run_command([*words, "gguf:IQ3_M"]) == 2
    assert "codebooks" in capsys.readouterr().err
    assert run_command([*words, "rtn", "--tensor-type", "attn_v=Q6_K"]) == 2
    assert "--tensor-type is an option of gguf" in capsys.readouterr().err
    assert not (tmp_path / "made.gguf").exists()


@pytest.mark.parametrize("format", BLOCK_FORMATS)
def test_runs_that_say_little(format: str) -> None:
    """Of one number, also below zero, and numbers whose squares are none, beside others."""
    rows = sample()[0]
    for odd in (-0.03, 0.03, 1e-20, 1e-40):
        mixed = rows.copy()
        mixed[:, 32:64] = odd
        bound = 0.15 if format == "Q2_K" else 0.05
        assert errors(format, mixed, None) < bound
        assert errors(format, mixed, np.ones(1024, np.float32)) < bound
    alone = np.full((2, 256), -0.3, np.float32)
    assert errors(format, alone, None) < 1e-4
    Blocks(format).encode(alone * np.float32(1e-37))


@pytest.mark.parametrize("format", BLOCK_FORMATS)
def test_what_no_text_met_stays(format: str) -> None:
    """Columns whose inputs were all 0 keep their weights; sizes of all squares change no bit."""
    rows, squares = sample()
    squares[:64] = 0

    def encoded(squares: Floats) -> bytes:
        how = ImportantRows("w", format, lambda name: squares)
        how.begin()
        return how.encode(rows)[0]

    data = np.frombuffer(encoded(squares), np.uint8)
    kept = (decode(format, data).reshape(rows.shape) - rows)[:, :64]
    assert np.square(kept).sum() < 0.3 * np.square(rows[:, :64]).sum()
    assert encoded(squares * np.float32(2.0**90)) == encoded(squares * np.float32(2.0**-90))
    encoded(np.zeros(1024, np.float32))
