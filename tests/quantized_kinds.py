"""Every way of checkpoints to store a matrix that is read."""

from __future__ import annotations

from tests import tiny
from tests.quantized_floats import bnb_4bit, bnb_int8, fp8, fp8_blocks, nvfp4
from tests.quantized_writer import Kind, awq, compressed, gptq, int_quantized, pack_quantized

SIZES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
"""Of tiny models whose rows have whole groups of 128."""


def llama() -> tiny.TinyModel:
    return tiny.llama(**SIZES)


def qwen2() -> tiny.TinyModel:
    return tiny.qwen2(**SIZES)


_FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True}
KINDS: dict[str, Kind] = {
    "gptq-4-sym": gptq(4, 128, sym=True),
    "gptq-4": gptq(4, 32, sym=False),
    "gptq-4-v2": gptq(4, 64, sym=False, version="gptq_v2"),
    "gptq-4-row": gptq(4, -1, sym=False),
    "gptq-2": gptq(2, 64, sym=False),
    "gptq-3": gptq(3, 128, sym=False),
    "gptq-3-gptqmodel": gptq(3, 64, sym=False, meta={"quantizer": ["gptqmodel:4.0.0"]}),
    "gptq-8-sym": gptq(8, 32, sym=True),
    "gptq-8": gptq(8, 64, sym=False),
    "gptq-8-row": gptq(8, -1, sym=True),
    "awq-gemm": awq("gemm", 128),
    "awq-gemv": awq("gemv", 32),
    "pack-4-sym-bf16": pack_quantized(4, 128, True, "BF16"),
    "pack-4": pack_quantized(4, 32, False, "F16"),
    "pack-4-row": pack_quantized(4, -1, True, "BF16"),
    "pack-4-f32": pack_quantized(4, 64, False, "F32"),
    "pack-8": pack_quantized(8, 128, True, "F16"),
    "pack-3-dense": pack_quantized(3, 64, False, "BF16"),
    "pack-3-tens": pack_quantized(3, 64, False, "BF16", dense=False),
    "pack-2": pack_quantized(2, 32, True, "F16"),
    "int8": int_quantized(),
    "int8-tensor": int_quantized("F32", whole=True),
    "fp8-blocks": fp8_blocks(128, 128),
    "fp8-ragged": fp8_blocks(96, 96),
    "fp8-bf16-scales": fp8_blocks(128, 128, "BF16"),
    "fp8-e8m0": fp8_blocks(128, 128, "F8_E8M0"),
    "fp8-tensor": fp8({"quant_method": "fp8", "activation_scheme": "static"}, False, "F32",
                      ("input_scale",)),
    "fbgemm": fp8({"quant_method": "fbgemm_fp8"}, True, "F32", ("input_scale_ub",)),
    "float": fp8(compressed({**_FLOAT8, "strategy": "channel"}, "float-quantized"), True, "BF16"),
    "modelopt-fp8": fp8({"quant_method": "modelopt", "quant_algo": "FP8"}, False, "F32",
                        ("input_scale", "k_scale")),
    "nvfp4-compressed": nvfp4(divides=True),
    "nvfp4-modelopt": nvfp4(divides=False),
    "bnb-int8": bnb_int8(),
    "bnb-nf4": bnb_4bit("nf4", nested=False),
    "bnb-nf4-nested": bnb_4bit("nf4", nested=True),
    "bnb-fp4": bnb_4bit("fp4", nested=False),
}  # fmt: skip
