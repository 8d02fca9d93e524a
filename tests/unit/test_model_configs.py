"""Configs: typed fields, the defaults of their source, errors that name the field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import inf, nextafter
from pathlib import Path
from typing import ClassVar, NoReturn

import numpy as np
import pytest
from msgspec.structs import replace as with_fields

from kvasir.checkpoints import config_from, ignorable
from kvasir.checkpoints.keys import Keys
from kvasir.checkpoints.loaded import load_model
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ModelError
from kvasir.engine.build import build_engine
from kvasir.formats.decode import values_of
from kvasir.models import LayerSpec, ModelConfig
from kvasir.models.rope import inverse_frequencies, rope_digest, rope_table
from kvasir.models.spec import ROPE, ROPE_WINDOW, RopeConfig
from kvasir.weights.source import open_model
from tests import tiny, tiny_moe
from tests.gguf_writer import write_gguf
from tests.tiny import TinyModel

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(model: TinyModel, folder: Path) -> ModelConfig:
    return config_from(open_model(tiny.write_hf(model, folder)))


def without(model: TinyModel, *fields: str) -> TinyModel:
    return replace(model, config={k: v for k, v in model.config.items() if k not in fields})


def test_llama(tmp_path: Path) -> None:
    config = read(tiny.llama(), tmp_path)
    assert (config.family, config.kind, config.tied) == ("llama", "hf", False)
    assert config.layers == (LayerSpec(n_heads=4, n_kv_heads=2, head_dim=16, ffn_size=96),) * 3
    assert config.attention_scale == 0.25
    assert config.windows == ()


def test_llama_defaults(tmp_path: Path) -> None:
    fields = (
        "num_key_value_heads",
        "head_dim",
        "rope_theta",
        "rms_norm_eps",
        "tie_word_embeddings",
    )
    config = read(without(tiny.llama(), *fields), tmp_path)
    layer = config.layers[0]
    assert (layer.n_kv_heads, layer.head_dim, config.ropes[ROPE].theta) == (4, 16, 10000.0)
    assert (config.norm_eps, config.tied) == (1e-6, False)


@pytest.mark.parametrize(("window", "expected"), [(6, (6,) * 3), (None, ())])
def test_mistral_window(window: int | None, expected: tuple[int, ...], tmp_path: Path) -> None:
    model = tiny.mistral()
    model = replace(model, config={**model.config, "sliding_window": window})
    assert read(model, tmp_path).windows == expected


def test_mistral_has_a_window_unless_told_otherwise(tmp_path: Path) -> None:
    assert read(without(tiny.mistral(), "sliding_window"), tmp_path).windows == (4096,) * 3


def test_gemma3_layers(tmp_path: Path) -> None:
    config = read(tiny.gemma3(), tmp_path)
    assert config.windows == (8, 8, 0, 8)
    assert config.ropes == {ROPE: RopeConfig(1e6, "linear", 8.0), ROPE_WINDOW: RopeConfig(10000.0)}
    used = [layer.rope for layer in config.layers]
    assert used == [ROPE_WINDOW, ROPE_WINDOW, ROPE, ROPE_WINDOW]
    assert config.attention_scale == pytest.approx(24**-0.5)
    assert (config.embed_scale, config.attention_softcap, config.final_softcap) == (8.0, 2.0, 5.0)


def test_gemma3_pattern_and_defaults(tmp_path: Path) -> None:
    fields = ("layer_types", "rope_scaling", "attn_logit_softcapping", "final_logit_softcapping")
    model = without(tiny.gemma3(sliding_window_pattern=2), *fields)
    config = read(model, tmp_path)
    assert config.windows == (8, 0, 8, 0)
    assert config.ropes[ROPE] == RopeConfig(1e6)
    assert (config.attention_softcap, config.final_softcap) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": None}, "config.json: hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size is '64', expected a whole number"),
        ({"hidden_size": True}, "hidden_size is True, expected a whole number"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, expected at most 1024"),
        ({"vocab_size": 1 << 40}, "vocab_size is 1099511627776, expected at most"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, expected at least 1"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps is 'tiny', expected a number"),
        (
            {"rms_norm_eps": float("nan")},
            "rms_norm_eps is nan, expected a number from 0 to 1e\\+30",
        ),
        ({"rope_theta": 10**400}, "rope_theta is 1000.*, expected a number from 1 to"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, expected a divisor of"),
        ({"head_dim": 15}, "head_dim is 15, expected an even number"),
        ({"head_dim": None, "hidden_size": 66}, "hidden_size is 66, expected a multiple of"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu', expected one of silu, gelu"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1, expected true or false"),
        ({"sliding_window": 64}, "sliding_window is 64, expected a model without it"),
        (
            {"rope_scaling": {"type": "proportional", "factor": 4.0}},
            "type is 'proportional', expected one of default",
        ),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "rope_scaling: factor is missing"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling: long_factor is missing"),
        (
            {"rope_scaling": {"rope_type": "su", "long_factor": [1.0, 0]}},
            r"long_factor is \[1.0, 0\], expected 8 positive numbers",
        ),
        (
            {"rope_scaling": {"type": "default", "llama_4_scaling_beta": 0.1}},
            "llama_4_scaling_beta is 0.1, expected a model without it",
        ),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: factor is missing"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear', expected an object"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor is missing"),
        (
            {"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}},
            "high_freq_factor is 1.0, expected more than low_freq_factor = 1",
        ),
        ({"head_dim": 2048}, "head_dim is 2048, expected at most 1024"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, expected 1.0"),
        ({"architectures": ["LlamaForTokenClassification"]}, "is not supported; supported: "),
        ({"architectures": None}, "architectures is None, expected a list of one name"),
    ],
)
def test_unusable_fields_are_named(fields: dict[str, object], message: str, tmp_path: Path) -> None:
    model = tiny.llama()
    with pytest.raises(ModelError, match=message):
        read(replace(model, config={**model.config, **fields}), tmp_path)


def test_too_many_experts_per_token(tmp_path: Path) -> None:
    model = tiny.mixtral()
    model = replace(model, config={**model.config, "num_experts_per_tok": 5})
    with pytest.raises(ModelError, match="num_experts_per_tok is 5, expected at most num_local"):
        read(model, tmp_path)


@pytest.mark.parametrize(
    ("make", "fields", "message"),
    [
        (
            tiny_moe.glm4_moe,
            {"n_group": 3},
            "expected groups of two or more of n_routed_experts = 8",
        ),
        (tiny_moe.glm4_moe, {"n_group": 8}, "n_group is 8, expected groups of two or more"),
        (tiny_moe.glm4_moe, {"topk_group": 5}, "topk_group is 5, expected at most n_group = 4"),
        (tiny_moe.glm4_moe, {"num_experts_per_tok": 5}, "at most n_routed_experts = 8 in 2 of 4"),
        (
            tiny_moe.glm4_moe,
            {"n_routed_experts": 2048},
            "n_routed_experts is 2048, expected at most",
        ),
        (tiny_moe.glm4_moe, {"routed_scaling_factor": -1.0}, "routed_scaling_factor is -1.0"),
        (tiny_moe.minimax_m2, {"scoring_func": "softmax"}, "scoring_func is 'softmax', expected a"),
        (tiny_moe.gpt_oss, {"swiglu_limit": 5.0}, "swiglu_limit is 5.0, expected a model without"),
        (tiny_moe.qwen2_moe, {"decoder_sparse_step": 0}, "decoder_sparse_step is 0, expected at"),
    ],
)
def test_routing_that_cannot_be_is_named(
    make: Callable[..., TinyModel], fields: dict[str, object], message: str, tmp_path: Path
) -> None:
    model = make()
    with pytest.raises(ModelError, match=message):
        read(replace(model, config={**model.config, **fields}), tmp_path)


@pytest.mark.parametrize("layers", ["0", [-1], [True], [0.5], [1 << 40], {"0": 1}])
def test_dense_layers_are_a_list_of_layers(layers: object, tmp_path: Path) -> None:
    model = tiny_moe.qwen2_moe()
    model = replace(model, config={**model.config, "mlp_only_layers": layers})
    with pytest.raises(ModelError, match=r"mlp_only_layers is .*, expected a list of layers"):
        read(model, tmp_path)


def test_more_draft_layers_than_layers(tmp_path: Path) -> None:
    source = open_model(tiny.write_gguf_model(tiny_moe.glm4_moe(), tmp_path / "m.gguf"))
    config = {**source.config, "glm4moe.nextn_predict_layers": 3}
    with pytest.raises(ModelError, match=r"nextn_predict_layers is 3, expected less than .* = 3"):
        config_from(replace(source, config=config))


def test_layer_types_of_wrong_length(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="expected 4 entries, each one of full_attention, sliding"):
        read(tiny.gemma3(layer_types=["full_attention"]), tmp_path)


def test_gguf_agrees_with_hf(tmp_path: Path) -> None:
    for model in (tiny.llama(), tiny.mixtral(), tiny.gemma3(query_pre_attn_scalar=32)):
        hf = read(model, tmp_path / model.name)
        gguf = config_from(
            open_model(tiny.write_gguf_model(model, tmp_path / f"{model.name}.gguf"))
        )
        assert gguf.norm_eps == pytest.approx(hf.norm_eps, rel=1e-6)
        assert with_fields(gguf, norm_eps=hf.norm_eps, kind="hf", fused_qkv=None) == hf


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"general.architecture": "t5"}, "general.architecture 't5' is not supported"),
        ({"llama.block_count": -1}, "llama.block_count is -1, expected at least 1"),
        ({"llama.attention.head_count_kv": [2, 2]}, "llama.attention.head_count_kv is"),
        ({"llama.rope.scaling.type": "ntk"}, "llama.rope.scaling.type is 'ntk', expected one of"),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.factor is missing"),
        (
            {"llama.rope.scaling.type": "longrope"},
            "llama.rope_factors_long.weight is None, expected 8 factors, one for each pair",
        ),
        ({"llama.block_count": 1 << 31}, "llama.block_count is 2147483648, expected at most 1024"),
        ({"llama.logit_scale": 0.25}, "llama.logit_scale is 0.25, expected a model without it"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count is 8, expected the head size 16"),
        ({"llama.expert_count": 4}, "llama.expert_used_count is missing"),
        ({"llama.attention.causal": False}, "attention.causal is False, expected a model without"),
        (
            {"llama.nextn_predict_layers": 1, "llama.rope.scaling.factor": 2.0},
            "nothing reads nextn_predict_layers, rope.scaling.factor of its metadata: a model of "
            "the family llama that has them",
        ),
    ],
)
def test_unusable_metadata_is_named(
    fields: dict[str, object], message: str, tmp_path: Path
) -> None:
    base = open_model(tiny.write_gguf_model(tiny.llama(), tmp_path / "base.gguf"))
    tensors = {info.name: ("F32", values_of(info)) for info in base.tensors.values()}
    write_gguf(tmp_path / "m.gguf", {**base.config, **fields}, tensors)
    with pytest.raises(ModelError, match=message):
        config_from(open_model(tmp_path / "m.gguf"))


def test_gguf_rope_factors(tmp_path: Path) -> None:
    base = open_model(tiny.write_gguf_model(tiny.llama(), tmp_path / "base.gguf"))
    tensors = {info.name: ("F32", values_of(info)) for info in base.tensors.values()}
    factors = np.array([1, 1, 1.5, 2, 2.5, 4, 8, 8], np.float32)
    write_gguf(tmp_path / "m.gguf", base.config, {**tensors, "rope_freqs.weight": ("F32", factors)})
    config = config_from(open_model(tmp_path / "m.gguf"))
    assert config.ropes == {ROPE: RopeConfig(1e4, "factors", factors=tuple(factors.tolist()))}
    assert ignorable(config)("rope_freqs.weight")
    plain = inverse_frequencies(RopeConfig(10000.0), 16)
    np.testing.assert_allclose(inverse_frequencies(config.ropes[ROPE], 16), plain / factors)


def test_rope_table() -> None:
    """Angle of position 5, pair 3 of 8: 5 * 10000^(-6/16)."""
    table = rope_table(RopeConfig(10000.0), 16, 6)
    angle = 5 * 10000.0 ** (-6 / 16)
    assert table.shape == (6, 16)
    assert (table[5, 3], table[5, 11]) == pytest.approx((np.cos(angle), np.sin(angle)), abs=1e-7)


@pytest.mark.parametrize(("theta", "dim"), [(10000.0, 64), (1e6, 128), (500000.0, 96)])
def test_rope_frequencies_are_correctly_rounded(theta: float, dim: int) -> None:
    """Between the middles to the neighbours of each: compared as whole powers, exactly."""
    for i, f in enumerate(inverse_frequencies(RopeConfig(theta), dim).tolist()):
        exact = 1 / Fraction(theta) ** (2 * i)
        low, high = ((Fraction(f) + Fraction(nextafter(f, to))) / 2 for to in (0.0, inf))
        assert low**dim <= exact <= high**dim


def test_rope_rows_do_not_depend_on_the_length_of_the_table() -> None:
    rope = RopeConfig(1e6, "factors", factors=(0.3, 1.0, 2.0, 8.0))
    long = rope_table(rope, 8, 2100)
    for n in (1, 2, 1000, 1025):
        assert (rope_table(rope, 8, n) == long[:n]).all()
    angles = np.arange(2100)[:, None] * inverse_frequencies(rope, 8)
    np.testing.assert_allclose(long, np.hstack([np.cos(angles), np.sin(angles)]), atol=6e-8)


def test_every_rope_table_counts_in_the_key_root(tmp_path: Path) -> None:
    """Of one file, read with other position encodings."""
    path = tiny.write_hf(tiny.gemma3(), tmp_path)
    options = EngineOptions(model=str(path), executor="reference", max_model_len=64)
    roots = set()
    for change in (
        {},
        {ROPE_WINDOW: RopeConfig(20000.0)},
        {ROPE: RopeConfig(20000.0)},
        {ROPE: RopeConfig(1e6, "linear", 4.0)},
    ):
        loaded = load_model(str(path))
        config = with_fields(loaded.config, ropes={**loaded.config.ropes, **change})
        built = build_engine(options, loaded=with_fields(loaded, config=config))
        roots.add(built.key_root)
        built.engine.close()
    assert len(roots) == 4


def test_no_window_rope_is_another_digest(tmp_path: Path) -> None:
    config = read(tiny.gemma3(), tmp_path)
    plain = with_fields(config, ropes={ROPE: config.ropes[ROPE]})
    assert len({rope_digest(config, 64), rope_digest(plain, 64)}) == 2


def test_llama3_rope_keeps_short_waves_and_stretches_long_ones() -> None:
    rope = RopeConfig(10000.0, "llama3", 8.0, 1.0, 4.0, original_max_positions=64)
    ratio = inverse_frequencies(rope, 32) / inverse_frequencies(RopeConfig(10000.0), 32)
    assert ratio[0] == 1.0
    assert ratio[-1] == 1 / 8
    assert (np.diff(ratio) <= 0).all()
    assert ((ratio > 1 / 8) & (ratio < 1)).any()


def test_what_is_no_field_of_the_model_is_not_looked_at() -> None:
    """Vocabularies of GGUF files are decoded at each look."""

    class Counted(dict[str, object]):
        looked: ClassVar[list[str]] = []

        def __getitem__(self, key: str) -> object:
            self.looked.append(key)
            return super().__getitem__(key)

        def items(self) -> NoReturn:
            raise AssertionError("every value is decoded")

    config = Counted({"llama.a": 1, "llama.b": None, "llama.c": 2, "tokenizer.ggml.tokens": ("a",)})
    assert Keys(config, "file", "llama.").unread({"c"}) == ("a",)
    assert "tokenizer.ggml.tokens" not in Counted.looked
