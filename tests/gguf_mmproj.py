"""Tiny models that see as llama.cpp's converter writes them: a file of the language model and one
of the tower, from a folder."""

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
    "qwen2_vl": "qwen2vl_merger",
    "qwen2_5_vl": "qwen2.5vl_merger",
    "qwen3_vl": "qwen3vl_merger",
    "qwen3_vl_moe": "qwen3vl_merger",
    "qwen3_5": "qwen3vl_merger",
}
_RULES = (
    (r"^model\.", ""),
    (r"^visual\.merger\.ln_q", "v.post_ln"),
    (r"^visual\.merger\.norm", "v.post_ln"),
    (r"^visual\.merger\.mlp\.", "mm."),
    (r"^visual\.merger\.linear_fc1", "mm.0"),
    (r"^visual\.merger\.linear_fc2", "mm.2"),
    (r"^visual\.deepstack_merger_list\.(\d+)\.(linear_)?", r"v.deepstack.\1."),
    (r"^visual\.pos_embed", "v.position_embd"),
    (r"attn\.qkv", "attn_qkv"),
    (r"^visual\.patch_embed\.proj", "v.patch_embd"),
    (r"^visual\.blocks\.", "v.blk."),
    (r"attn\.proj", "attn_out"),
    (r"mlp\.(gate|up|down)_proj", r"ffn_\1"),
    (r"\.norm([12])\.", r".ln\1."),
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
    (r"mlp\.(linear_)?fc1|feed_forward\.up_proj", "ffn_up"),
    (r"mlp\.(linear_)?fc2|feed_forward\.down_proj", "ffn_down"),
    (r"feed_forward\.gate_proj", "ffn_gate"),
    (r"connector\.modality_projection\.proj", "mm.model.fc"),
    (r"multi_modal_projector\.mm_soft_emb_norm", "mm.soft_emb_norm"),
    (r"multi_modal_projector\.mm_input_projection_weight", "mm.input_projection.weight"),
    (r"multi_modal_projector\.layer_norm", "mm.model.mlp.0"),
    (r"multi_modal_projector\.norm", "mm.input_norm"),
    (r"multi_modal_projector\.patch_merger\.merging_layer", "mm.patch_merger"),
    (r"(position_embd)$", r"\1.weight"),
)
_IS_TOWER = re.compile(r"(^|\.)(vision_|visual\.|connector\.|multi_modal_)")


def write(
    model: TinyModel, folder: Path, into: Path, *, older: bool = False, form: str = "F32"
) -> Path:
    """Writes ``model.gguf`` and ``mmproj.gguf`` of a tiny model and its ``folder``; ``older``: with
    names of the MLP's matrices as they once were; ``form``: of the tower's matrices with rows of
    whole blocks of 32. The path of the first."""
    into.mkdir(parents=True, exist_ok=True)
    text, tower = text_of(model), _tower(model, older)
    metadata, tensors = gguf_parts(text, "F32")
    write_gguf(into / "model.gguf", {**metadata, **_tokenizer(folder)}, tensors)
    stored = {x: (form if _has_blocks(x, y) else kind, y) for x, (kind, y) in tower.items()}
    write_gguf(into / "mmproj.gguf", _metadata(model, folder, tower), stored)
    return into / "model.gguf"


def _has_blocks(name: str, values: Array) -> bool:
    return values.ndim == 2 and not values.shape[1] % 32 and "embd" not in name


def text_of(model: TinyModel) -> TinyModel:
    """The language model of one that sees."""
    own = {name: x for name, x in model.tensors.items() if not _IS_TOWER.search(name)}
    named = {
        re.sub(r"^language_model\.|(?<=^model\.)(text_model|language_model)\.", "", name): x
        for name, x in own.items()
    }
    return TinyModel(model.name, _text_config(model), _experts_apart(named))


