"""Ropes as files of both kinds say them: every key counts, the longest request decides for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace as with_fields

from kvasir.checkpoints import build_program, config_from
from kvasir.core.errors import ModelError
from kvasir.models.rope import inverse_frequencies, query_scales, rope_digest, rope_table
from kvasir.models.spec import MAX_POSITIONS, ROPE, RopeConfig
from kvasir.weights.source import ModelSource, open_model
from tests import tiny, tiny_rope
from tests.oracle.cases import YARN
from tests.tiny import TinyModel

PLAIN = inverse_frequencies(RopeConfig(1e4), 16)
FULL_YARN = {**YARN, "truncate": False, "mscale": 1.0, "mscale_all_dim": 0.5}
LONG = {
    "type": "longrope",
    "short_factor": [1.5] * 8,
    "long_factor": [4.0] * 8,
    "factor": 5.0,
    "original_max_position_embeddings": 64,
}
LONG_OWN = {name: x for name, x in LONG.items() if name != "factor"} | {"attention_factor": 1.3}


def folder(model: TinyModel, at: Path) -> ModelSource:
    return open_model(tiny.write_hf(model, at))


def gguf(model: TinyModel, at: Path) -> ModelSource:
    return open_model(tiny.write_gguf_model(model, at / "m.gguf"))


def rope_of(source: ModelSource) -> RopeConfig:
    return config_from(source).ropes[ROPE]


def scaled(table: Mapping[str, object], at: Path) -> RopeConfig:
    return rope_of(folder(tiny.llama(rope_scaling=table), at))


def seen(source: ModelSource) -> object:
    try:
        return rope_of(source), config_from(source).max_positions
    except ModelError as error:
        return str(error)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, 0.1 * log(4) + 1),
        ({"attention_factor": 1.25}, 1.25),
        ({"attention_factor": 1.25, "mscale": 1.0, "mscale_all_dim": 0.5}, 1.25),
        ({"mscale": 0.7, "mscale_all_dim": 0.3}, (0.07 * log(4) + 1) / (0.03 * log(4) + 1)),
        ({"mscale": 0.7}, 0.1 * log(4) + 1),
        ({"factor": 1.0}, 1.0),
    ],
)
def test_three_spellings_of_yarns_attention_factor(
    more: dict[str, object], expected: float, tmp_path: Path
) -> None:
    assert scaled({**YARN, **more}, tmp_path).attention_factor == pytest.approx(expected)


def test_yarn_keeps_fast_pairs_and_divides_slow_ones() -> None:
    """Peng et al. 2023: a ramp over pairs between two numbers of turns."""
    rope = RopeConfig(1e4, "yarn", 4.0, original_max_positions=512, beta_fast=16.0, beta_slow=1.0)
    ratio = inverse_frequencies(rope, 64) / inverse_frequencies(RopeConfig(1e4), 64)
    turns = 512 * inverse_frequencies(RopeConfig(1e4), 64) / (2 * np.pi)
    assert (ratio[turns > 2 * 16.0] == 1.0).all()
    assert ratio[turns < 0.5] == pytest.approx(1 / 4)
    assert (np.diff(ratio) <= 1e-12).all()
    assert not np.array_equal(
        inverse_frequencies(with_fields(rope, truncate=False), 64), inverse_frequencies(rope, 64)
    )


@pytest.mark.parametrize(
    "table",
    [FULL_YARN, {**YARN, "attention_factor": 1.3}, LONG, LONG_OWN],
    ids=["yarn", "yarn-attention", "longrope", "longrope-attention"],
)
def test_no_key_of_a_folders_rope_is_left_out_unnoticed(
    table: dict[str, object], tmp_path: Path
) -> None:
    expected = seen(folder(tiny.llama(rope_scaling=table), tmp_path))
    for key in table:
        less = {name: value for name, value in table.items() if name != key}
        assert seen(folder(tiny.llama(rope_scaling=less), tmp_path)) != expected, key


@pytest.mark.parametrize("make", [tiny_rope.ministral3, tiny_rope.phi3, tiny_rope.glm])
def test_no_key_of_a_gguf_rope_is_left_out_unnoticed(
    make: Callable[..., TinyModel], tmp_path: Path
) -> None:
    source = gguf(make(rope_theta=2e4), tmp_path)
    expected = seen(source)
    keys = [key for key in source.config if ".rope." in key or "temperature" in key]
    assert len(keys) >= 2
    for key in keys:
        less = {name: value for name, value in source.config.items() if name != key}
        assert seen(replace(source, config=less)) != expected, key


def test_yarn_of_gguf_without_its_keys_has_the_usual_turns(tmp_path: Path) -> None:
    source = gguf(tiny.llama(), tmp_path)
    said = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    rope = rope_of(replace(source, config={**source.config, **said}))
    assert (rope.beta_fast, rope.beta_slow, rope.original_max_positions) == (32.0, 1.0, 512)
    assert rope.attention_factor == pytest.approx(0.1 * log(4) + 1)


def test_factors_are_one_for_each_pair(tmp_path: Path) -> None:
    source = gguf(tiny_rope.phi3(), tmp_path)
    name = "rope_factors_short.weight"
    lacks = {key: x for key, x in source.tensors.items() if key != name}
    with pytest.raises(ModelError, match=f"{name} is None, expected 6 factors"):
        config_from(replace(source, tensors=lacks))


def test_longrope_follows_from_the_longest_request(tmp_path: Path) -> None:
    """Not from the one at hand: rows of a table are the same for every request."""
    rope = scaled(LONG, tmp_path)
    np.testing.assert_allclose(inverse_frequencies(rope, 16, 64), PLAIN / 1.5)
    np.testing.assert_allclose(inverse_frequencies(rope, 16, 65), PLAIN / 4)
    assert rope.attention_factor == pytest.approx((1 + log(5) / log(64)) ** 0.5)
    short, long = rope_table(rope, 16, 64), rope_table(rope, 16, 65)[:64]
    assert not np.array_equal(short, long)
    lengths = np.hypot(long[:, :8], long[:, 8:])
    np.testing.assert_allclose(lengths, rope.attention_factor, rtol=1e-6)


def test_dynamic_theta_follows_from_the_longest_request(tmp_path: Path) -> None:
    rope = scaled({"rope_type": "dynamic", "factor": 2.0}, tmp_path)
    assert (inverse_frequencies(rope, 16, 512) == PLAIN).all()
    theta = 1e4 * (2.0 * 1024 / 512 - 1) ** (16 / 14)
    found = inverse_frequencies(rope, 16, 1024)
    np.testing.assert_allclose(found, inverse_frequencies(RopeConfig(theta), 16), rtol=1e-12)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (YARN, 512),
        ({**YARN, "factor": 32.0}, 1024),
        ({"type": "dynamic", "factor": 3.0}, 1536),
        ({"type": "linear", "factor": 3.0}, 512),
    ],
)
def test_a_model_is_made_for_what_its_rope_reaches(
    table: dict[str, object], expected: int, tmp_path: Path
) -> None:
    assert config_from(folder(tiny.llama(rope_scaling=table), tmp_path)).max_positions == expected


def test_keys_of_blocks_name_all_that_decides_a_table(tmp_path: Path) -> None:
    config = config_from(folder(tiny_rope.ministral3(), tmp_path))
    rope = config.ropes[ROPE]
    changes = (
        rope,
        with_fields(rope, attention_factor=1.1),
        with_fields(rope, query_beta=0.2),
        with_fields(rope, original_max_positions=17, scaling="none"),
        with_fields(rope, original_max_positions=18, scaling="none"),
    )
    names = {rope_digest(with_fields(config, ropes={ROPE: one}), 128) for one in changes}
    assert len(names) == len(changes)
    dynamic = config_from(
        folder(tiny.llama(rope_scaling={"type": "dynamic", "factor": 3.0}), tmp_path)
    )
    assert rope_digest(dynamic, 512) != rope_digest(dynamic, 513)


def test_queries_grow_with_their_position(tmp_path: Path) -> None:
    program = build_program(config_from(folder(tiny_rope.ministral3(), tmp_path)), max_positions=50)
    scales = np.array([1 + 0.3 * log(1 + p // 16) for p in range(50)])
    rope = RopeConfig(1e4, original_max_positions=16, query_beta=0.3)
    np.testing.assert_allclose(query_scales(rope, 50), scales)
    keys, queries = program.constants[ROPE], program.constants[f"queries_{ROPE}"]
    np.testing.assert_allclose(queries, keys * scales[:, None], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({**YARN, "factor": 0.0}, "factor is 0.0, expected a number from 1 to"),
        (
            {**YARN, "beta_fast": 1e-300},
            "beta_fast is 1e-300, expected a number from 0.001",
        ),
        ({**YARN, "attention_factor": 1e30}, r"attention_factor is 1e.30, expected a number from"),
        ({**YARN, "mscale": 1e30}, r"mscale is 1e.30, expected a number from 0 to 1000"),
        ({**LONG, "long_factor": [1e-310] * 8}, r"long_factor is .*, expected 8 positive numbers"),
    ],
)
def test_constants_that_no_table_can_hold(
    table: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        scaled(table, tmp_path)


@pytest.mark.parametrize(
    "table",
    [
        {**YARN, "factor": 1e30},
        {**LONG, "original_max_position_embeddings": 1},
        {"type": "dynamic", "factor": 1e30},
    ],
)
def test_odd_constants_make_tables(table: dict[str, object], tmp_path: Path) -> None:
    model = tiny.llama(rope_scaling=table, rope_theta=1.0)
    config = config_from(folder(model, tmp_path))
    assert config.max_positions <= MAX_POSITIONS
    assert np.isfinite(rope_table(config.ropes[ROPE], 16, 600)).all()


def test_few_elements_cannot_grow(tmp_path: Path) -> None:
    model = tiny.llama(rope_scaling={"type": "dynamic", "factor": 2.0}, head_dim=2)
    with pytest.raises(ModelError, match="head_dim is 2, expected 4 elements or more that turn"):
        config_from(folder(model, tmp_path))


def test_queries_grow_in_so_many_steps(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "original_max_position_embeddings": 1}
    model = tiny_rope.ministral3(
        rope_parameters={**rope, "llama_4_scaling_beta": 0.1}, max_position_embeddings=1 << 20
    )
    with pytest.raises(ModelError, match="is 1048576, expected at most 65536 times the original 1"):
        config_from(folder(model, tmp_path))


@pytest.mark.parametrize("share", [0.0, 0.2, 1.5])
def test_a_part_of_a_head_is_even(share: float, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"partial_rotary_factor is .*, expected an even part"):
        config_from(folder(tiny_rope.glm(partial_rotary_factor=share), tmp_path))
