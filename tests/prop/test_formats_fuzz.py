"""Damaged model files raise ModelError and nothing else, and no tensor leaves its file."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvasir.core.errors import ModelError
from kvasir.formats.decode import values_of
from kvasir.formats.gguf import open_gguf
from kvasir.formats.mapped import TensorFile, byte_view
from kvasir.formats.safetensors import open_safetensors
from kvasir.formats.types import FORMATS
from kvasir.tokenizer.from_gguf import spec_from_gguf
from kvasir.tokenizer.tokenizer import Tokenizer
from tests.forms import n_of
from tests.gguf_writer import gguf_bytes, safetensors_bytes
from tests.tiny_vocab import byte_level, characters, sentence_piece, unigram, word_piece

ROWS = np.linspace(-1, 1, 192, dtype=np.float32).reshape(3, 64)
GGUF = gguf_bytes(
    {"general.architecture": "llama", "n": 3, "names": ["a", "bc"], "numbers": [1.5, 2.5]},
    {"w.q4": ("Q4_0", ROWS), "w.q8": ("Q8_0", ROWS), "w.f32": ("F32", ROWS[0])},
)
SAFETENSORS = safetensors_bytes({"a": ROWS, "b": ROWS[1]}, "BF16", {"format": "pt"})
LENGTHS = (0, 1, 7, 255, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)

overwrite = st.tuples(st.just("overwrite"), st.integers(0, 2000), st.binary(min_size=1, max_size=8))
number = st.tuples(
    st.just("overwrite"),
    st.integers(0, 2000),
    st.sampled_from(LENGTHS).map(struct.Struct("<Q").pack),
)
insert = st.tuples(st.just("insert"), st.integers(0, 2000), st.binary(min_size=1, max_size=16))
remove = st.tuples(st.just("remove"), st.integers(0, 2000), st.binary(min_size=1, max_size=16))
cut = st.tuples(st.just("cut"), st.integers(0, 2000), st.just(b""))
damages = st.lists(st.one_of(overwrite, number, insert, remove, cut), min_size=1, max_size=4)


def damage(data: bytes, changes: list[tuple[str, int, bytes]], limit: int) -> bytes:
    for kind, where, what in changes:
        at = where % min(limit, len(data) or 1)
        after = {"insert": at, "cut": len(data)}.get(kind, at + len(what))
        data = data[:at] + (what if kind in ("overwrite", "insert") else b"") + data[after:]
    return data


def address(data: memoryview) -> int:
    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])


def check(read: Callable[[Path], TensorFile], path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    try:
        file = read(path)
        assert len(dict(file.metadata)) == len(file.metadata)  # arrays are decoded only here
    except ModelError as error:
        assert str(path) in error.message
        return
    base = address(byte_view(file.mapping))
    for info in file.tensors.listing():
        start = address(info.data)
        assert info.data.nbytes == 0 or base <= start <= start + info.data.nbytes <= base + len(
            data
        )
        if info.format in FORMATS:
            with np.errstate(all="ignore"):
                assert values_of(file.tensors[info.name]).shape == info.shape


@pytest.mark.parametrize(
    ("read", "data", "n_header"),
    [(open_gguf, GGUF, 420), (open_safetensors, SAFETENSORS, 180)],
    ids=["gguf", "safetensors"],
)
@given(changes=damages)
@settings(
    max_examples=n_of(150, 400),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_damaged_files(
    tmp_path: Path,
    read: Callable[[Path], TensorFile],
    data: bytes,
    n_header: int,
    changes: list[tuple[str, int, bytes]],
) -> None:
    check(read, tmp_path / "model", damage(data, changes, n_header))


@pytest.mark.parametrize("read", [open_gguf, open_safetensors], ids=["gguf", "safetensors"])
@given(data=st.binary(max_size=200))
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_random_bytes(tmp_path: Path, read: Callable[[Path], TensorFile], data: bytes) -> None:
    check(read, tmp_path / "model", data)
    check(read, tmp_path / "model", b"GGUF\x03\x00\x00\x00" + data)


def test_every_byte_of_the_header_matters_or_is_text(tmp_path: Path) -> None:
    for at in range(0, 420):
        for byte in (0x00, 0x7F, 0xFF):
            check(open_gguf, tmp_path / "model", GGUF[:at] + bytes([byte]) + GGUF[at + 1 :])


VOCABULARIES = (byte_level, sentence_piece, word_piece, unigram, characters)
MORE_KEYS = {
    "tokenizer.ggml.precompiled_charsmap",
    "tokenizer.ggml.normalizer.lowercase",
    "tokenizer.ggml.remove_extra_whitespaces",
}
odd_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**64),
    st.floats(),
    st.text(max_size=4),
    st.lists(st.integers(-5, 9), max_size=4).map(tuple),
    st.lists(st.text(max_size=3), max_size=4).map(tuple),
    st.lists(st.floats(), max_size=4).map(tuple),
)


@given(
    kind=st.sampled_from(VOCABULARIES),
    key=st.sampled_from(sorted({key for make in VOCABULARIES for key in make()} | MORE_KEYS)),
    value=odd_values,
)
@settings(max_examples=300, deadline=None)
def test_odd_tokenizer_metadata(
    kind: Callable[[], dict[str, object]], key: str, value: object
) -> None:
    try:
        tokenizer = Tokenizer(spec_from_gguf({**kind(), key: value}))
    except ModelError as error:
        assert "tokenizer.ggml." in error.message
        return
    tokenizer.decode(tokenizer.encode("the quick é<|im_end|>"))
