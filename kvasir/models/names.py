"""Where each weight lies in a model file: tensor names, and the steps from tensor to weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvasir.ir.program import Transform, Weight
from kvasir.models.spec import ModelConfig

TransformRule = Callable[[ModelConfig, str], tuple[Transform, ...]]
"""(config, part of the weight's name after the layer) -> steps."""


@dataclass(frozen=True, slots=True)
class NameMap:
    """``top`` names tensors of the whole model, ``layer`` those of block {i}; {e} is an expert.
    Those that a model does not have are not looked up.

    ``bias`` entries are made from their matrix by replacing the last component.
    """

    top: Mapping[str, str]
    layer: Mapping[str, str]
    transforms: TransformRule = lambda config, part: ()
    ignorable: tuple[str, ...] = ()
    """Ends of names of tensors that hold nothing the program needs."""

    def weight(self, config: ModelConfig, name: str, shape: tuple[int, ...]) -> Weight:
        """The weight with its sources. Raises KeyError for a name that the family does not have."""
        if name in self.top:
            return Weight(name, shape, (self.top[name],), self.transforms(config, name))
        _, layer, part = name.split(".", 2)
        matrix = part.removesuffix(".bias")
        template = self.layer[matrix].replace("{i}", layer)
        if matrix != part:
            template = template.removesuffix("weight") + "bias"
        sources: tuple[str, ...] = (template,)
        if "{e}" in template and config.experts is not None:
            n_experts = config.experts.n_experts
            sources = tuple(template.replace("{e}", str(e)) for e in range(n_experts))
        return Weight(name, shape, sources, self.transforms(config, part))


def undo_rope_permutation(config: ModelConfig, part: str) -> tuple[Transform, ...]:
    """GGUF files of the llama family hold q and k rows reordered for interleaved rope."""
    heads = {"q": config.n_heads, "k": config.n_kv_heads}.get(part.removesuffix(".bias"))
    return (Transform("permute_rope", (heads,)),) if heads is not None else ()


def add_one_to_norms(config: ModelConfig, part: str) -> tuple[Transform, ...]:
    """Gemma's norms multiply by 1 + weight."""
    return (Transform("plus_one"),) if part.endswith("norm") else ()


_HF_TOP = {
    "embed": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "lm_head": "lm_head.weight",
}
_HF_LAYER = {
    "attn_norm": "model.layers.{i}.input_layernorm.weight",
    "q": "model.layers.{i}.self_attn.q_proj.weight",
    "k": "model.layers.{i}.self_attn.k_proj.weight",
    "v": "model.layers.{i}.self_attn.v_proj.weight",
    "o": "model.layers.{i}.self_attn.o_proj.weight",
    "q_norm": "model.layers.{i}.self_attn.q_norm.weight",
    "k_norm": "model.layers.{i}.self_attn.k_norm.weight",
    "mlp_norm": "model.layers.{i}.post_attention_layernorm.weight",
    "gate": "model.layers.{i}.mlp.gate_proj.weight",
    "up": "model.layers.{i}.mlp.up_proj.weight",
    "down": "model.layers.{i}.mlp.down_proj.weight",
    "router": "model.layers.{i}.block_sparse_moe.gate.weight",
    "experts.gate": "model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight",
    "experts.up": "model.layers.{i}.block_sparse_moe.experts.{e}.w3.weight",
    "experts.down": "model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight",
}
_HF_GEMMA3 = {
    "attn_post_norm": "model.layers.{i}.post_attention_layernorm.weight",
    "mlp_norm": "model.layers.{i}.pre_feedforward_layernorm.weight",
    "mlp_post_norm": "model.layers.{i}.post_feedforward_layernorm.weight",
}
_HF_IGNORABLE = (".rotary_emb.inv_freq", ".self_attn.rotary_emb.inv_freq")

_GGUF_TOP = {
    "embed": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "lm_head": "output.weight",
}
_GGUF_LAYER = {
    "attn_norm": "blk.{i}.attn_norm.weight",
    "q": "blk.{i}.attn_q.weight",
    "k": "blk.{i}.attn_k.weight",
    "v": "blk.{i}.attn_v.weight",
    "o": "blk.{i}.attn_output.weight",
    "q_norm": "blk.{i}.attn_q_norm.weight",
    "k_norm": "blk.{i}.attn_k_norm.weight",
    "attn_post_norm": "blk.{i}.post_attention_norm.weight",
    "mlp_norm": "blk.{i}.ffn_norm.weight",
    "mlp_post_norm": "blk.{i}.post_ffw_norm.weight",
    "gate": "blk.{i}.ffn_gate.weight",
    "up": "blk.{i}.ffn_up.weight",
    "down": "blk.{i}.ffn_down.weight",
    "router": "blk.{i}.ffn_gate_inp.weight",
    "experts.gate": "blk.{i}.ffn_gate_exps.weight",
    "experts.up": "blk.{i}.ffn_up_exps.weight",
    "experts.down": "blk.{i}.ffn_down_exps.weight",
}
_GGUF_IGNORABLE = ("rope_freqs.weight",)

HF = NameMap(_HF_TOP, _HF_LAYER, ignorable=_HF_IGNORABLE)
HF_GEMMA3 = NameMap(_HF_TOP, _HF_LAYER | _HF_GEMMA3, add_one_to_norms, _HF_IGNORABLE)
GGUF = NameMap(_GGUF_TOP, _GGUF_LAYER, ignorable=_GGUF_IGNORABLE)
GGUF_LLAMA = NameMap(_GGUF_TOP, _GGUF_LAYER, undo_rope_permutation, _GGUF_IGNORABLE)
