"""Tiny models that see as llama.cpp's converter writes them: a file of the language model and one of
the tower, from a folder."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from tests.gguf_writer import write_gguf
from tests.tiny import Array, TinyModel, gguf_parts, permute

_TYPES = {
    "smolvlm": "idefics3",
    "gemma3": "gemma3",
    "internvl": "internvl",
    "llava": "pixtral",
    "mistral3": "pixtral",
}
_RULES = (
    (r"^model\.", ""),
    (r"^vision_(model|tower\.vision_model|tower)\.", "v."),
    (r"(encoder|transformer)\.layers?\.", "blk."),
    (r"embeddings\.patch_embedding(s\.projection)?|patch_conv", "patch_embd"),
    (r"embeddings\.position_embeddings?", "position_embd"),
    (r"embeddings\.cls_token", "class_embd"),
    (r"post_layernorm", "post_ln"),
    (r"ln_pre", "pre_ln"),
    (r"layer_norm1|layernorm_before|attention_norm", "ln1"),
    (r"layer_norm2|layernorm_after|ffn_norm", "ln2"),
    (r"(self_attn|attention)\.([qkv])_(proj|norm)", r"attn_\2_\3"),
    (r"attn_([qkv])_proj", r"attn_\1"),
    (r"self_attn\.out_proj|attention\.(projection_layer|o_proj)", "attn_out"),
    (r"lambda_([12])", r"ls\1.weight"),
    (r"mlp\.fc1|feed_forward\.up_proj", "ffn_up"),
    (r"mlp\.fc2|feed_forward\.down_proj", "ffn_down"),
    (r"feed_forward\.gate_proj", "ffn_gate"),
    (r"connector\.modality_projection\.proj", "mm.model.fc"),
    (r"multi_modal_projector\.mm_soft_emb_norm", "mm.soft_emb_norm"),
    (r"multi_modal_projector\.mm_input_projection_weight", "mm.input_projection.weight"),
    (r"multi_modal_projector\.layer_norm", "mm.model.mlp.0"),
    (r"multi_modal_projector\.norm", "mm.input_norm"),
    (r"multi_modal_projector\.patch_merger\.merging_layer", "mm.patch_merger"),
    (r"(position_embd)$", r"\1.weight"),
)
_TEXT = ("language_model.", "model.text_model.", "lm_head.")


def write(model: TinyModel, folder: Path, into: Path, *, older: bool = False) -> Path:
    """Writes ``model.gguf`` and ``mmproj.gguf`` of a tiny model and its ``folder``; ``older``: with
    names of the MLP's matrices as they once were. The path of the first."""
    into.mkdir(parents=True, exist_ok=True)
    text, tower = _text(model), _tower(model, older)
    metadata, tensors = gguf_parts(text, "F32")
    write_gguf(into / "model.gguf", {**metadata, **_tokenizer(folder)}, tensors)
    write_gguf(into / "mmproj.gguf", _metadata(model, folder, tower), tower)
    return into / "model.gguf"


def _text(model: TinyModel) -> TinyModel:
    config = cast(Mapping[str, object], model.config["text_config"])
    own = {name: x for name, x in model.tensors.items() if name.startswith(_TEXT)}
    named = {
        re.sub(r"^language_model\.", "", name).replace("model.text_model.", "model."): x
        for name, x in own.items()
    }
    return TinyModel(model.name, config, named)


def _tower(model: TinyModel, older: bool) -> dict[str, tuple[str, Array]]:
    kind = _TYPES[str(model.config["model_type"])]
    vision = cast(Mapping[str, Any], model.config["vision_config"])
    found: dict[str, tuple[str, Array]] = {}
    for name, values in model.tensors.items():
        if name.startswith(_TEXT):
            continue
        target = name
        for old, new in _RULES:
            target = re.sub(old, new, target)
        n = {"internvl": {"1": "model.mlp.1", "2": "model.mlp.3"}}.get(kind, {"1": "1", "2": "2"})
        target = re.sub(
            r"multi_modal_projector\.linear_([12])", lambda x: f"mm.{n[x[1]]}", target
        )
        if target == "mm.soft_emb_norm.weight":
            values = values + np.float32(1.0)
        if kind == "pixtral" and re.search(r"attn_[qk]\.", target):
            values = permute(values, vision["num_attention_heads"])
        if older:
            swapped = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
            target = re.sub(r"ffn_(up|down)", lambda x: swapped[x[0]], target)
        found[target] = ("F32", values)
    if kind == "pixtral":
        found["v.token_embd.img_break.weight"] = ("F32", np.ones(64, np.float32))
    return found


def _tokenizer(folder: Path) -> dict[str, object]:
    said = json.loads((folder / "tokenizer.json").read_text())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    tokens = {i: piece for piece, i in said["model"]["vocab"].items()}
    tokens |= {token["id"]: token["content"] for token in said["added_tokens"]}
    special = {token["id"] for token in said["added_tokens"]}
    merges = [x if isinstance(x, str) else " ".join(x) for x in said["model"]["merges"]]
    return {
        "tokenizer.ggml.tokens": [tokens[i] for i in range(len(tokens))],
        "tokenizer.ggml.token_type": [3 if i in special else 1 for i in range(len(tokens))],
        "tokenizer.ggml.merges": merges,
        "tokenizer.chat_template": settings["chat_template"],
    }


def _metadata(
    model: TinyModel, folder: Path, tower: Mapping[str, tuple[str, Array]]
) -> dict[str, object]:
    kind = _TYPES[str(model.config["model_type"])]
    vision = cast(Mapping[str, Any], model.config["vision_config"])
    text = cast(Mapping[str, Any], model.config["text_config"])
    reads = json.loads((folder / "preprocessor_config.json").read_text())
    size, patch = vision["image_size"], vision["patch_size"]
    size, patch = (x[0] if isinstance(x, list) else x for x in (size, patch))
    size = reads["size"]["longest_edge"] if kind == "pixtral" else size
    own: dict[str, object] = {}
    if kind == "idefics3":
        own["projector.scale_factor"] = model.config["scale_factor"]
        own["preproc_image_size"] = reads["size"]["longest_edge"]
    elif kind == "gemma3":
        side = round(float(str(model.config["mm_tokens_per_image"])) ** 0.5)
        own["projector.scale_factor"] = size // patch // side
    elif kind == "internvl":
        own["projector.scale_factor"] = round(1 / float(str(model.config["downsample_ratio"])))
        own["preproc_max_tiles"] = reads["max_patches"]
    elif "mm.patch_merger.weight" in tower:
        own["spatial_merge_size"] = model.config["spatial_merge_size"]
    act = "use_silu" if vision["hidden_act"] == "silu" else "use_gelu"
    sizes = {
        "image_size": size,
        "patch_size": patch,
        "embedding_length": vision["hidden_size"],
        "feed_forward_length": vision["intermediate_size"],
        "block_count": vision["num_hidden_layers"],
        "attention.head_count": vision["num_attention_heads"],
        "attention.layer_norm_epsilon": vision.get("layer_norm_eps", 1e-5),
        "projection_dim": text["hidden_size"],
        "image_mean": reads["image_mean"],
        "image_std": reads["image_std"],
    }
    return {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "clip.has_vision_encoder": True,
        "clip.projector_type": kind,
        f"clip.{act}": True,
        **{f"clip.vision.{name}": value for name, value in {**sizes, **own}.items()},
    }
