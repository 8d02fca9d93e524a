"""AutoRound (arXiv:2309.05516): modules as GPTQ or AWQ store them, and settings of single ones."""

from __future__ import annotations

from kvasir.weights.quantization.awq import Awq
from kvasir.weights.quantization.fields import MAX_NAMES, UNQUANTIZED, QuantFields
from kvasir.weights.quantization.gptq import BITS, Gptq, Scheme, scheme_of
from kvasir.weights.quantization.parts import Method


def read_auto_round(fields: QuantFields) -> Method:
    """Raises ModelError."""
    fields.one_of(("int",), "data_type", default="int")
    packing = fields.raw("packing_format", "backend")
    if not isinstance(packing, str):
        raise fields.error("packing_format", packing, "auto_round:auto_gptq or auto_round:auto_awq")
    scheme = scheme_of(fields, packing.endswith("auto_gptq"))
    named = _named(fields, scheme)
    if "awq" in packing:
        if scheme.bits != 4 or any(own != scheme for own in named.values()):
            raise fields.error("extra_config", "other bits", f"4 bits everywhere: {UNQUANTIZED}")
        return Awq(scheme.group, is_gemv=False)
    knows_zeros = packing.endswith("auto_gptq") or scheme.is_symmetric
    if not knows_zeros or "llm_compressor" in packing:
        raise fields.error("packing_format", packing, f"auto_round:auto_gptq: {UNQUANTIZED}")
    return Gptq(scheme, named=named, name="AutoRound")


def _named(fields: QuantFields, scheme: Scheme) -> dict[str, Scheme]:
    """Modules with settings of their own; those of other bits than GPTQ has are not quantized."""
    extra = fields.table("extra_config")
    if extra is None:
        return {}
    if len(extra.values) > MAX_NAMES:
        raise fields.error("extra_config", f"{len(extra.values)} modules", f"at most {MAX_NAMES}")
    found = {}
    for module in extra.values:
        own = extra.table(module) or QuantFields({}, extra.where)
        if own.raw("bits") in (None, *BITS):
            found[module] = scheme_of(own, scheme.less_one, scheme)
    return found
