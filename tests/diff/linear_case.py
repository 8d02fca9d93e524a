"""Cases of the linear kernels: packed random weights, every epilogue, rows and tiles cut."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvasir import _native
from kvasir.exec.cpu import layouts
from kvasir.exec.cpu.codes import ACT_CODES, EPILOGUE_CODES, LAYOUT_CODES
from tests.diff.kernel_case import (
    FORMATS,
    LAYOUTS,
    Case,
    Ranges,
    empty_q8,
    file_rows,
    fitting,
    normal,
    pack,
    rng_of,
    with_codes,
)
from tests.kv_codes import from_bf16, to_bf16

NONE, ADD, GATED = (EPILOGUE_CODES[name] for name in ("none", "add", "gated"))
SILU = ACT_CODES["silu"]


class Activations:
    """Rows in the type that a layout takes: the native view and its values in float64."""

    def __init__(self, layout: str, x: NDArray[np.float32], block: int) -> None:
        act = layouts.LAYOUTS[layout].act
        if act == "f32":
            self.rows, self.values = _native.Rows(x), x.astype(np.float64)
        elif act == "bf16":
            half = to_bf16(x)
            self.rows, self.values = _native.Rows(half), from_bf16(half).astype(np.float64)
        else:
            q8 = empty_q8(*x.shape, block)
            _native.Kernels("scalar").cast(x, q8.rows, 0, len(x))
            self.rows = q8.rows
            self.values = q8.data * np.repeat(q8.scales.astype(np.float64), block, axis=1)


def linear_case(
    layout: int,
    M: int,
    N: int,
    K: int,
    epilogue: int = NONE,
    biased: bool = False,
    indexed: bool = False,
    by_tiles: bool = False,
) -> Case:
    """Items are rows, or column tiles when ``by_tiles``."""
    K = fitting(layout, K)
    rng = rng_of(layout, M, N, K)
    parts = [file_rows(rng, FORMATS[layout], N, K) for _ in range(2 if epilogue == GATED else 1)]
    code = LAYOUT_CODES[LAYOUTS[layout]]
    w = pack(layout, [raw for raw, _ in parts], N, K)
    n_all, tiles = N * len(parts), -(-N // 16) * len(parts)
    bias = normal(rng, n_all) if biased else None
    residual = normal(rng, M, N) if epilogue == ADD else None
    index = rng.integers(0, M, M).astype(np.int32) if indexed else None
    block = next((b for b in (1024, 512, 192, 64) if K % b == 0), 32)
    x = Activations(LAYOUTS[layout], normal(rng, M, K), block)

    def run(k: _native.Kernels, ranges: Ranges) -> tuple[NDArray[np.generic], ...]:
        out = np.zeros((M, N), np.float32)
        for a, b in ranges:
            t, m = ((a, b), (0, M)) if by_tiles else ((0, tiles), (a, b))
            k.linear(code, w, n_all, x.rows, out, *t, *m, epilogue, SILU, residual, bias, index)
        return (out,)

    def expected() -> tuple[tuple[NDArray[np.generic], NDArray[np.generic]], ...]:
        rows = x.values if index is None else x.values[index]
        sums, bounds = [], []
        for i, (_, values) in enumerate(parts):
            shift = bias[i * N : (i + 1) * N] if bias is not None else np.zeros(N)
            sums.append(rows @ values.T + shift)
            bounds.append(3e-6 * (np.abs(rows) @ np.abs(values.T) + np.abs(shift)))
        if epilogue == GATED:
            gate, up = sums
            y = gate / (1 + np.exp(-gate)) * up
            return (
                (
                    y,
                    1.2 * bounds[0] * np.abs(up)
                    + np.abs(gate) * bounds[1]
                    + 1e-6 * np.abs(y)
                    + 1e-6,
                ),
            )
        y = sums[0] if residual is None else sums[0] + residual
        return ((y, bounds[0] + 1e-6),)

    return Case(tiles if by_tiles else M, run, expected, 2 if by_tiles and epilogue == GATED else 1)


EXTREME = {
    "q4m": (slice(4, 20), 0xFF),
    "q5m": (slice(4, 24), 0xFF),
    "q6k": (slice(0, 192), 0xFF),
    "q8": (slice(2, 34), 0x80),
}
"""Bytes of a block's codes and the value that makes each code the one of greatest magnitude."""


