"""``kvasir quantize``: what is written is what the rules say and the reader decodes; sizes are as
they were said; what cannot be made is refused, and nothing is left of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvasir.checkpoints.loaded import load_model
from kvasir.cli.main import run_command
from kvasir.core.errors import ConfigError, ModelError
from kvasir.formats.decode import bytes_of, values_of
from kvasir.formats.modules import E4M3_VALUES
from kvasir.quantize import filling
from kvasir.quantize.compressed import e4m3_codes
from kvasir.quantize.methods import method_named
from kvasir.quantize.mxfp4 import Mxfp4Rows
from kvasir.quantize.quantize import quantize
from kvasir.weights.source import open_model
from tests import tiny
from tests.loading import load, reference_logits
from tests.native import native_logits
from tests.quantized_kinds import llama
from tests.quantized_writer import pack_quantized, write_quantized
from tests.tiny_scan import mamba2

PROMPT = tuple((17 * i * i + 5 * i + 3) % tiny.VOCAB for i in range(12))
Array = np.ndarray

# Method, its options, the largest error of a weight in steps of its scale (half of one, and what
# rounding it up to bf16 adds), and of the logits, root mean squares.
FOLDERS = {
    "rtn": ("rtn", {"group": 64}, 0.51, 0.5),
    "rtn-zeros": ("rtn", {"group": 32, "is_symmetric": False}, 0.51, 0.45),
    "rtn-8": ("rtn", {"bits": 8}, 0.51, 0.03),
    "int8": ("int8", {}, 0.501, 0.03),
    "fp8": ("fp8", {}, 16.0, 0.2),
    "mxfp4": ("mxfp4", {}, 0.5, 0.6),
    "fp8-block": ("fp8-block", {}, 16.0, 0.2),
    "nf4": ("nf4", {}, 0.153, 0.5),  # half of the widest step between its levels
    "nvfp4": ("nvfp4", {}, 1.07, 0.6),
    "gptq": ("rtn", {"group": 64, "container": "gptq"}, 0.51, 0.5),
    "gptq-zeros": ("rtn", {"group": 32, "is_symmetric": False, "container": "gptq"}, 0.51, 0.45),
    "gptq-v2": ("rtn", {"bits": 8, "is_symmetric": False, "container": "gptq_v2"}, 0.51, 0.03),
    "awq": ("rtn", {"group": 32, "is_symmetric": False, "container": "awq"}, 0.51, 0.45),
}


_GROUPS = {"rtn": 128, "mxfp4": 32, "nf4": 64, "nvfp4": 16}


def rms(x: Array) -> float:
    return float(np.sqrt(np.square(x.astype(np.float64)).mean()))


def scales_of(name: str, w: Array, group: int) -> Array:
    """[n, k]: the step of each weight, as the rules say it, before it is rounded."""
    if name == "fp8-block":  # no side is longer than 128
        return np.full(w.shape, np.abs(w).max() / 448)
    runs = w.reshape(len(w), -1, group)
    peak = np.abs(runs).max(axis=2)
    low, high = np.minimum(runs.min(axis=2), 0), np.maximum(runs.max(axis=2), 0)
    step = {
        "rtn": 2 * peak / 15,
        "rtn-zeros": (high - low) / 15,
        "rtn-8": 2 * peak / 255,
        "int8": 2 * peak / 255,
        "fp8": peak / 448,
        "mxfp4": 2.0 ** np.floor(np.log2(peak)),  # a quarter of it are the widest steps
        "nf4": peak,
        "nvfp4": peak / 6,
        "gptq": 2 * peak / 15,
        "gptq-zeros": (high - low) / 15,
        "gptq-v2": (high - low) / 255,
        "awq": (high - low) / 15,
    }[name]
    return np.repeat(step, group, axis=1)


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_hold_what_is_nearest(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows in short runs, so that runs meet; the logits are those of the plain weights that the
    reader decodes, and near those of the model."""
    monkeypatch.setattr(filling, "_RUN", 64)
    monkeypatch.setattr(filling, "_ALIGNED", 128 if name == "fp8-block" else 32)
    method, options, steps, bound = FOLDERS[name]
    model = llama()
    origin = tiny.write_hf(model, tmp_path / "origin")
    words = "bits", "group", "is_symmetric", "tensor_types", "container"
    how = method_named(method, *({"tensor_types": (), **options}.get(x) for x in words))
    made = quantize(str(origin), how, tmp_path / "made")
    source = open_model(tmp_path / "made")
    found = {x: values_of(source.tensors[x]) for x in source.tensors}
    assert found.keys() == model.tensors.keys() and made.n_quantized == 21
    for tensor, w in model.tensors.items():
        if "_proj" not in tensor:
            assert np.array_equal(found[tensor], w), tensor
            continue
        assert source.tensors[tensor].module is not None
        group = int(options.get("group", _GROUPS.get(method, w.shape[1])))
        error = np.abs(found[tensor] - w) / scales_of(name, w, group)
        assert 0 < error.max() <= steps, (tensor, error.max())
    data = (tmp_path / "made/model.safetensors").read_bytes()
    n_stored = len(data) - 8 - int.from_bytes(data[:8], "little")
    assert made.n_bytes == n_stored < made.source_bytes
    plain = tiny.write_hf(replace(model, tensors=found), tmp_path / "plain")
    logits = reference_logits(load(tmp_path / "made"), PROMPT)
    assert np.array_equal(logits, reference_logits(load(plain), PROMPT))
    expected = reference_logits(load(origin), PROMPT)
    assert rms(logits - expected) <= bound * rms(expected)
    native = native_logits(load(tmp_path / "made", "auto"), PROMPT)
    assert np.abs(native - logits).max() <= 0.05 * np.abs(logits).max()


