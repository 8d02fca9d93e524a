"""Architectures of GGUF files, as tests write them."""

from __future__ import annotations

ARCH = {"gemma3_text": "gemma3", "mistral": "llama", "ministral": "llama", "mixtral": "llama"}
ARCH |= {"qwen3_moe": "qwen3moe", "qwen2_moe": "qwen2moe", "ernie4_5_moe": "ernie4_5-moe"}
ARCH |= {"granitemoeshared": "granitemoe", "olmo3": "olmo2", "ministral3": "mistral3"}
ARCH |= {"glm": "chatglm", "hunyuan_v1_dense": "hunyuan-dense", "gpt_oss": "gpt-oss"}
ARCH |= {"hunyuan_v1_moe": "hunyuan-moe", "exaone_moe": "exaone-moe"}
ARCH |= {"glm4_moe": "glm4moe", "minimax_m2": "minimax-m2", "lfm2_moe": "lfm2moe"}
ARCH |= {"deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "glm4_moe_lite": "deepseek2"}
ARCH |= {"nomic_bert": "nomic-bert", "cohere": "command-r", "phi": "phi2", "gpt_neox": "gptneox"}
ARCH |= {
    "granitemoehybrid": "granitehybrid",
    "falcon_h1": "falcon-h1",
    "qwen3_next": "qwen3next",
    "kimi_linear": "kimi-linear",
    "llama4_text": "llama4",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
}
ARCH |= {"gemma4_text": "gemma4", "xlm-roberta": "bert", "modernbert": "modern-bert"}
ARCH |= {"gemma3n_text": "gemma3n"}
ARCH |= {"jina_embeddings_v3": "jina-bert-v3", "qwen2_vl": "qwen2vl", "qwen2_5_vl": "qwen2vl"}
ARCH |= {"qwen3_vl_text": "qwen3vl", "qwen3_vl_moe_text": "qwen3vlmoe"}
"""By model_type, where it is another."""
PERMUTED = {"llama", "granite", "granitemoe", "granitehybrid", "smollm3", "mistral3", "minicpm"}
PERMUTED |= {"nemotron_h", "nemotron_h_moe"}
"""Architectures whose rows of q and k are reordered."""
