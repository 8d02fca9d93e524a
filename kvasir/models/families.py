"""The families: one entry each, and the choice of the entry from a model file."""

from __future__ import annotations

from collections.abc import Callable
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
    hf_architectures: tuple[str, ...]
    gguf_arch: str
    read_hf: HfReader
    read_gguf: GgufReader
    hf_names: names.NameMap
    gguf_names: names.NameMap

    def names(self, kind: str) -> names.NameMap:
        return self.hf_names if kind == "hf" else self.gguf_names


FAMILIES = (
    Family(
        "llama",
        BlockSpec(),
        ("LlamaForCausalLM", "MistralForCausalLM"),
        "llama",
        hf.read_llama,
        gguf.read_llama,
        names.LLAMA_HF,
        names.LLAMA_GGUF,
    ),
    Family(
        "mixtral",
        BlockSpec(),
        ("MixtralForCausalLM",),
        "llama",
        hf.read_mixtral,
        gguf.read_mixtral,
        names.MIXTRAL_HF,
        names.MIXTRAL_GGUF,
    ),
    Family(
        "gemma3",
        BlockSpec(act="gelu_tanh", qk_norm=True, post_norms=True),
        ("Gemma3ForCausalLM",),
        "gemma3",
        hf.read_gemma3,
        gguf.read_gemma3,
        names.GEMMA3_HF,
        names.GEMMA3_GGUF,
    ),
)


def config_from(source: ModelSource) -> ModelConfig:
    """Reads a model's config. Raises ModelError naming the file and the field that is missing or unsupported."""
    if source.kind == "gguf":
        return _from_gguf(source)
    where = f"{source.path}: config.json"
    keys = Keys(source.config, where)
    family = _by_architecture(keys, where)
    return family.read_hf(keys, family.block, family.name)


def _by_architecture(keys: Keys, where: str) -> Family:
    known = {name: family for family in FAMILIES for name in family.hf_architectures}
    listed = keys.raw("architectures")
    if not isinstance(listed, list) or len(listed) != 1:
        raise ModelError(f"{where}: architectures is {listed!r}, expected a list of one name")
    if listed[0] not in known:
        raise ModelError(
            f"{where}: architecture {listed[0]} is not supported; supported: {', '.join(sorted(known))}",
            code="unsupported_model",
        )
    return known[listed[0]]


def _from_gguf(source: ModelSource) -> ModelConfig:
    arch = source.config.get("general.architecture")
    known = sorted({family.gguf_arch for family in FAMILIES})
    if arch not in known:
        raise ModelError(
            f"{source.path}: general.architecture is {arch!r}, which is not supported; supported: {', '.join(known)}",
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
    """Whether a tensor of the file may be left unread: derived values, or a copy of the tied embedding."""
    table = _named(config.family).names(config.kind)
    return tensor.endswith(table.ignorable) or (config.tied and tensor == table.top["lm_head"])
