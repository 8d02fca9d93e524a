"""The families: one entry each, and the choice of the entry from a model file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

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
    hf_names: names.NameMap = names.HF
    gguf_names: names.NameMap = names.GGUF

    def names(self, kind: str) -> names.NameMap:
        return self.hf_names if kind == "hf" else self.gguf_names


FAMILIES = (
    Family(  # Llama 2 and 3, SmolLM, TinyLlama; Mistral has a window unless its config says null
        "llama",
        BlockSpec(),
        {
            "LlamaForCausalLM": hf.Decoder(biases=hf.LLAMA_BIASES),
            "MistralForCausalLM": hf.Decoder(
                kv_heads=8, windows=partial(hf.same_window, default=4096)
            ),
        },
        "llama",
        gguf.read_llama,
        gguf_names=names.GGUF_LLAMA,
    ),
    Family(
        "mixtral",
        BlockSpec(),
        {"MixtralForCausalLM": hf.read_mixtral},
        "llama",
        gguf.read_mixtral,
        gguf_names=names.GGUF_LLAMA,
    ),
    Family(  # and Qwen2.5
        "qwen2",
        BlockSpec(qkv_bias=True),
        {"Qwen2ForCausalLM": hf.Decoder(kv_heads=32, windows=hf.upper_windows)},
        "qwen2",
        gguf.read_qwen,
    ),
    Family(
        "qwen3",
        BlockSpec(qk_norm=True),
        {
            "Qwen3ForCausalLM": hf.Decoder(
                biases=hf.ATTENTION_BIAS,
                kv_heads=32,
                head_dim=128,
                windows=hf.upper_windows,
            )
        },
        "qwen3",
        gguf.read_qwen,
    ),
    Family(
        "gemma3",
        BlockSpec(act="gelu_tanh", qk_norm=True, post_norms=True),
        {"Gemma3ForCausalLM": hf.read_gemma3},
        "gemma3",
        gguf.read_gemma3,
        names.HF_GEMMA3,
    ),
)


_WRITES, _CLASSIFIES = "ForCausalLM", "ForSequenceClassification"
"""Ends of names of architectures: the same model with an LM head, and with one for labels."""
CLASSIFIERS = ("score.weight", "cls.output.weight")
"""Tensors of a head for labels, [labels, hidden size], in HF folders and GGUF files."""


def config_from(source: ModelSource) -> ModelConfig:
    """Reads a model's config. Raises ModelError naming the file and the offending field."""
    if source.kind == "gguf":
        return _from_gguf(source)
    where = f"{source.path}: config.json"
    keys = Keys(source.config, where)
    architecture = _architecture(keys, where)
    written = architecture.replace(_CLASSIFIES, _WRITES)
    family = next(family for family in FAMILIES if written in family.read_hf)
    config = family.read_hf[written](keys, family.block, family.name)
    return config if written == architecture else replace(config, tied=True, classifies=True)


def _architecture(keys: Keys, where: str) -> str:
    writers = sorted(name for family in FAMILIES for name in family.read_hf)
    known = [*writers, *(name.replace(_WRITES, _CLASSIFIES) for name in writers)]
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
    """Whether a tensor may be left unread by programs: derived values, a copy of the tied
    embedding, or a head for labels (``text.heads``)."""
    table = _named(config.family).names(config.kind)
    is_head = tensor in CLASSIFIERS or (config.tied and tensor == table.top["lm_head"])
    return is_head or tensor.endswith(table.ignorable)
