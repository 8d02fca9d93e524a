"""Every format's decoder against the ``gguf`` package, bit for bit, on random blocks."""

from __future__ import annotations

import numpy as np
import pytest

from kvasir.formats.decode import decode
from kvasir.formats.types import STORED
from tests.format_blocks import random_blocks

pytestmark = pytest.mark.oracle
gguf = pytest.importorskip("gguf")


@pytest.mark.parametrize("name", STORED)
def test_decodes_as_gguf(name: str) -> None:
    data = random_blocks(name, 64)
    kind = gguf.GGMLQuantizationType[name]
    form = STORED[name]
    if form.block > 1:
        assert gguf.GGML_QUANT_SIZES[kind] == (form.block, form.block_bytes)
    assert kind.value == form.ggml_type
    wanted = gguf.quants.dequantize(data.reshape(64, -1), kind)
    got = decode(name, data)
    assert np.array_equal(got.view(np.uint32), wanted.reshape(-1).view(np.uint32))