def q8_0(w: Array) -> Array:
    x = w.reshape(-1, 32)
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    scaled = (x * (np.float32(1) / d)).astype(np.float64)
    codes = np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)
    head = d.astype("<f2").view(np.uint8)
    return np.concatenate([head, codes.astype(np.int8).view(np.uint8)], axis=1).reshape(-1)


@pytest.mark.parametrize("format", ["Q8_0", "Q4_0", "Q4_1"])
def test_gguf_files_are_those_of_a_converter(format: str, tmp_path: Path) -> None:
    """Blocks of linears are bit-equal to those of an encoder of its own; everything else, metadata
    too, is as it was."""
    origin = tiny.write_gguf_model(tiny.llama(), tmp_path / "origin.gguf")
    theirs = open_model(tiny.write_gguf_model(tiny.llama(), tmp_path / "theirs.gguf", format))
    made = tmp_path / "made.gguf"
    quantize(str(origin), method_named(f"gguf:{format}", None, None, None), made)
    before, after = open_model(origin), open_model(made)
    for name, info in before.tensors.items():
        is_linear = info.format != after.tensors[name].format
        assert is_linear == (".attn_" in name or ".ffn_" in name) & ("norm" not in name), name
        expected = bytes_of(theirs.tensors[name] if is_linear else info)
        if is_linear and format == "Q8_0":  # halves go away from 0, as ggml has them
            expected = q8_0(values_of(info))
        assert np.array_equal(bytes_of(after.tensors[name]), expected), name
    own = {"general.file_type", "general.quantization_version"}
    own |= {"quantize.method", "quantize.source_hash"}
    assert {x: after.config[x] for x in before.config if x not in own} == {
        x: before.config[x] for x in before.config if x not in own
    }
    assert after.config["quantize.method"] == f"gguf:{format}"
    assert after.config["quantize.source_hash"] == before.content_hash
    assert np.isfinite(reference_logits(load(made), PROMPT)).all()


