"""The families: one entry each, and the choice of the entry from a model file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvasir.core.errors import ModelError
from kvasir.ir.program import Weight
from kvasir.models import gguf, hf, names
from kvasir.models.keys import Keys
from kvasir.models.spec import BlockSpec, ModelConfig
from kvasir.weights.source import ModelSource

HfReader = Callable[[Keys, BlockSpec, str], ModelConfig]
GgufReader = Callable[[Keys, gguf.Tensors, BlockSpec, str], ModelConfig]


@dataclass(frozen=True, slots=True)
class Family:
    """``block`` holds the flags that all members share; readers refine it."""

    name: str
    block: BlockSpec
    read_hf: Mapping[str, HfReader]
    """By the name in ``architectures``."""
    gguf_arch: str
    read_gguf: GgufReader
    hf_names: names.NameMap
    gguf_names: names.NameMap

    def names(self, kind: str) -> names.NameMap:
        return self.hf_names if kind == "hf" else self.gguf_names


FAMILIES = (
    Family(
        "llama",
        BlockSpec(),
        {"LlamaForCausalLM": hf.read_llama, "MistralForCausalLM": hf.read_mistral},
        "llama",
        gguf.read_llama,
        names.LLAMA_HF,
        names.LLAMA_GGUF,
    ),
    Family(
        "mixtral",
        BlockSpec(),
        {"MixtralForCausalLM": hf.read_mixtral},
        "llama",
        gguf.read_mixtral,
        names.MIXTRAL_HF,
        names.MIXTRAL_GGUF,
    ),
    Family(
        "qwen2",
        BlockSpec(qkv_bias=True),
        {"Qwen2ForCausalLM": hf.read_qwen2},
        "qwen2",
        gguf.read_qwen,
        names.LLAMA_HF,
        names.QWEN2_GGUF,
    ),
    Family(
        "qwen3",
        BlockSpec(qk_norm=True),
        {"Qwen3ForCausalLM": hf.read_qwen3},
        "qwen3",
        gguf.read_qwen,
        names.QWEN3_HF,
        names.QWEN3_GGUF,
    ),
    Family(
        "gemma3",
        BlockSpec(act="gelu_tanh", qk_norm=True, post_norms=True),
        {"Gemma3ForCausalLM": hf.read_gemma3},
        "gemma3",
        gguf.read_gemma3,
        names.GEMMA3_HF,
        names.GEMMA3_GGUF,
    ),
)


def config_from(source: ModelSource) -> ModelConfig:
    """Reads a model's config. Raises ModelError naming the file and the offending field."""
    if source.kind == "gguf":
        return _from_gguf(source)
    where = f"{source.path}: config.json"
    keys = Keys(source.config, where)
    architecture = _architecture(keys, where)
    family = next(family for family in FAMILIES if architecture in family.read_hf)
    return family.read_hf[architecture](keys, family.block, family.name)


def _architecture(keys: Keys, where: str) -> str:
    known = sorted(name for family in FAMILIES for name in family.read_hf)
    listed = keys.raw("architectures")
    if not isinstance(listed, list) or len(listed) != 1:
        raise ModelError(f"{where}: architectures is {listed!r}, expected a list of one name")
    if listed[0] not in known:
        raise ModelError(
            f"{where}: architecture {listed[0]!r} is not supported; supported: {', '.join(known)}",
            code="unsupported_model",
        )
    return str(listed[0])


def _from_gguf(source: ModelSource) -> ModelConfig:
    arch = source.config.get("general.architecture")
    known = sorted({family.gguf_arch for family in FAMILIES})
    if arch not in known:
        raise ModelError(
            f"{source.path}: general.architecture {arch!r} is not supported; "
            f"supported: {', '.join(known)}",
            code="unsupported_model",
        )
    keys = Keys(source.config, str(source.path), f"{arch}.")
    name = "mixtral" if arch == "llama" and keys.integer("expert_count", 0, least=0) else str(arch)
    family = _named(name)
    return family.read_gguf(keys, source.tensors, family.block, family.name)


def _named(name: str) -> Family:
    return next(family for family in FAMILIES if family.name == name)


def weight_of(config: ModelConfig) -> Callable[[str, tuple[int, ...]], Weight]:
    """How the family finds a weight in this kind of file."""
    table = _named(config.family).names(config.kind)
    return lambda name, shape: table.weight(config, name, shape)


def is_ignorable(config: ModelConfig, tensor: str) -> bool:
    """Whether a tensor may be left unread: derived values, or a copy of the tied embedding."""
    table = _named(config.family).names(config.kind)
    return tensor.endswith(table.ignorable) or (config.tied and tensor == table.top["lm_head"])
