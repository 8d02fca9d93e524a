"""Numbers and structs of the native core, by name: they stand in ``native/`` alone."""

from __future__ import annotations

import numpy as np

from kvasir import _native

KIND_CODES = _native.ENUMS["Op"]
ROWS_OF_CODES = _native.ENUMS["RowsOf"]
DTYPE_CODES = _native.ENUMS["DType"]
SCAN_RULE_CODES = _native.ENUMS["ScanRule"]
SCORE_CODES = _native.ENUMS["Score"]
GROUP_SCORE_CODES = _native.ENUMS["GroupScore"]
ACT_CODES = _native.ENUMS["Act"]
EPILOGUE_CODES = _native.ENUMS["Epilogue"]
QK_NORM_CODES = _native.ENUMS["QkNorm"]
LAYOUT_CODES = _native.ENUMS["Layout"]
"""Of ``cpu.layouts.LAYOUTS``."""
KV_TYPE_CODES = _native.ENUMS["KvType"]
"""Of ``core.kvtypes.KV_TYPES``."""

RECORD: np.dtype[np.void] = np.dtype(_native.STRUCTS["Record"])
BUFFER: np.dtype[np.void] = np.dtype(_native.STRUCTS["Buffer"])
KV_PLACE: np.dtype[np.void] = np.dtype(_native.STRUCTS["KvPlace"])