def _experts_apart(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Of Qwen3-VL, whose files have them input by output, gate and up side by side."""
    found: dict[str, Array] = {}
    for name, values in tensors.items():
        if not re.search(r"\.mlp\.experts\.(gate_up|down)_proj$", name):
            found[name] = values
            continue
        parts = name.removesuffix("_proj").rpartition(".")[2].split("_")
        base = name.rpartition(".")[0]
        for part, matrix in zip(parts, np.split(values, len(parts), axis=-1), strict=True):
            for i, each in enumerate(matrix):
                found[f"{base}.{i}.{part}_proj.weight"] = np.ascontiguousarray(each.T)
    return found


def _text_config(model: TinyModel) -> Mapping[str, Any]:
    """Of its own, or beside that of the tower."""
    return cast(Mapping[str, Any], model.config.get("text_config", model.config))


def _tower(model: TinyModel, older: bool) -> dict[str, tuple[str, Array]]:
    kind = _TYPES[str(model.config["model_type"])]
    vision = cast(Mapping[str, Any], model.config["vision_config"])
    found: dict[str, tuple[str, Array]] = {}
    for name, values in model.tensors.items():
        if not _IS_TOWER.search(name):
            continue
        target = name
        for old, new in _RULES:
            target = re.sub(old, new, target)
        n = {"internvl": {"1": "model.mlp.1", "2": "model.mlp.3"}}.get(kind, {"1": "1", "2": "2"})
        target = re.sub(
            r"multi_modal_projector\.linear_([12])", lambda x, n=n: f"mm.{n[x[1]]}", target
        )
        if target == "mm.soft_emb_norm.weight":
            values = values + np.float32(1.0)
        if kind == "pixtral" and re.search(r"attn_[qk]\.", target):
            values = permute(values, vision["num_attention_heads"])
        if older:
            swapped = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
            target = re.sub(r"ffn_(up|down)", lambda x, swapped=swapped: swapped[x[0]], target)
        parts = _parts(target, values, kind != "qwen3vl_merger")
        found |= {part: ("F32", x) for part, x in parts.items()}
    if kind == "pixtral":
        found["v.token_embd.img_break.weight"] = ("F32", np.ones(64, np.float32))
    return found


def _parts(name: str, values: Array, is_apart: bool) -> dict[str, Array]:
    """Of Qwen's queries, keys and values, and of the frames of a patch."""
    if ".attn_qkv." in name and is_apart:
        each = zip("qkv", np.split(values, 3), strict=True)
        return {name.replace("attn_qkv", f"attn_{x}"): part for x, part in each}
    if values.ndim == 5:
        return {name: values[:, :, 0], f"{name}.1": values[:, :, 1]}
    return {name: values}


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
    text = _text_config(model)
    reads = json.loads((folder / "preprocessor_config.json").read_text())
    act = "use_silu" if vision["hidden_act"] == "silu" else "use_gelu"
    size, patch = vision.get("image_size", 560), vision["patch_size"]
    size, patch = (x[0] if isinstance(x, list) else x for x in (size, patch))
    if "num_position_embeddings" in vision:
        size = patch * round(float(vision["num_position_embeddings"]) ** 0.5)
    sizes = {
        "image_size": reads["size"]["longest_edge"] if kind == "pixtral" else size,
        "patch_size": patch,
        "embedding_length": vision.get("embed_dim", vision["hidden_size"]),
        "feed_forward_length": vision.get("intermediate_size", vision["hidden_size"]),
        "block_count": vision.get("num_hidden_layers", vision.get("depth")),
        "attention.head_count": vision.get("num_attention_heads", vision.get("num_heads")),
        "attention.layer_norm_epsilon": vision.get("layer_norm_eps", 1e-5),
        "projection_dim": text["hidden_size"],
        "image_mean": reads["image_mean"],
        "image_std": reads["image_std"],
    }
    own = _own(model, kind, size // patch, reads, tower)
    return {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "clip.has_vision_encoder": True,
        "clip.projector_type": kind,
        f"clip.{act}": True,
        **{f"clip.vision.{name}": value for name, value in {**sizes, **own}.items()},
    }


def _own(
    model: TinyModel,
    kind: str,
    side: int,
    reads: Mapping[str, Any],
    tower: Mapping[str, tuple[str, Array]],
) -> dict[str, object]:
    """Fields of a kind."""
    config, vision = model.config, cast(Mapping[str, Any], model.config["vision_config"])
    if kind == "idefics3":
        longest = reads["size"]["longest_edge"]
        return {"projector.scale_factor": config["scale_factor"], "preproc_image_size": longest}
    if kind == "gemma3":
        rows = round(float(str(config["mm_tokens_per_image"])) ** 0.5)
        return {"projector.scale_factor": side // rows}
    if kind == "internvl":
        fold = round(1 / float(str(config["downsample_ratio"])))
        return {"projector.scale_factor": fold, "preproc_max_tiles": reads["max_patches"]}
    if kind.startswith("qwen"):
        bounds = {"min": reads["size"]["shortest_edge"], "max": reads["size"]["longest_edge"]}
        own: dict[str, object] = {f"image_{x}_pixels": n for x, n in bounds.items()}
        if kind == "qwen3vl_merger":
            taps = vision["deepstack_visual_indexes"]
            own["is_deepstack_layers"] = [i in taps for i in range(vision["depth"])]
        if "fullatt_block_indexes" in vision:
            own["n_wa_pattern"] = vision["fullatt_block_indexes"][0] + 1
            own["window_size"] = vision["window_size"]
        return own
    is_merged = "mm.patch_merger.weight" in tower
    return {"spatial_merge_size": config["spatial_merge_size"]} if is_merged else {}
