"""The native core knows every name that Python has, and refuses records that make no sense."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from kvasir import _native
from kvasir.core.kvtypes import KV_TYPES
from kvasir.core.params import TokenParams
from kvasir.exec.cpu import codes
from kvasir.exec.cpu.layouts import LAYOUTS
from kvasir.exec.cpu.records import ROWS_OF, Buffer, Record, pack_buffers, pack_records
from kvasir.ir.ops.attention import QK_NORMS
from kvasir.ir.ops.linear import EPILOGUES
from kvasir.ir.ops.moe import GROUP_SCORES, MAX_EXPERTS, SCORES
from kvasir.ir.ops.rows import ACTIVATIONS, APART
from kvasir.ir.ops.scan import MAX_STATE_DIM, RULES
from kvasir.ir.program import DTYPES, SYMBOLS

NAMES = {
    "Layout": LAYOUTS,
    "KvType": KV_TYPES,
    "DType": DTYPES,
    "Epilogue": EPILOGUES,
    "Act": ("none", *(set(ACTIVATIONS) - {*APART})),
    "QkNorm": QK_NORMS,
    "RowsOf": ROWS_OF.values(),
    "Score": SCORES,
    "GroupScore": GROUP_SCORES,
    "ScanRule": RULES,
}
"""By native table what Python calls its entries."""


@pytest.mark.parametrize("table", NAMES)
def test_both_sides_have_the_same_names(table: str) -> None:
    assert sorted(NAMES[table]) == sorted(_native.ENUMS[table])


@pytest.mark.parametrize("table", _native.ENUMS)
def test_numbers_count_from_0(table: str) -> None:
    assert list(_native.ENUMS[table].values()) == list(range(len(_native.ENUMS[table])))


def test_kv_types_have_the_native_sizes() -> None:
    sizes = {name: (kind.item_bytes, kind.scale_bytes) for name, kind in KV_TYPES.items()}
    assert sizes == _native.KV_TYPE_SIZES


def test_both_sides_have_the_same_largest_number_of_experts() -> None:
    assert MAX_EXPERTS == _native.MAX_EXPERTS


def test_every_symbol_counts_rows() -> None:
    assert set(ROWS_OF) == set(SYMBOLS)


def test_the_sampler_reads_every_parameter_of_a_draw() -> None:
    elsewhere = {"max_tokens", "constraint", "max_drafts"}
    assert set(_native.SLOT_PARAMS) == set(TokenParams.__struct_fields__) - elsewhere


@pytest.mark.parametrize("struct", [codes.RECORD, codes.BUFFER, codes.KV_PLACE])
def test_no_byte_of_a_struct_is_without_a_name(struct: np.dtype[np.void]) -> None:
    assert struct.fields is not None
    assert sum(field[0].itemsize for field in struct.fields.values()) == struct.itemsize


def test_a_record_holds_what_it_was_given() -> None:
    record = Record("linear", 4, "T", True, (1, 2), (3,), (5,), {"column": 64, "eps": 0.5})
    (row,) = pack_records([record]).view(codes.RECORD)
    kind = codes.KIND_CODES["linear"]
    assert (row["kind"], row["phase"], row["rows_of"], row["tail"]) == (kind, 4, 0, 1)
    assert (row["ins"].tolist(), row["outs"].tolist()) == ([1, 2, -1], [3, -1, -1])
    assert row["weights"].tolist() == [5, -1, -1]
    assert (row["column"], row["eps"], row["layer"]) == (64, 0.5, 0)


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (Record("transpose", 0, "T", False), KeyError),
        (Record("add", 0, "T", False, numbers={"colour": 1}), KeyError),
        (Record("add", 0, "T", False, numbers={"column": 1.5}), TypeError),
        (Record("add", 0, "T", False, ins=(1, 2, 3, 4)), ValueError),
    ],
)
def test_what_no_record_has_is_refused(record: Record, error: type[Exception]) -> None:
    with pytest.raises(error):
        pack_records([record])


def program(
    record: np.ndarray[Any, Any],
    place: np.ndarray[Any, Any] | None = None,
    memory: np.ndarray[Any, Any] | None = None,
    **more: np.ndarray[Any, Any],
) -> None:
    """A native program of one record, two buffers and no weights."""
    limits = ("max_tokens", "max_logits", "logits_tile", "top_k", "head_dim_max", "group_max")
    others = ("draft_floats", "hashes", "max_seqs", "max_blocks", "max_top", "vocab")
    sizes = dict.fromkeys((*limits, *others), 16)
    i32 = ("tokens", "pos", "store", "seq", "parent", "seq_begin", "seq_start", "tables", "path")
    logit = ("logit_token", "logit_slot", "logit_target", "path_begin", "drawn", "rank")
    arrays: dict[str, Any] = {
        name: np.zeros(1, np.int32) for name in (*i32, *logit, "top_count", "top_ids")
    }
    arrays |= {"seq_tree": np.zeros(1, np.uint8), "hash": np.zeros(1, np.uint64)}
    arrays |= {"logit_out_index": np.zeros(1, np.int64)}
    arrays |= {name: np.zeros(1, np.float32) for name in ("logprob", "top_logprobs")}
    arrays |= more
    places = np.zeros(0, codes.KV_PLACE) if place is None else place
    memory = np.zeros(1 << 12, np.uint8) if memory is None else memory
    _native.Program(
        _native.Pool(1), "scalar", _native.Sampler(1, 16), sizes | {"hashes": False},
        record.view(np.uint8), pack_buffers([Buffer(0, "f32", 16, 0, 16)] * 2), [], memory,
        places.view(np.uint8), [], memory, arrays,
    )  # fmt: skip


def record(kind: str = "add", **fields: Any) -> np.ndarray[Any, Any]:
    (row,) = packed = pack_records([Record(kind, 0, "T", False, (0, 0), (1,))]).view(codes.RECORD)
    for name, value in fields.items():
        row[name] = value
    return packed


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (record(kind="embed"), "names weight -1 of 0"),
        (record(ins=(0, 2, -1)), "names buffer 2 of 2"),
        (record(outs=-1), "names buffer -1 of 2"),
        (record("attention", layer=1), "names KV layer 1 of 0"),
    ],
)
def test_a_record_that_names_what_is_not_there_is_refused(bad: Any, message: str) -> None:
    program(record())
    with pytest.raises(ValueError, match=message):
        program(bad)


def test_an_unknown_kind_is_refused() -> None:
    bad = record()
    bad["kind"] = len(codes.KIND_CODES)
    with pytest.raises(ValueError, match=f"no op has the number {len(codes.KIND_CODES)}"):
        program(bad)


def test_arrays_of_another_type_are_refused() -> None:
    """A converted copy would be gone when a step writes it."""
    with pytest.raises(ValueError, match="step array drawn has another type"):
        program(record(), drawn=np.zeros(1, np.int64))


def test_what_is_refused_is_given_back() -> None:
    memory = np.zeros(1 << 12, np.uint8)
    before = sys.getrefcount(memory)
    with pytest.raises(ValueError, match="names buffer 2 of 2"):
        program(record(ins=(0, 2, -1)), memory=memory)
    assert sys.getrefcount(memory) == before


def place(**fields: int) -> np.ndarray[Any, Any]:
    """A layer of two heads of 16 int8 numbers in blocks of 16 tokens."""
    found = np.zeros(1, codes.KV_PLACE)
    found["block_size"], found["n_kv_heads"], found["head_dim"] = 16, 2, 16
    found["dtype"] = codes.KV_TYPE_CODES["int8"]
    found["block_bytes"] = found["layer_bytes"] = 2 * 2 * 16 * (16 + 2)
    for name, value in fields.items():
        found[name] = value
    return found


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (place(layer_bytes=1024), "1024 bytes a block; the kernels have 1152"),
        (place(dtype=codes.KV_TYPE_CODES["bf16"]), "the kernels have 2048"),
        (place(dtype=len(KV_TYPES)), "no such type of cache entries"),
        (place(head_dim=24), "heads of 24 numbers"),
        (place(block_size=20), "block_size is a multiple of 16"),
        (place(n_kv_heads=0), "a layer has KV heads"),
    ],
)
def test_kv_memory_that_kernels_read_otherwise_is_refused(bad: Any, message: str) -> None:
    program(record(), place())
    with pytest.raises(ValueError, match=message):
        program(record(), bad)


def test_a_convolution_needs_a_state_of_its_size() -> None:
    """Two products of each of 16 channels, in a layer without heads."""
    state = place(n_kv_heads=0, head_dim=0, layer_bytes=128)
    program(record("short_conv", n_taps=3), state)
    for bad, kept in (
        (record("short_conv", n_taps=4), state),
        (record("short_conv", n_taps=3), place()),
    ):
        with pytest.raises(ValueError, match=r"layer 0 keeps no state of \d+ bytes"):
            program(bad, kept)
    for n_taps in (1, 9):
        with pytest.raises(ValueError, match="the kernels take 2 to 8"):
            program(record("short_conv", n_taps=n_taps), state)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_heads": 2, "n_groups": 1, "state_dim": 4}, "16 columns, expected 24"),
        ({"n_heads": 3, "n_groups": 2, "state_dim": 4}, "3 heads in 2 groups"),
        (
            {"n_heads": 2, "n_groups": 1, "state_dim": 257},
            "states of 257: the kernels take",
        ),
        ({}, "0 heads in 0 groups"),
    ],
)
def test_scans_that_the_kernels_do_not_take_are_refused(
    fields: dict[str, int], message: str
) -> None:
    state = place(n_kv_heads=0, head_dim=0, layer_bytes=256)
    with pytest.raises(ValueError, match=message):
        program(record("linear_scan", **fields), state)


def test_both_sides_have_the_same_largest_state() -> None:
    """Of a scan, in rows."""
    fits = record("linear_scan", n_heads=2, n_groups=1, state_dim=MAX_STATE_DIM)
    with pytest.raises(ValueError, match="columns, expected"):
        program(fits, place(n_kv_heads=0, head_dim=0, layer_bytes=256))
