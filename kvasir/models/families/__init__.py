"""The families that run, a file each."""

from kvasir.models.families.bert import BERT
from kvasir.models.families.cohere import COHERE
from kvasir.models.families.cohere2 import COHERE2
from kvasir.models.families.deepseek_v2 import DEEPSEEK_V2
from kvasir.models.families.deepseek_v3 import DEEPSEEK_V3
from kvasir.models.families.ernie45 import ERNIE45
from kvasir.models.families.ernie45_moe import ERNIE45_MOE
from kvasir.models.families.exaone4 import EXAONE4
from kvasir.models.families.exaone_moe import EXAONE_MOE
from kvasir.models.families.falcon import FALCON
from kvasir.models.families.falcon_h1 import FALCON_H1
from kvasir.models.families.falcon_two_norms import FALCON_TWO_NORMS
from kvasir.models.families.gemma import GEMMA
from kvasir.models.families.gemma2 import GEMMA2
from kvasir.models.families.gemma3 import GEMMA3
from kvasir.models.families.gemma3_vision import GEMMA3_VISION
from kvasir.models.families.gemma4 import GEMMA4
from kvasir.models.families.gemma_embedding import GEMMA_EMBEDDING
from kvasir.models.families.glm import GLM
from kvasir.models.families.glm4 import GLM4
from kvasir.models.families.glm4_moe import GLM4_MOE
from kvasir.models.families.glm4_moe_lite import GLM4_MOE_LITE
from kvasir.models.families.gpt2 import GPT2
from kvasir.models.families.gpt_neox import GPT_NEOX
from kvasir.models.families.gpt_oss import GPT_OSS
from kvasir.models.families.gptj import GPTJ
from kvasir.models.families.granite import GRANITE
from kvasir.models.families.granite_hybrid import GRANITE_HYBRID
from kvasir.models.families.granite_moe import GRANITE_MOE
from kvasir.models.families.hunyuan_dense import HUNYUAN_DENSE
from kvasir.models.families.hunyuan_moe import HUNYUAN_MOE
from kvasir.models.families.internvl import INTERNVL, INTERNVL_QWEN3
from kvasir.models.families.jina_v3 import JINA_V3, JINA_V3_SAVED
from kvasir.models.families.kimi_linear import KIMI_LINEAR
from kvasir.models.families.lfm2 import LFM2
from kvasir.models.families.lfm2_moe import LFM2_MOE
from kvasir.models.families.llama import LLAMA, MISTRAL
from kvasir.models.families.llama4 import LLAMA4
from kvasir.models.families.mamba2 import MAMBA2
from kvasir.models.families.minicpm import MINICPM
from kvasir.models.families.minimax_m2 import MINIMAX_M2
from kvasir.models.families.ministral import MINISTRAL
from kvasir.models.families.ministral3 import MINISTRAL3
from kvasir.models.families.mixtral import MIXTRAL
from kvasir.models.families.modern_bert import MODERN_BERT
from kvasir.models.families.nemotron_h import NEMOTRON_H
from kvasir.models.families.nomic_bert import NOMIC_BERT
from kvasir.models.families.olmo2 import OLMO2
from kvasir.models.families.olmo3 import OLMO3
from kvasir.models.families.olmoe import OLMOE
from kvasir.models.families.phi import PHI
from kvasir.models.families.phi3 import PHI3
from kvasir.models.families.pixtral import MISTRAL3, MISTRAL3_MINISTRAL, PIXTRAL
from kvasir.models.families.qwen2 import QWEN2
from kvasir.models.families.qwen2_5_vl import QWEN2_5_VL
from kvasir.models.families.qwen2_moe import QWEN2_MOE
from kvasir.models.families.qwen2_vl import QWEN2_VL
from kvasir.models.families.qwen3 import QWEN3
from kvasir.models.families.qwen3_5 import QWEN3_5
from kvasir.models.families.qwen3_5_moe import QWEN3_5_MOE
from kvasir.models.families.qwen3_5_vl import QWEN3_5_MOE_VL, QWEN3_5_VL
from kvasir.models.families.qwen3_moe import QWEN3_MOE
from kvasir.models.families.qwen3_next import QWEN3_NEXT
from kvasir.models.families.qwen3_vl import QWEN3_VL
from kvasir.models.families.qwen3_vl_moe import QWEN3_VL_MOE, QWEN3_VL_MOE_SAVED
from kvasir.models.families.roberta import ROBERTA
from kvasir.models.families.seed_oss import SEED_OSS
from kvasir.models.families.smollm3 import SMOLLM3
from kvasir.models.families.smolvlm import SMOLVLM
from kvasir.models.families.stablelm import STABLELM
from kvasir.models.families.starcoder2 import STARCODER2

FAMILIES = (
    *(LLAMA, MISTRAL, MINISTRAL, MIXTRAL, SMOLLM3, GRANITE, SEED_OSS, ERNIE45),
    *(MINISTRAL3, MINICPM, HUNYUAN_DENSE, OLMO2, OLMO3, PHI3, GLM, GLM4),
    *(QWEN2, QWEN3, EXAONE4),
    *(QWEN2_MOE, QWEN3_MOE, GRANITE_MOE, ERNIE45_MOE, GPT_OSS),
    *(OLMOE, GLM4_MOE, MINIMAX_M2, HUNYUAN_MOE, EXAONE_MOE, LLAMA4),
    *(DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE),
    *(GEMMA, GEMMA2, GEMMA3, GEMMA4),
    *(STARCODER2, COHERE, COHERE2, PHI, STABLELM),
    *(GPT_NEOX, FALCON_TWO_NORMS, FALCON, GPTJ, GPT2),
    *(LFM2, LFM2_MOE, MAMBA2, GRANITE_HYBRID, FALCON_H1, NEMOTRON_H),
    *(QWEN3_NEXT, QWEN3_5, QWEN3_5_MOE, KIMI_LINEAR),
    *(BERT, NOMIC_BERT, ROBERTA, MODERN_BERT, JINA_V3, JINA_V3_SAVED, GEMMA_EMBEDDING),
    *(SMOLVLM, GEMMA3_VISION, INTERNVL, INTERNVL_QWEN3),
    *(PIXTRAL, MISTRAL3, MISTRAL3_MINISTRAL),
    *(QWEN2_VL, QWEN2_5_VL, QWEN3_VL, QWEN3_VL_MOE, QWEN3_VL_MOE_SAVED),
    *(QWEN3_5_VL, QWEN3_5_MOE_VL),
)
