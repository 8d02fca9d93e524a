"""What holds in a config.json that says the sizes alone is what ``transformers``' class has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvasir.checkpoints import config_from
from kvasir.formats.mapped import TensorTable
from kvasir.models import ModelConfig
from kvasir.models.families import FAMILIES
from kvasir.models.family import Family
from kvasir.weights.source import ModelSource
from tests.oracle.cases import ENCODERS, GOLDEN_MODELS

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

KINDS = {
    architecture: str(config["model_type"])
    for config in (make().config for make in (*GOLDEN_MODELS.values(), *ENCODERS.values()))
    for architecture in config["architectures"]
} | {
    "RobertaModel": "roberta",
    "CamembertModel": "camembert",
    "Idefics3ForConditionalGeneration": "idefics3",
    "Llama4ForConditionalGeneration": "llama4",
    "Gemma3nForConditionalGeneration": "gemma3n",
    "ExaoneMoEForCausalLM": "exaone_moe",
}
TEXTS = {
    "smolvlm": "llama",
    "llama4": "llama4_text",
    "gemma3n": "gemma3n_text",
    "gemma3_vision": "gemma3_text",
    "gemma4_vision": "gemma4_text",
    "internvl_qwen2": "qwen2",
    "internvl_qwen3": "qwen3",
    "llava_onevision": "qwen2",
    "pixtral": "mistral",
    "mistral3": "mistral",
    "mistral3_ministral3": "ministral3",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_vl_moe_saved": "qwen3_vl_moe_text",
    "qwen3_5_vl": "qwen3_5_text",
    "qwen3_5_moe_vl": "qwen3_5_moe_text",
}
"""Kinds of language models in those that see, by families."""

SAID: Mapping[str, Mapping[str, object]] = {
    "gpt_oss": {"rope_parameters": {"rope_type": "default", "rope_theta": 1.5e5}},
    "ministral3": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "glm4_moe": {"head_dim": 128},
    "gemma4_text": {
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1e6,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }
    },
    "deepseek_v2": {"num_experts_per_tok": 6},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "Gemma3TextModel": {"use_bidirectional_attention": True},
}
"""What every file of a kind or an architecture says, too: three classes have ropes of their own
where nothing is said, another's 96 heads do not share its 4096 columns, one says no number of
experts, one no kinds of its layers, an encoder sees both sides."""
FOREIGN = ("minicpm", "jina_v2", "jina_v2_code")
"""Whose class is in the models' folders, not in ``transformers``."""


def read(config: Mapping[str, object]) -> ModelConfig:
    """Families of folders that ``transformers`` saved are told by how these call a field."""
    source = ModelSource(Path("model"), "hf", "model", config, TensorTable({}))
    found = replace(config_from(source), unread=())
    return replace(found, family=found.family.removesuffix("_saved"))


@pytest.mark.parametrize(
    ("family", "architecture"),
    [(x, name) for x in FAMILIES if x.name not in FOREIGN for name in x.architectures],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_defaults(family: Family, architecture: str) -> None:
    transformers = pytest.importorskip("transformers", reason="make test-oracle")
    kind = KINDS[architecture]
    named = {"architectures": [architecture], **SAID.get(kind, {}), **SAID.get(architecture, {})}
    sees = family.text_key and architecture.endswith("ForConditionalGeneration")
    text_kind = TEXTS.get(family.name, "")
    own_part = {"model_type": text_kind, **SAID.get(text_kind, {})}
    part = {family.text_key: own_part} if sees else {}
    full = transformers.AutoConfig.for_model(kind, **part).to_dict() | named
    needed = {field.hf for field in family.fields.values() if field.hf and field.default is None}
    if "mixers" not in family.fields:  # the kinds of other families' layers follow from the sizes
        needed -= {"layer_types", "no_rope_layers"}
    said = {name: value for name, value in full.items() if name in needed}
    if part:
        text = full[family.text_key]
        own = {name: text[name] for name in needed & text.keys()}
        said = {family.text_key: part[family.text_key] | own}
    assert read(said | named) == read(full)
