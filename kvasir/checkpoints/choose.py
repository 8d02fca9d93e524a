"""The family of a model file, or a refusal that names the nearest one and what it lacks."""

from __future__ import annotations

import re

import msgspec

from kvasir.checkpoints.beyond import beyond
from kvasir.checkpoints.fields import Fields
from kvasir.checkpoints.keys import Keys, listed
from kvasir.checkpoints.qkv import is_fused, with_qkv
from kvasir.checkpoints.tensors import base_of, tensor_kinds, tensor_name
from kvasir.core.errors import ModelError
from kvasir.models.families import FAMILIES
from kvasir.models.family import Family
from kvasir.weights.source import ModelSource

_WRITES = ("ForCausalLM", "LMHeadModel")
_HEADLESS = ("ForSequenceClassification", "Model")
"""Ends of names of architectures: a model with an LM head, with one for labels, or with none."""
_HEAD = "lm_head.weight"
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")

_OF_FOLDERS = """
_name_or_path _attn_implementation_autoset architectures model_type torch_dtype dtype
transformers_version auto_map use_cache cache_implementation initializer_range attention_dropout
hidden_dropout residual_dropout embedding_dropout attn_pdrop embd_pdrop resid_pdrop
classifier_dropout router_jitter_noise router_aux_loss_coef summary_type summary_use_proj
summary_activation summary_proj_to_labels summary_first_dropout
output_router_logits pretraining_tp is_llama_config problem_type bos_token_id eos_token_id
pad_token_id unk_token_id sep_token_id id2label label2id num_labels matryoshka_dimensions
is_matryoshka task_specific_params unsloth_fixed transformers.js_config quantization_config
compression_config
"""
_OF_GGUF = """
pooling_type classifier.output_labels rope.scaling.original_context_length rope.scaling.finetuned
tensor_data_layout
"""
HARMLESS = {"hf": frozenset(_OF_FOLDERS.split()), "gguf": frozenset(_OF_GGUF.split())}
"""Of training, texts and other programs, or read elsewhere."""


class Chosen(msgspec.Struct, frozen=True):
    fields: Fields
    headless: bool = False
    """The folder has no LM head, which others of the family have."""


def choose(source: ModelSource) -> Chosen:
    """Raises ModelError on an architecture that no family has."""
    return _of_gguf(source) if source.kind == "gguf" else _of_folder(source)


def _of_folder(source: ModelSource) -> Chosen:
    where = f"{source.path}: config.json"
    keys = Keys(source.config, where)
    listed = keys.raw("architectures")
    if not isinstance(listed, list) or len(listed) != 1:
        raise ModelError(f"{where}: architectures is {listed!r}, expected a list of one name")
    name = str(listed[0])
    found = [family for family in FAMILIES if _has(family, name)]
    if not found:
        known = dict.fromkeys(x for family in FAMILIES for x in family.architectures)
        raise _refusal(source, f"{where}: architecture {name!r}", name, list(known))
    family = _fitting(_of_kind(found, keys), source)
    if family.text_key and not (family.text_alone and keys.raw(family.text_key) is None):
        keys = _of_text(keys, family, source)
    keys = keys.flattened(family.nested)
    is_whole = name.endswith(_WRITES) or name in family.architectures
    headless = not (family.block.both_ways or is_whole)
    return Chosen(Fields(family, keys, "hf"), headless)


def _of_kind(found: list[Family], keys: Keys) -> list[Family]:
    """Of families that see, those of the language model that is named, and of these those that call
    the number of experts as the file does."""
    text = keys.table(found[0].text_key) if found[0].text_key else None
    if text is None:
        return found
    kind = text.raw("model_type")
    named = [x for x in found if kind in (x.harmless.get("model_type") or (kind,))] or found
    return [x for x in named if "n_experts" in x.fields and _says_experts(x, text)] or named


def _says_experts(family: Family, text: Keys) -> bool:
    return text.has(family.fields["n_experts"].hf)