def extreme_case(name: str, M: int, N: int = 33, K: int = 256) -> Case:
    """Codes and activations at their ends, where sums of products reach the bounds of int16."""
    layout, code = LAYOUTS.index(name), LAYOUT_CODES[name]
    rng = rng_of(layout, M, N, K)
    raw, values = with_codes(
        FORMATS[layout], file_rows(rng, FORMATS[layout], N, K)[0], N, *EXTREME[name]
    )
    w = pack(layout, [raw], N, K)
    signs = np.where(np.arange(M) % 2, -1, 1).astype(np.float32)
    x = Activations(name, np.repeat(signs[:, None], K, axis=1), 64)

    def run(k: _native.Kernels, ranges: Ranges) -> tuple[NDArray[np.generic], ...]:
        out = np.zeros((M, N), np.float32)
        for a, b in ranges:
            k.linear(code, w, N, x.rows, out, 0, -(-N // 16), a, b, NONE, SILU, None, None, None)
        return (out,)

    def expected() -> tuple[tuple[NDArray[np.generic], NDArray[np.generic]], ...]:
        bound = 3e-6 * (np.abs(x.values) @ np.abs(values.T)) + 1e-6
        return ((x.values @ values.T, bound),)

    return Case(M, run, expected)


COMPACT = LAYOUTS[LAYOUTS.index("q2k") : LAYOUTS.index("f8c")]


def compact_cases(layout: int, name: str) -> dict[str, Case]:
    """Fewer: they share their linears, which test_compact.py compares with those above."""
    return {
        f"linear-{name}-one-row": linear_case(layout, 1, 33, 512),
        f"linear-{name}-many-gated": linear_case(layout, 17, 24, 256, GATED, indexed=True),
        f"linear-{name}-tiles": linear_case(layout, 5, 70, 768, ADD, biased=True, by_tiles=True),
    }


def linear_cases() -> dict[str, Case]:
    cases = {}
    for i, name in enumerate(LAYOUTS):
        if name in COMPACT:
            cases |= compact_cases(i, name)
            continue
        cases |= {
            f"linear-{name}-one-row": linear_case(i, 1, 48, 576),
            f"linear-{name}-rows": linear_case(i, 23, 40, 576),
            f"linear-{name}-many": linear_case(i, 133, 33, 1088, ADD, biased=True),
            f"linear-{name}-panels": linear_case(i, 22, 33, 448),
            f"linear-{name}-many-gated": linear_case(i, 17, 24, 192, GATED, indexed=True),
            f"linear-{name}-add": linear_case(i, 9, 33, 96, ADD, biased=True),
            f"linear-{name}-gated": linear_case(i, 7, 24, 192, GATED, biased=True),
            f"linear-{name}-experts": linear_case(i, 6, 32, 64, indexed=True),
            f"linear-{name}-tiles": linear_case(i, 5, 70, 288, ADD, by_tiles=True),
            f"linear-{name}-gated-tiles": linear_case(i, 3, 50, 64, GATED, by_tiles=True),
        }
    for name in EXTREME:
        cases |= {f"linear-{name}-extreme-{M}": extreme_case(name, M) for M in (5, 21)}
    for name in ("q4m", "q6k", "q8m"):
        cases[f"linear-{name}-many-192"] = linear_case(LAYOUTS.index(name), 69, 33, 576)
    cases["linear-q4m-wide-block"] = linear_case(LAYOUTS.index("q4m"), 17, 33, 1024)
    for name in ("q4z", "q8m"):  # as wide as a panel
        i = LAYOUTS.index(name)
        cases[f"linear-{name}-panel-block"] = linear_case(i, 37, 48, 1536)
    for i in range(3):
        cases[f"linear-{LAYOUTS[i]}-odd"] = linear_case(i, 5, 17, 77)
    return cases
