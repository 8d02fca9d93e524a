"""``kvasir quantize --method repack``: another container, the same numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kvasir.core.errors import ConfigError, KvasirError
from kvasir.formats.decode import values_of
from kvasir.quantize.methods import method_named
from kvasir.quantize.quantize import quantize
from kvasir.weights.source import open_model
from tests import tiny
from tests.quantized_kinds import KINDS, llama
from tests.quantized_writer import in_another_order, write_quantized

ORDERED = "gptq-4 in another order"
OURS = {**KINDS, ORDERED: in_another_order(KINDS["gptq-4"])}


def repack(origin: Path, container: str, made: Path) -> None:
    quantize(str(origin), method_named("repack", None, None, None, (), container), made)


def tensors(folder: Path) -> dict[str, tuple[str, list[int], bytes]]:
    data = (folder / "model.safetensors").read_bytes()
    n = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + n])
    head.pop("__metadata__", None)
    found = {}
    for name, info in head.items():
        begin, end = (8 + n + x for x in info["data_offsets"])
        found[name] = (info["dtype"], info["shape"], data[begin:end])
    return found


@pytest.mark.parametrize(
    ("kind", "ways"),
    [
        ("pack-4", ("gptq", "awq", "gptq_v2", "compressed-tensors")),
        ("pack-4-sym-bf16", ("gptq", "compressed-tensors")),
        ("pack-8", ("gptq_v2", "gptq", "compressed-tensors")),
        ("awq-gemm", ("gptq", "compressed-tensors", "awq")),
        ("awq-gemv", ("compressed-tensors", "awq")),
        ("gptq-4-v2", ("awq", "gptq", "gptq_v2")),
        ("gptq-4-row", ("compressed-tensors", "gptq")),
        ("gptq-2", ("compressed-tensors", "gptq")),
        ("gptq-8", ("compressed-tensors", "gptq_v2", "gptq")),
        (ORDERED, ("compressed-tensors", "gptq")),
    ],
)
def test_numbers_are_the_same(kind: str, ways: tuple[str, ...], tmp_path: Path) -> None:
    """Through one container after the other, back to the tensors of the file where the last is
    that which they began with."""
    found = write_quantized(llama(), tmp_path / "origin", OURS[kind])
    origin, written = found.folder, tensors(found.folder)
    first = open_model(origin)
    expected = {x: values_of(first.tensors[x]) for x in first.tensors}
    for i, container in enumerate(ways):
        repack(origin, container, tmp_path / str(i))
        origin = tmp_path / str(i)
        source = open_model(origin)
        assert list(source.tensors) and not (origin / "quantize_config.json").exists()
        for name in source.tensors:
            assert np.array_equal(values_of(source.tensors[name]), expected[name]), name
        config = json.loads((origin / "config.json").read_text())["quantization_config"]
        assert config["quant_method"] == container.removesuffix("_v2")
    if kind in ("pack-4", "pack-8", "awq-gemm", "gptq-4-v2", "gptq-8"):
        last = tensors(origin)
        assert last.keys() >= written.keys()
        assert all(last[x][0] == y[0] and last[x][2] == y[2] for x, y in written.items())


@pytest.mark.parametrize(
    ("kind", "container", "said"),
    [
        ("pack-4-f32", "awq", "no numbers of F16"),
        ("gptq-8", "awq", "4 bits, not 8"),
        (ORDERED, "awq", "inputs in another order"),
        ("gptq-3", "compressed-tensors", "2, 4 and 8 bits"),
        ("int8", "gptq", "no other container"),
        ("fp8-blocks", "gptq", "no other container"),
        (None, "gptq", "is not quantized"),
    ],
)
def test_what_has_no_place_is_refused(
    kind: str | None, container: str, said: str, tmp_path: Path
) -> None:
    origin = tmp_path / "origin"
    if kind is None:
        tiny.write_hf(llama(), origin)
    else:
        write_quantized(llama(), origin, OURS[kind])
    with pytest.raises(KvasirError, match=said):
        repack(origin, container, tmp_path / "made")
    assert [x.name for x in tmp_path.iterdir()] == ["origin"]


def test_options_of_repack(tmp_path: Path) -> None:
    origin = write_quantized(llama(), tmp_path / "origin", KINDS["gptq-4"]).folder
    how = method_named("repack", None, None, None)
    with pytest.raises(ConfigError, match="--lm-head"):
        quantize(str(origin), how, tmp_path / "made", with_head=True)
    with pytest.raises(ConfigError, match="exl2"):
        method_named("repack", None, None, None, (), "exl2")
    with pytest.raises(ConfigError, match="--bits is an option of"):
        method_named("repack", 4, None, None)