def test_a_folder_is_the_same_every_time_and_whole(tmp_path: Path) -> None:
    origin = tiny.write_hf(llama(), tmp_path / "origin", "BF16")
    for folder in ("1_Pooling", "onnx"):
        (origin / folder).mkdir()
        (origin / folder / "config.json").write_text("{}")
    how = method_named("rtn", 4, 32, True)
    for name in ("one", "other"):
        quantize(str(origin), how, tmp_path / name)
    one, other = ((tmp_path / x / "model.safetensors").read_bytes() for x in ("one", "other"))
    assert one == other and b"quantize.source_hash" in one
    there = {str(x.relative_to(tmp_path / "one")) for x in (tmp_path / "one").rglob("*.json")}
    assert there == {
        *("config.json", "tokenizer.json", "tokenizer_config.json", "1_Pooling/config.json")
    }


@pytest.mark.parametrize(
    ("model", "kept"),
    [(tiny.mixtral, ("gate.weight",)), (mamba2, ("conv1d.weight",)), (tiny.qwen3, ())],
)
def test_experts_scans_and_a_head(model: object, kept: tuple[str, ...], tmp_path: Path) -> None:
    """Routers and convolutions stay; with --lm-head the head does not."""
    tensors = model()  # type: ignore[operator]
    origin = tiny.write_hf(tensors, tmp_path / "origin")
    how = method_named("rtn", 4, 32, None)
    has_head = "lm_head.weight" in tensors.tensors
    quantize(str(origin), how, tmp_path / "made", with_head=has_head)
    source = open_model(tmp_path / "made")
    plain = {x for x in source.tensors if source.tensors[x].module is None}
    assert all(any(x.endswith(end) for x in plain) for end in kept)
    assert any("embed" in x for x in plain) and not any(x.endswith("_proj.weight") for x in plain)
    assert ("lm_head.weight" not in plain) or not has_head
    assert np.isfinite(reference_logits(load(tmp_path / "made"), PROMPT)).all()


def test_eight_bit_floats_round_to_the_nearest() -> None:
    """All numbers, what lies between neighbours, and beyond the largest."""
    numbers = E4M3_VALUES[:127]
    middles = (numbers[1:] + numbers[:-1]) / 2
    codes = e4m3_codes(np.concatenate([numbers, -numbers, middles])[None])[0]
    assert np.array_equal(codes[:127], np.arange(127))
    assert np.array_equal(codes[128:254], np.arange(129, 255)) and codes[127] == 0
    even = np.arange(126) + np.arange(126) % 2  # of two codes at the same distance the even one
    assert np.array_equal(codes[254:], even)
    assert list(e4m3_codes(np.array([[500, -1e30]], np.float32))[0]) == [126, 254]


def test_zeros_and_wide_numbers(tmp_path: Path) -> None:
    """Rows and groups of zeros stay zeros; what f16 scales cannot say is refused."""
    model = llama()
    name = "model.layers.1.mlp.up_proj.weight"
    w = model.tensors[name].copy()
    w[3], w[5, :32] = 0, 0
    changed = replace(model, tensors={**model.tensors, name: w})
    origin = tiny.write_hf(changed, tmp_path / "origin")
    for method in ("rtn", "int8", "fp8"):
        quantize(str(origin), method_named(method, None, None, None), tmp_path / method)
        found = values_of(open_model(tmp_path / method).tensors[name])
        assert not found[3].any() and not found[5, :32].any() and found[4].any()
    w[7, 7] = 1e8
    wide = tiny.write_gguf_model(changed, tmp_path / "wide.gguf")
    with pytest.raises(ModelError, match="f16"):
        quantize(str(wide), method_named("gguf:Q8_0", None, None, None), tmp_path / "x.gguf")
    w[7, 7] = np.nan
    broken = tiny.write_hf(changed, tmp_path / "broken")
    with pytest.raises(ModelError, match=f"{name}.*not finite"):
        quantize(str(broken), method_named("fp8", None, None, None), tmp_path / "x")
    assert sorted(x.name for x in tmp_path.iterdir() if x.name.startswith((".", "x"))) == []


