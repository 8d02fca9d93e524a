"""Methods that are known and not read, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_KERNEL = "its order of weights is that of one GPU kernel"
_CODEBOOK = "its codebooks have no kernel here"
_ONLINE = "its weights are made while a model is loaded, from unquantized ones"
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("exl2", "exl3"), _KERNEL),
        **dict.fromkeys(("marlin", "gptq_marlin", "gptq_marlin_24", "marlin-24"), _KERNEL),
        **dict.fromkeys(("bitblas", "gptq_bitblas", "gptq_p", "qqq", "paroquant"), _KERNEL),
        **dict.fromkeys(("gemv_fast", "llm-awq", "eetq"), _KERNEL),
        **dict.fromkeys(
            ("aqlm", "quip", "quip#", "vptq", "higgs", "squeezellm", "spqr"), _CODEBOOK
        ),
        **dict.fromkeys(
            ("hqq", "torchao", "quanto", "fp_quant"), "its files hold objects of Python"
        ),
        **dict.fromkeys(("experts_int8", "deepspeedfp", "ptpc_fp8", "rtn"), _ONLINE),
        **dict.fromkeys(("sparse-24-bitmask", "sparse-bitmask"), "sparse weights are not read"),
        "bitnet": "its packing is read from GGUF files alone (TQ1_0, TQ2_0)",
        "quark": "its schemes are not read",
    }
)
