"""Decoders of every format on fixed bytes; values as of the ``gguf`` package (tests/oracle)."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from kvasir.formats.decode import decode, split
from kvasir.formats.split import join
from kvasir.formats.types import FORMATS, STORED
from tests.format_blocks import random_blocks

GOLDEN: dict[str, tuple[str, list[float]]] = {
    "F32": ("7f2b9d2a80b51593", [-0.021248046308755875, -1.9237149953842163]),
    "F16": ("8ec89ce05438c85b", [0.927734375, -0.74853515625]),
    "BF16": ("c238ba104c34d8f8", [-0.7734375, 0.4296875]),
    "Q4_0": ("97f4051880474892", [-0.0176849365234375, 0.01513671875]),
    "Q4_1": ("9a31b28960c12184", [0.07735443115234375, 0.12291717529296875]),
    "Q5_0": ("09da5ce13298ff64", [0.17578125, -0.169189453125]),
    "Q5_1": ("78980e81397a0534", [-0.23877716064453125, -0.15228271484375]),
    "Q8_0": ("f2c8777e04dff9dd", [0.34160614013671875, 0.8802337646484375]),
    "Q2_K": ("7da9fa087d691386", [0.03705596923828125, 0.3084869384765625]),
    "Q3_K": ("b2e3703f0afde6c2", [-0.0, 0.657684326171875]),
    "Q4_K": ("b161817d01a72749", [2.6879501342773438, -2.5896377563476562]),
    "Q5_K": ("69baecedfd885caf", [1.7942657470703125, -9.373664855957031]),
    "Q6_K": ("a0ba91d9ac1ac2cf", [10.273223876953125, 26.421585083007812]),
    "IQ4_NL": ("d2572900ade13883", [-0.9948883056640625, -0.167022705078125]),
    "IQ4_XS": ("042a811d090c061e", [4.272216796875, 6.57958984375]),
    "IQ3_S": ("b528e11ff94092f4", [0.45705413818359375, 0.27435302734375]),
    "IQ3_XXS": ("914a3155471e9cc4", [-0.23014068603515625, -0.0413360595703125]),
    "IQ2_XXS": ("288f6b529066120d", [0.0464630126953125, 0.2939453125]),
    "IQ2_XS": ("5514a9e4bedfa55d", [-0.9863376617431641, 0.042510032653808594]),
    "IQ2_S": ("042c839112ee0fa7", [0.9397392272949219, -1.3370246887207031]),
    "IQ1_S": ("ee4379ddf470d8c2", [-0.09192466735839844, -0.09006214141845703]),
    "IQ1_M": ("b26655fcde93f300", [0.19727325439453125, 0.01714038848876953]),
    "TQ1_0": ("43f011b3bb7a350d", [-0.00948333740234375, 0.01180267333984375]),
    "TQ2_0": ("177b4984b7db5f0d", [0.0116424560546875, -0.0]),
    "MXFP4": ("37a6df394800af51", [0.001953125, 0.0]),
}  # fmt: skip
"""BLAKE2b of the values' bytes; the first value and the last."""


@pytest.mark.parametrize("name", STORED)
def test_values(name: str) -> None:
    values = decode(name, random_blocks(name, 2))
    digest, some = GOLDEN[name]
    assert values[[0, -1]].tolist() == some
    assert hashlib.blake2b(values.astype("<f4").tobytes(), digest_size=8).hexdigest() == digest


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.has_integers])
def test_integers_and_scales_give_the_values(name: str) -> None:
    data = random_blocks(name, 3)
    form = FORMATS[name]
    parts = split(name, data)
    assert parts.values.shape == (3, form.block)
    assert form.block // parts.scales.shape[1] in (16, 32, 64, 128, 256)
    assert parts.mins is None or parts.mins.shape == parts.scales.shape
    assert np.array_equal(join(parts), decode(name, data))


def test_every_tensor_type_in_use_is_there() -> None:
    assert len(STORED) == 25
