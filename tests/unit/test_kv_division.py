"""How the KV memory is divided between layers that keep every position and windowed ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as with_fields

from kvasir.config.hardware import Hardware
from kvasir.config.kvgroups import best_stride
from kvasir.config.options import EngineOptions
from kvasir.config.resolve import resolve
from kvasir.config.resolved import EngineConfig, ModelFacts
from kvasir.core.errors import ConfigError, KvasirError
from kvasir.core.groups import STATE_WINDOW, KVGroup, first_block, group_of
from tests.settings import cpu_settings

MODEL = ModelFacts("m", 49152, 8192, 11520, 100 << 20, "quantized", 180)
MACHINE = Hardware(n_cpus=8, n_cores=4, free_memory=16 << 30, isa_levels=("scalar", "avx2"))
LAYER = 16 * 11520 * 2 // 30


def resolved(windows: tuple[int, ...], **options: object) -> EngineConfig:
    asked = EngineOptions(**options)  # type: ignore[arg-type]
    return resolve(asked, with_fields(MODEL, windows=windows), MACHINE, cpu_settings)


def test_windowed_layers_get_what_requests_can_use() -> None:
    """Gemma 3: five layers of a window to one that keeps everything."""
    windows = (512, 512, 512, 512, 512, 0) * 5
    config = resolved(windows, enable_prefix_caching=False)
    full, window = KVGroup(64 * 2048 // 16), KVGroup(64 * (32 + 2) + 2 * 512 // 16, 512)
    assert config.kv.groups == config.sizes.groups == (full, window)
    assert config.kv.group_bytes == (5 * LAYER, 25 * LAYER)
    assert config.kv.n_bytes == full.n_blocks * 5 * LAYER + window.n_blocks * 25 * LAYER
    assert config.reasons["kv_groups"].endswith("2240 blocks for 25 layers of window(512)")
    cached = resolved(windows, enable_prefix_caching=True).kv.windows
    assert cached == (KVGroup(2240 + full.n_blocks // 4, 512),)


def test_little_memory_is_for_all_layers_alike() -> None:
    config = resolved((512, 0) * 15, kv_memory="64MiB")
    n_blocks = (64 << 20) // (30 * LAYER)
    assert config.kv.groups == (KVGroup(n_blocks), KVGroup(n_blocks, 512))
    assert config.sizes.max_model_len == 16 * n_blocks


def test_more_memory_is_for_the_layers_that_keep_everything() -> None:
    config = resolved((512, 0) * 15, kv_memory="4GiB", enable_prefix_caching=False)
    full, window = config.kv.groups
    assert window.n_blocks == 2240
    assert full.n_blocks == ((4 << 30) - 2240 * 15 * LAYER) // (15 * LAYER)


@pytest.mark.parametrize("is_caching", [False, True])
@pytest.mark.parametrize("n_windowed", [1, 5, 40])
def test_all_memory_that_was_asked_for_is_used(n_windowed: int, is_caching: bool) -> None:
    """However few of the layers keep everything: what is left is less than one block of all."""
    asked, windows = 4 << 30, (*[512] * n_windowed, 0)
    config = resolved(windows, kv_memory=asked, enable_prefix_caching=is_caching)
    assert 0 <= asked - config.kv.n_bytes < config.kv.block_bytes


def test_a_window_of_the_whole_length_is_none() -> None:
    config = resolved((512, 0) * 15, kv_memory="64MiB", max_model_len=512)
    assert config.kv.groups == (KVGroup((64 << 20) // (30 * LAYER)),)
    assert "kv_groups" not in config.reasons


def test_a_window_everywhere_bounds_what_a_request_needs() -> None:
    needed = (512 // 16 + 1) * 30 * LAYER
    assert resolved((512,) * 30, kv_memory=needed).sizes.max_model_len == 8192
    assert resolved((512,) * 30, kv_memory=needed - 1).sizes.max_model_len == 512
    with pytest.raises(ConfigError, match=r"8192 needs 512 blocks of 16 .* holds 32: lower"):
        resolved((512,) * 30, kv_memory=needed - 1, max_model_len=8192)


def test_what_a_window_reads() -> None:
    assert [first_block(n, 0, 16) for n in (0, 100)] == [0, 0]
    assert [first_block(n, 17, 16) for n in (0, 31, 32, 47, 48)] == [0, 0, 1, 1, 2]
    assert [first_block(n, 1, 16) for n in (15, 16)] == [0, 1]
    assert [KVGroup(9, w).needs(1000, 16) for w in (0, 1, 2, 17, 18)] == [63, 1, 2, 2, 3]
    assert KVGroup(9, 512).needs(20, 16) == 2
    spans = [KVGroup(9, 8, span=n).needs(1000, 16) for n in (1, 9, 10, 11, 26, 27)]
    assert spans == [2, 2, 2, 3, 3, 4]  # windows of 8 before the first of so many


def test_layers_without_a_group_of_their_own_are_with_those_that_keep_everything() -> None:
    groups = (KVGroup(9), KVGroup(4, 8))
    assert [group_of(window, groups) for window in (0, 8, 16)] == [0, 1, 0]
    with pytest.raises(KvasirError, match="no KV group holds layers of window 0"):
        group_of(0, groups[1:])


def test_kinds_of_groups_are_data() -> None:
    groups = (KVGroup(4), KVGroup(4, 512), KVGroup(4, STATE_WINDOW, 4096))
    assert [group.kind for group in groups] == ["full", "window(512)", "state(4096)"]
    assert [group.needs(1000, 16) for group in groups] == [63, 33, 2]
    assert group_of(2, (KVGroup(3), KVGroup(4, STATE_WINDOW, 4096))) == 0
    with pytest.raises(KvasirError, match="a state group of window 0: needs 2"):
        KVGroup(4, 0, 4096)


def test_states_get_a_block_for_each_request_and_for_snapshots() -> None:
    """Jamba, Qwen3-Next: a few layers with attention, the others with a state."""
    facts = with_fields(MODEL, state_bytes=(1000, 3000))
    options = EngineOptions(kv_memory="64MiB", max_num_seqs=4, enable_prefix_caching=False)
    config = resolve(options, facts, MACHINE, cpu_settings)
    full, state = config.kv.groups
    # one to go on in, and one that is left behind
    assert state == KVGroup(4 * 2, STATE_WINDOW, 4000)
    assert config.kv.group_bytes == (30 * LAYER, 4000)
    assert full.n_blocks == ((64 << 20) - 8 * 4000) // (30 * LAYER)
    assert config.reasons["kv_groups"].endswith("8 blocks for 2 layers of state(4000)")
    assert config.reasons["state_stride"] == "0: without the prefix cache"
    cached = resolve(
        replace(options, enable_prefix_caching=True), facts, MACHINE, cpu_settings
    ).kv.groups
    assert cached[1].stride == best_stride(4000, 30 * LAYER // 16, 16) == 32
    assert cached[1].n_blocks == 8 + int(cached[0].n_blocks * (1 / 16 + 16 / 32))


@pytest.mark.parametrize("n_bytes", [30 * LAYER * 10, 30 * LAYER * 30])
def test_snapshots_of_large_states_take_no_more_than_what_they_go_with(n_bytes: int) -> None:
    """So the memory is for keys and values as much as for states, and all of it is used."""
    facts = with_fields(MODEL, state_bytes=(n_bytes, n_bytes))
    options = EngineOptions(kv_memory="8GiB", max_num_seqs=2, max_num_batched_tokens=64)
    config = resolve(options, facts, MACHINE, cpu_settings)
    full, state = config.kv.groups
    assert state.n_blocks == 2 * 2 + full.n_blocks * 30 * LAYER // (2 * n_bytes)
    spare = (8 << 30) - full.n_blocks * 30 * LAYER - state.n_blocks * 2 * n_bytes
    assert 0 <= spare < 30 * LAYER + 2 * n_bytes


def test_a_model_of_states_alone_has_a_snapshot_for_every_fifteenth_block() -> None:
    facts = with_fields(
        MODEL, kv_values_per_token=0, kv_vectors_per_token=0, state_bytes=(1 << 20,)
    )
    options = EngineOptions(kv_memory="1GiB", max_num_seqs=2, max_num_batched_tokens=64)
    full, state = resolve(options, facts, MACHINE, cpu_settings).kv.groups
    assert state.stride == 2048
    assert state.n_blocks == 1024 == 4 + int(full.n_blocks * (1 / 16 + 16 / 2048))


def test_the_distance_of_snapshots_is_as_asked_or_saves_most_per_byte() -> None:
    """LFM2-1.2B, Qwen3.5-9B, Mamba-2: bytes of a snapshot, and of a token beside it."""
    found = [best_stride(s << 10, k << 10, 16) for s, k in ((160, 12), (51200, 32), (55296, 0))]
    assert found == [224, 1424, 2048]
    for state, token, stride in ((160, 12, 224), (51200, 32, 1424)):
        near = (stride - 16, stride, stride + 16)
        saved = [(2048 - each / 2) / (token + state / each) for each in near]
        assert max(saved) == saved[1]
    facts = with_fields(MODEL, state_bytes=(1000, 3000))
    options = EngineOptions(kv_memory="64MiB", max_num_seqs=4, state_stride=0)
    assert resolve(options, facts, MACHINE, cpu_settings).kv.groups[1].stride == 0
    config = resolve(replace(options, state_stride=512), facts, MACHINE, cpu_settings)
    assert config.sizes.groups[1].stride == 512
    assert config.reasons["state_stride"] == "512: as asked"


def test_a_distance_of_snapshots_that_cannot_be_is_refused() -> None:
    facts = with_fields(MODEL, state_bytes=(1000, 3000))
    without = EngineOptions(state_stride=64, enable_prefix_caching=False)
    for options, model, why in (
        (EngineOptions(state_stride=100), facts, "100 is not a multiple of .* 16: use 112"),
        (EngineOptions(state_stride=64), MODEL, "64 is for layers with a state, and m has none"),
        (without, facts, "64 places snapshots for the prefix cache: enable prefix caching"),
    ):
        with pytest.raises(ConfigError, match=f"state_stride {why}"):
            resolve(options, model, MACHINE, cpu_settings)
    with pytest.raises(KvasirError, match=r"every 16 tokens, .* of a group without states"):
        KVGroup(9, stride=16)


def test_what_drafts_keep_beside_states_is_planned() -> None:
    facts = with_fields(MODEL, state_bytes=(1000, 3000), kept_bytes=1 << 20)
    options = EngineOptions(max_num_seqs=8, speculative_config='{"num_speculative_tokens": 5}')
    config = resolve(options, facts, MACHINE, cpu_settings)
    assert config.reasons["state_drafts"] == "40 MiB: what 5 drafted tokens in 8 slots read"
    assert [group.drafts for group in config.sizes.groups] == [0, 5]
    tight = with_fields(MACHINE, free_memory=facts.weight_bytes + (30 << 20))
    why = "5 drafted tokens of 8 requests keep 40 MiB beside states, 30 MiB are free"
    with pytest.raises(ConfigError, match=why):
        resolve(options, facts, tight, cpu_settings)
