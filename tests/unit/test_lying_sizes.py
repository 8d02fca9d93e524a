"""Sizes of latents, convolutions and layers of their own that cannot be: refused by the file's own
name, before anything is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvasir.checkpoints import build_program, config_from
from kvasir.core.errors import ModelError
from kvasir.weights.source import open_model
from tests import tiny, tiny_latent, tiny_state
from tests.tiny import TinyModel
from tests.tiny_gemma import gemma4, gemma4_moe

Change = dict[str, object]
V2, V3, LFM2 = tiny_latent.deepseek_v2, tiny_latent.deepseek_v3, tiny_state.lfm2
FOLDERS: list[tuple[Callable[[], TinyModel], Change, str]] = [
    (V3, {"kv_lora_rank": 0}, "kv_lora_rank is 0, expected at least 1"),
    (V3, {"kv_lora_rank": -64}, "kv_lora_rank is -64, expected at least 1"),
    (V3, {"kv_lora_rank": 1016}, "kv_lora_rank is 1016, expected at most 1024 with qk_rope_head_"),
    (V3, {"qk_rope_head_dim": 15}, "qk_rope_head_dim is 15, expected an even number"),
    (V3, {"qk_nope_head_dim": 1 << 24}, "qk_nope_head_dim is 16777216, expected at most 1024"),
    (V3, {"v_head_dim": 0}, "v_head_dim is 0, expected at least 1"),
    (V2, {"q_lora_rank": -1}, "q_lora_rank is -1, expected at least 0"),
    (V3, {"topk_group": 5}, "topk_group is 5, expected at most n_group = 4"),
    (LFM2, {"conv_L_cache": 1}, "conv_L_cache is 1, expected at least 2"),
    (LFM2, {"conv_L_cache": 9}, "conv_L_cache is 9, expected at most 8"),
    (LFM2, {"layer_types": ["conv"] * 4}, "layer_types is .*, expected 5 entries"),
    (LFM2, {"layer_types": None, "full_attn_idxs": [-1]}, "full_attn_idxs is .* a list of layers"),
    (gemma4, {"num_attention_heads": 3}, "num_key_value_heads is 2, expected a divisor of"),
    (gemma4_moe, {"num_global_key_value_heads": 3}, "num_global_key_value_heads is 3, expected a"),
]
FILES: list[tuple[Callable[[], TinyModel], Change, str]] = [
    (V3, {"attention.kv_lora_rank": 0}, "kv_lora_rank is 0, expected at least 1"),
    (V3, {"attention.key_length": 81}, "key_length is 81, expected 80, what a token keeps"),
    (V3, {"attention.value_length": 80}, "value_length is 80, expected 64, what a token keeps"),
    (V3, {"attention.key_length_mla": 16}, "key_length_mla is 16, expected more than rope"),
    (V3, {"nextn_predict_layers": 1 << 20}, "nextn_predict_layers is 1048576, expected less than"),
    (LFM2, {"shortconv.l_cache": 1 << 24}, "l_cache is 16777216, expected at most 8"),
    (LFM2, {"attention.head_count_kv": [0] * 5}, "head_count_kv is .*, expected one number of"),
    (
        LFM2,
        {"attention.head_count_kv": [0, 2, 0, 1, 0]},
        "expected one number of some layers",
    ),
    (LFM2, {"attention.head_count_kv": [0, 2, 0, 2]}, "expected 5 entries, each one of 0, 2"),
    (gemma4, {"attention.shared_kv_layers": 6}, "shared_kv_layers is 6, expected at most 5"),
    (gemma4, {"attention.value_length": 16}, "value_length is 16, expected at least 32"),
    (gemma4, {"attention.key_length": 33, "attention.value_length": 33}, "is 33, expected an even"),
]


@pytest.mark.parametrize(("make", "change", "message"), FOLDERS)
def test_a_folder_is_refused(
    make: Callable[[], TinyModel], change: Change, message: str, tmp_path: Path
) -> None:
    source = open_model(tiny.write_hf(make(), tmp_path))
    with pytest.raises(ModelError, match=message):
        config_from(replace(source, config={**source.config, **change}))


@pytest.mark.parametrize(("make", "change", "message"), FILES)
def test_a_file_is_refused(
    make: Callable[[], TinyModel], change: Change, message: str, tmp_path: Path
) -> None:
    source = open_model(tiny.write_gguf_model(make(), tmp_path / "m.gguf"))
    arch = source.config["general.architecture"]
    own = {f"{arch}.{name}": value for name, value in change.items()}
    with pytest.raises(ModelError, match=message):
        config_from(replace(source, config={**source.config, **own}))


def test_queries_of_rank_0_are_made_of_the_rows(tmp_path: Path) -> None:
    source = open_model(tiny.write_hf(V2(), tmp_path))
    config = config_from(replace(source, config={**source.config, "q_lora_rank": 0}))
    assert "layers.0.q_plain" in build_program(config).weights