@pytest.fixture(scope="module")
def origins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("origins")
    (folder / "there").mkdir()
    coded = write_quantized(llama(), folder / "coded", pack_quantized(4, 32, True, "BF16"))
    return {
        "FOLDER": str(tiny.write_hf(tiny.llama(), folder / "plain")),
        "TIED": str(tiny.write_hf(tiny.qwen2(), folder / "tied")),
        "CODED": str(coded.folder),
        "GGUF": str(tiny.write_gguf_model(tiny.llama(), folder / "plain.gguf")),
        "THERE": str(folder / "there"),
        "OUT": str(folder / "out"),
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("FOLDER --method awq", ["128", "q_proj.weight have 64", "32 would fit all 21"]),
        ("FOLDER --method fp4", ["'fp4'", "read and not made"]),
        ("FOLDER --method nf4 --container gptq", ["--container", "rtn, gptq, awq"]),
        ("FOLDER --method rtn --container exl2", ["'exl2'", "gptq_v2"]),
        (
            "FOLDER --method rtn --group-size 32 --bits 8 --container awq",
            ["4 bits, not 8", "another --container"],
        ),
        ("FOLDER --method gguf:IQ3_M", ["'gguf:IQ3_M'", "codebooks", "gguf:Q8_0"]),
        ("FOLDER --method int8 --group-size 32", ["--group-size", "rtn"]),
        ("FOLDER --method rtn --bits 3", ["--bits is 3", "4 or 8"]),
        ("FOLDER --method rtn --group-size 48", ["--group-size is 48", "32"]),
        ("FOLDER --method rtn", ["128", "q_proj.weight have 64", "32 would fit all 21"]),
        ("FOLDER --method gguf:Q8_0", ["is a folder"]),
        ("GGUF --method int8", ["is a GGUF file"]),
        ("GGUF --method gguf:Q8_0", ["ends in .gguf"]),
        ("TIED --method int8 --lm-head", ["no head of its own"]),
        ("CODED --method int8", ["quantized already", "QG4"]),
    ],
)
def test_what_is_not_made_is_refused(
    words: str, said: list[str], origins: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    args = [origins.get(word, word) for word in words.split()]
    assert run_command(["quantize", *args, "--output", origins["OUT"]]) in (1, 2)
    told = capsys.readouterr().err
    assert all(word in told for word in said), told
    assert not Path(origins["OUT"]).exists()


def test_names_and_disks_without_room(
    origins: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    how = method_named("int8", None, None, None)
    with pytest.raises(ConfigError, match="there already"):
        quantize(origins["FOLDER"], how, Path(origins["THERE"]))
    with pytest.raises(ConfigError, match="no folder"):
        quantize(origins["FOLDER"], how, Path(origins["THERE"]) / "no/where")
    usage = type("Usage", (), {"free": 5_000_000})
    monkeypatch.setattr("kvasir.quantize.quantize.shutil.disk_usage", lambda path: usage)
    with pytest.raises(ModelError, match=r"0\.01 GB free, out needs 0\.07 GB"):
        quantize(origins["FOLDER"], how, Path(origins["OUT"]))
    monkeypatch.undo()
    words = ["quantize", origins["FOLDER"], "--method", "int8", "--output", origins["OUT"]]
    assert run_command(words) == 0
    told = capsys.readouterr().out
    assert "21 matrices in int8" in told and "kvasir evaluate" in told
    assert load_model(origins["OUT"]).source.quantization == "compressed-tensors, int8 by channel"


def test_what_is_not_good_enough_is_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what is has its divergence in the file."""
    model = tiny.llama(max_position_embeddings=32)
    for origin, method, output in (
        (tiny.write_hf(model, tmp_path / "folder"), "int8", tmp_path / "made"),
        (tiny.write_gguf_model(model, tmp_path / "o.gguf"), "gguf:Q8_0", tmp_path / "made.gguf"),
    ):
        words = ["quantize", str(origin), "--method", method, "--output", str(output)]
        assert run_command([*words, "--require", "kld<=1e-12"]) != 0
        said = capsys.readouterr().err
        assert "required <= 1e-12" in said and "nothing is kept" in said and not output.exists()
        assert run_command([*words, "--require", "kld<=0.5", "--require", "top1>=0.1"]) == 0
        weights = output / "model.safetensors" if output.is_dir() else output
        head = weights.read_bytes()[: 1 << 14]
        assert b"quantize.divergence" in head and b"tokens   " in head and b"[0.0" in head
        assert load_model(str(output)).source.content_hash
    assert run_command([*words[:-1], str(tmp_path / "x.gguf"), "--require", "kld=1"]) == 2
    assert {x.name for x in tmp_path.iterdir()} == {"folder", "made", "o.gguf", "made.gguf"}


def test_matrices_that_read_the_same_share_a_divisor(tmp_path: Path) -> None:
    """Of NVFP4; what is far below it keeps some of its bits, and zeros stay zeros."""
    model = llama()
    layer = "model.layers.1"
    names = [f"{layer}.self_attn.{x}_proj.weight" for x in "qkvo"]
    w = model.tensors[names[0]].copy()
    w[3], w[5, 16:32] = 0, 0
    w[2], w[2, :16] = 40, 1e-4
    changed = replace(model, tensors={**model.tensors, names[0]: w})
    origin = tiny.write_hf(changed, tmp_path / "origin")
    quantize(str(origin), method_named("nvfp4", None, None, None), tmp_path / "made")
    found = open_model(tmp_path / "made").tensors
    q, k, v, o = (found[x].module.tensors[2].data.tobytes() for x in names)  # type: ignore[union-attr]
    assert q == k == v == (np.float32(1) / np.float32(40) * 2688).tobytes() != o
    values = values_of(found[names[0]])
    assert not values[3].any() and not values[5, 16:32].any()
    assert np.allclose(values[2, 16:], 40, rtol=1e-6)


def test_modules_that_stay_are_named_in_every_container(tmp_path: Path) -> None:
    """Rows of 96 are no multiple of 64, which NF4 takes."""
    model = tiny.llama(intermediate_size=96)
    origin = tiny.write_hf(model, tmp_path / "origin")
    made = quantize(str(origin), method_named("nf4", None, None, None), tmp_path / "nf4")
    assert made.multiple == 64 and all("down_proj" in x for x in made.narrow) and made.narrow
    config = json.loads((tmp_path / "nf4/config.json").read_text())["quantization_config"]
    assert {x.removesuffix(".weight") for x in made.narrow} < set(config["llm_int8_skip_modules"])
    assert np.isfinite(reference_logits(load(tmp_path / "nf4"), PROMPT)).all()
    narrow = tiny.write_hf(tiny.llama(intermediate_size=48), tmp_path / "narrow")
    made = quantize(str(narrow), method_named("rtn", 4, 64, True, (), "awq"), tmp_path / "awq")
    config = json.loads((tmp_path / "awq/config.json").read_text())["quantization_config"]
    assert {x.removesuffix(".weight") for x in made.narrow} < set(config["modules_to_not_convert"])
    assert np.isfinite(reference_logits(load(tmp_path / "awq"), PROMPT)).all()
    with pytest.raises(ConfigError, match="48 outputs, gptq needs a multiple of 32"):
        quantize(str(narrow), method_named("rtn", 4, 64, True, (), "gptq"), tmp_path / "gptq")


def test_powers_of_mxfp4_are_those_with_the_smaller_error() -> None:
    """What is nearer to the next one's numbers is not cut to 6."""
    rows = np.zeros((3, 32), np.float32)
    rows[:, :2] = (7.9, 0.25), (5.9, 0.5), (4.0, 1.5)
    codes, exponents = Mxfp4Rows().encode(rows)
    found = np.frombuffer(codes, np.uint8).reshape(3, 16)[:, 0]
    assert list(np.frombuffer(exponents, np.uint8)) == [128, 127, 127]
    assert [(int(x & 15), int(x >> 4)) for x in found] == [(6, 0), (7, 1), (6, 3)]