def _of_text(keys: Keys, family: Family, source: ModelSource) -> Keys:
    """The fields of the language model; whether its head is tied stands beside them. One that says
    nothing of it has its own head where there is one."""
    table, tied = keys.table(family.text_key), "tie_word_embeddings"
    if table is None and family.text_beside:
        return keys
    if table is None:
        raise keys.error(family.text_key, None, "the language model's fields")
    has_head = any(name.endswith(_HEAD) for name in source.tensors)
    default = family.fields["tied"].default is True and not has_head
    is_tied = keys.flag(tied, default) or (family.text_ties and table.flag(tied, False))
    return table.with_field(tied, is_tied)


def _has(family: Family, name: str) -> bool:
    """As it is called in the table, or with another head or none. Encoders write nothing."""
    kinds = _HEADLESS if family.block.both_ways else (*_WRITES, *_HEADLESS)
    return name in family.architectures or any(
        name == _bare(known) + kind for known in family.architectures for kind in kinds
    )


def _bare(architecture: str) -> str:
    """Without its head: LlamaForCausalLM is Llama."""
    end = next((x for x in (*_WRITES, *_HEADLESS) if architecture.endswith(x)), "")
    return architecture.removesuffix(end)


def _of_gguf(source: ModelSource) -> Chosen:
    arch = source.config.get("general.architecture")
    found = [family for family in FAMILIES if arch in family.gguf.split()]
    if not found:
        known = sorted({name for family in FAMILIES for name in family.gguf.split()})
        what = f"{source.path}: general.architecture {arch!r}"
        raise _refusal(source, what, str(arch), known)
    keys = Keys(source.config, str(source.path), f"{arch}.")
    has_experts = keys.integer("expert_count", 0, least=0) > 0
    fits = [family for family in found if ("n_experts" in family.fields) == has_experts]
    fits = [family for family in fits or found if _routes_so(family, keys, source)] or fits
    family = with_qkv(_fitting(fits or found, source), is_fused(source.tensors))
    return Chosen(Fields(family, keys, "gguf"))


def _routes_so(family: Family, keys: Keys, source: ModelSource) -> bool:
    """Whether its experts are weighed as the file says; files of GLM-4.7 Flash do not, but have the
    bias of such experts."""
    said, own = keys.raw("expert_gating_func"), family.harmless.get("expert_gating_func")
    if own is None:
        return True
    has_bias = any(name.endswith("exp_probs_b.bias") for name in source.tensors)
    return has_bias == ("choice_bias" in family.tensors) if said is None else said in own


def _fitting(found: list[Family], source: ModelSource) -> Family:
    """Of families of one name, the first whose tensors the file has."""

    def first_norm(family: Family) -> str:
        norm = "attn_norm" if "attn_norm" in family.tensors else "attn_post_norm"
        norm = "q_norm" if family.told_from and "q_norm" in family.tensors else norm
        base = base_of(family, source.kind, source.tensors)
        return tensor_name(family, source.kind, f"layers.0.{norm}", base)

    return next((each for each in found if first_norm(each) in source.tensors), found[0])


def _refusal(source: ModelSource, what: str, name: str, known: list[str]) -> ModelError:
    more = beyond(name, source.config if source.kind == "hf" else {})
    why = f": it has {more}, which nothing here computes" if more else ""
    return ModelError(
        f"{what} is not supported{why}; supported: {', '.join(known)}. {_nearest(source)}",
        code="unsupported_model",
    )


def _nearest(source: ModelSource) -> str:
    """The family that leaves the fewest tensors of the file over, and those."""
    found = {_NUMBER.sub("{}", name) for name in source.tensors}
    kinds = {family.name: tensor_kinds(family, source.kind) for family in FAMILIES}
    name = min(kinds, key=lambda name: (len(found - kinds[name]), len(kinds[name] - found)))
    lacks = [*sorted(found - kinds[name]), *_unknown_fields(source, name)]
    if not lacks:
        return f"Nearest is {name}, which has the same tensors and fields"
    return f"Nearest is {name}, which lacks {listed(lacks)}"


def _unknown_fields(source: ModelSource, name: str) -> list[str]:
    family = next(family for family in FAMILIES if family.name == name)
    if source.kind == "gguf":
        return []
    fields = {field.hf for field in family.fields.values()} | HARMLESS["hf"]
    fields |= {*family.harmless, "rope_scaling", "rope_parameters", "partial_rotary_factor"}
    return sorted(x for x, value in source.config.items() if value is not None and x not in fields)
