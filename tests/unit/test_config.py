"""Options, their resolution, and the planning of memory."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvasir.config.cpu import CpuPlanner
from kvasir.config.env import read_env
from kvasir.config.hardware import Hardware, probe
from kvasir.config.options import EngineOptions, describe
from kvasir.config.resolve import resolve
from kvasir.config.resolved import DiskConfig, EngineConfig, ModelFacts
from kvasir.config.sizes import format_size, parse_size
from kvasir.core.errors import ConfigError
from tests.settings import cpu_settings

MODEL = ModelFacts("m", 49152, 8192, 11520, 100 << 20, "quantized", 180)
MACHINE = Hardware(n_cpus=8, n_cores=4, free_memory=16 << 30, isa_levels=("scalar", "avx2"))


def resolved(machine: Hardware = MACHINE, **options: object) -> EngineConfig:
    return resolve(EngineOptions(**options), MODEL, machine, cpu_settings)  # type: ignore[arg-type]


def test_every_option_is_described_once() -> None:
    infos = describe()
    assert [info.name for info in infos] == [item.name for item in fields(EngineOptions)]
    assert len({info.flag for info in infos}) == len(infos)
    assert all(info.help.endswith(".") for info in infos)
    flags = {info.name: info.flag for info in infos}
    assert flags["max_model_len"] == "--max-model-len"
    assert flags["model"] == "model"


def test_defaults_plan_memory_for_typical_requests() -> None:
    config = resolved()
    assert config.kv.block_bytes == 16 * 11520 * 2
    assert config.kv.n_blocks == 64 * 2048 // 16
    assert config.sizes.n_blocks == config.kv.n_blocks
    assert config.sizes.max_model_len == 8192
    assert (config.executor.threads, config.executor.isa) == (4, "avx2")
    assert config.loop.overlap
    assert config.reasons["threads"] == "4: cores among 8 usable CPUs"
    assert config.reasons["kv_memory"].startswith("2.8 GiB: 64 requests of 2048 tokens")


def test_little_memory_shortens_the_context_and_says_why() -> None:
    small = Hardware(2, 2, (100 << 20) + (100 << 20))
    config = resolved(small)
    assert config.kv.n_bytes <= 0.4 * (100 << 20)
    assert config.sizes.max_model_len == config.kv.n_blocks * 16 < 8192
    assert config.reasons["max_model_len"].endswith("what the KV memory holds")
    assert config.reasons["kv_memory"] == "40 MiB: 40% of 100 MiB free after the weights"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_model_len": 8192, "kv_memory": "64MiB"},
            "max_model_len 8192 needs 512 blocks of 16 tokens, kv memory of 64 MiB holds 182: "
            "lower --max-model-len or raise --kv-memory",
        ),
        ({"max_model_len": 9000}, "max_model_len 9000 exceeds the model's context of 8192 tokens"),
        ({"kv_memory": "100GiB"}, "exceed the free memory of 16 GiB: lower --kv-memory"),
        ({"kv_memory": 1000}, "kv memory of 1000 B is less than one block of 16 tokens"),
        ({"kv_memory": "2 apples"}, "kv_memory is '2 apples': use bytes, or a unit"),
        ({"kv_memory": -1}, "kv_memory is -1: needs 1 byte to 1 EiB"),
        ({"block_size": 24}, "block_size 24 is not a multiple of 16: use 32"),
        ({"block_size": 0}, "block_size is 0: needs at least 16"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0: needs at least 1"),
        ({"max_num_seqs": True}, "max_num_seqs is True: needs a whole number"),
        ({"max_num_batched_tokens": "9"}, "max_num_batched_tokens is '9': needs a whole number"),
        ({"dtype": "int3"}, "dtype is 'int3': use one of auto, float32, bfloat16"),
        ({"isa": "amx"}, "isa 'amx' cannot run on this CPU: use one of scalar, avx2"),
        ({"async_scheduling": "yes"}, "async_scheduling is 'yes': needs true or false"),
        ({"model": 3}, "model is 3: needs text"),
        (
            {"swap_space": 4},
            "where a CPU has them already: use --kv-disk",
        ),
        ({"kv_disk_size": "1GiB"}, "kv_disk_size needs a directory: add --kv-disk DIR"),
        (
            {"kv_disk": "kv", "enable_prefix_caching": False},
            "kv_disk is found through the prefix cache",
        ),
        (
            {"kv_disk": "kv", "kv_disk_size": "1GiB", "swap_space": 4},
            "kv_disk_size and swap_space are names of one size: give one of them",
        ),
        ({"preemption_mode": "swap"}, "has nowhere to swap to: add --kv-disk DIR"),
        (
            {"gpu_memory_utilization": 0.5, "kv_memory": "1GiB"},
            "kv_memory and gpu_memory_utilization set the same memory: give one of them",
        ),
        (
            {"gpu_memory_utilization": 0.005},
            "gpu_memory_utilization 0.005 of 16 GiB free memory is less than the weights of "
            "100 MiB: raise it",
        ),
        ({"gpu_memory_utilization": 1.5}, "is 1.5: needs a number above 0, at most 1"),
        ({"free_gpu_memory_fraction": 0}, "is 0: needs a number above 0, at most 1"),
        ({"max_total_tokens": 15}, "max_total_tokens 15 is less than one block: needs 16"),
        ({"kv_disk": "kv", "kv_disk_size": "big"}, "kv_disk_size is 'big': use bytes, or a unit"),
    ],
)
def test_contradictions_are_refused_with_sizes_and_remedy(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(**options)
    assert message in caught.value.message


def test_a_core_of_one_cpu_says_how_all_levels_are_built() -> None:
    machine = replace(MACHINE, isa_levels=("avx512", "avx512_vnni"))
    with pytest.raises(ConfigError) as caught:
        resolved(machine, isa="scalar")
    assert "use one of avx512, avx512_vnni, or build all with make env" in caught.value.message
    for asked in ({}, {"isa": "avx2"}):
        with pytest.raises(ConfigError, match="for another CPU alone; build all with make env"):
            resolved(replace(MACHINE, isa_levels=()), **asked)


@pytest.mark.parametrize(
    ("options", "n_bytes", "n_warnings"),
    [
        ({"gpu_memory_utilization": 0.5}, (8 << 30) - (100 << 20), 0),
        ({"gpu_memory_utilization": 0.9}, int((16 << 30) * 0.9) - (100 << 20), 0),
        ({"gpu_memory_utilization": 0.91}, int((16 << 30) * 0.91) - (100 << 20), 1),
        ({"free_gpu_memory_fraction": 0.85}, int(((16 << 30) - (100 << 20)) * 0.85), 0),
        ({"free_gpu_memory_fraction": 0.95}, int(((16 << 30) - (100 << 20)) * 0.95), 1),
        ({"kv_memory": "1GiB", "max_total_tokens": 100}, 6 * 16 * 11520 * 2, 0),
        ({"max_total_tokens": 160}, 10 * 16 * 11520 * 2, 0),
    ],
)
def test_shares_and_caps_of_memory(
    options: dict[str, object], n_bytes: int, n_warnings: int
) -> None:
    config = resolved(**options)
    assert config.kv.n_bytes == n_bytes // (16 * 11520 * 2) * (16 * 11520 * 2)
    assert len(config.warnings) == n_warnings
    assert all("0.85 to 0.90 is safe" in warning for warning in config.warnings)


def test_the_start_tells_how_many_requests_fit() -> None:
    config = resolved(max_model_len=1000, max_total_tokens=2000)  # 125 blocks, 63 a request
    assert config.kv.n_tokens == 2000
    assert config.reasons["max_concurrency"] == "2.0: requests of 1000 tokens in the KV blocks"


@pytest.mark.parametrize(
    ("options", "n_bytes", "why"),
    [
        ({}, 10 * 2**30, "default"),
        ({"kv_disk_size": "2GiB"}, 2 * 2**30, "as asked"),
        ({"swap_space": 4}, 4 * 2**30, "swap_space"),
    ],
)
def test_the_size_of_the_disk_tier(options: dict[str, object], n_bytes: int, why: str) -> None:
    config = resolved(kv_disk="some/where", **options)
    assert config.disk == DiskConfig(Path("some/where"), n_bytes)
    assert config.reasons["kv_disk"].endswith(why)
    assert resolved().disk is None


@pytest.mark.parametrize(
    ("dtype", "weights", "expected"),
    [
        ("auto", "quantized", ("auto", "bfloat16")),
        ("auto", "float32", ("float32", "float32")),
        ("auto", "float16", ("bfloat16", "bfloat16")),
        ("float32", "quantized", ("float32", "float32")),
        ("bfloat16", "quantized", ("bfloat16", "bfloat16")),
    ],
)
def test_types_follow_the_weights(dtype: str, weights: str, expected: tuple[str, str]) -> None:
    facts = ModelFacts("m", 10, 64, 64, 100, weights, 2)
    config = resolve(EngineOptions(dtype=dtype), facts, MACHINE, cpu_settings)
    assert (config.model.dtype, config.kv.kind.name) == expected


@pytest.mark.parametrize(
    ("asked", "dtype", "per_token"),
    [
        ("float32", "float32", 11520 * 4),
        ("bfloat16", "bfloat16", 11520 * 2),
        ("int8", "int8", 11520 + 180 * 2),
        ("fp8", "fp8_e4m3", 11520 + 180 * 2),
        ("fp8_e4m3", "fp8_e4m3", 11520 + 180 * 2),
        ("fp8_e5m2", "fp8_e5m2", 11520),
    ],
)
def test_blocks_of_every_type_are_counted_with_their_scales(
    asked: str, dtype: str, per_token: int
) -> None:
    config = resolved(kv_cache_dtype=asked, kv_memory="1GiB", block_size=32)
    assert (config.kv.kind.name, config.kv.block_bytes) == (dtype, 32 * per_token)
    assert config.kv.n_blocks == (1 << 30) // (32 * per_token)
    assert config.reasons["kv_cache_dtype"] == f"{dtype}: as asked"


def test_what_is_asked_for_is_done() -> None:
    config = resolved(
        max_num_seqs=3,
        max_num_batched_tokens=7,
        kv_memory=1 << 28,
        max_model_len=512,
        block_size=32,
        kv_cache_dtype="float32",
        threads=2,
        isa="scalar",
        async_scheduling=False,
        served_model_name="name",
        seed=9,
    )
    assert config.sizes.max_num_seqs == 3
    assert config.sizes.max_num_batched_tokens == 7
    assert config.kv.n_bytes <= 1 << 28 < config.kv.n_bytes + config.kv.block_bytes
    assert (config.kv.block_size, config.kv.kind.name) == (32, "float32")
    assert (config.executor.threads, config.executor.isa) == (2, "scalar")
    assert (config.model.name, config.sizes.max_model_len) == ("name", 512)
    assert (config.loop.overlap, config.seed) == (False, 9)


def test_the_option_goes_before_the_environment() -> None:
    reasons: dict[str, str] = {}
    assert CpuPlanner(EngineOptions(), MACHINE, reasons).isa("scalar") == "scalar"
    assert reasons["isa"] == "scalar: KVASIR_ISA"
    assert CpuPlanner(EngineOptions(isa="avx2"), MACHINE, reasons).isa("scalar") == "avx2"


def test_the_environment_is_read_in_one_place() -> None:
    env = read_env({"KVASIR_ISA": "avx2", "KVASIR_CACHE": "/tmp/k"})
    assert (env.isa, env.cache) == ("avx2", Path("/tmp/k"))
    assert read_env({"KVASIR_ISA": "", "XDG_CACHE_HOME": "/c"}).cache == Path("/c/kvasir/models")
    assert read_env({}).isa is None


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("512MiB", 512 << 20), ("2GiB", 2 << 30), ("1.5 GB", 1_500_000_000), ("64", 64), (7, 7)],
)
def test_sizes_are_read(text: int | str, n_bytes: int) -> None:
    assert parse_size(text) == n_bytes


def test_sizes_are_written() -> None:
    sizes = (0, 1023, 1024, 1536, 64 << 20, 5 << 30, 3 << 50)
    assert [format_size(n) for n in sizes] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "1.5 KiB",
        "64 MiB",
        "5 GiB",
        "3072 TiB",
    ]


def test_control_groups_limit_the_machine(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 100000\n")
    machine = probe(("scalar",), tmp_path)
    assert machine.free_memory == 400000
    assert machine.n_cores <= machine.n_cpus <= 2


def test_r47_memory_is_planned_within_a_control_group(tmp_path: Path) -> None:
    limit = 400 << 20
    for name, value in (("max", limit), ("current", 20 << 20), ("stat", "inactive_file 0")):
        (tmp_path / f"memory.{name}").write_text(f"{value}\n")
    machine = probe(("scalar",), tmp_path)
    for options in ({}, {"gpu_memory_utilization": 0.9}, {"free_gpu_memory_fraction": 0.85}):
        config = resolved(machine, **options)
        assert MODEL.weight_bytes + config.kv.n_bytes < limit - (20 << 20)
    with pytest.raises(ConfigError, match="exceed the free memory of 380 MiB"):
        resolved(machine, kv_memory="300MiB")


def test_old_control_groups_and_none_are_understood(tmp_path: Path) -> None:
    free = probe(("scalar",), tmp_path / "none").free_memory
    assert free > 10**6
    (tmp_path / "memory").mkdir()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "memory/memory.limit_in_bytes").write_text("5000000\n")
    (tmp_path / "memory/memory.usage_in_bytes").write_text("1000000\n")
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert probe(("scalar",), tmp_path).free_memory == 4000000
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    assert probe(("scalar",), tmp_path).n_cpus >= 1


def test_a_step_holds_an_image_whose_tokens_see_each_other() -> None:
    """Beside a token of each other request; and so do windows, if there are few blocks."""
    model = replace(MODEL, span_tokens=256, windows=(0, 1024))
    plain = resolve(EngineOptions(), model, MACHINE, cpu_settings)
    assert (plain.sizes.max_num_batched_tokens, plain.scheduler.span_tokens) == (512, 256)
    assert [group.span for group in plain.sizes.groups] == [1, 256]
    many = resolve(EngineOptions(max_num_seqs=300), model, MACHINE, cpu_settings)
    assert many.sizes.max_num_batched_tokens == 556
    assert many.reasons["max_num_batched_tokens"] == "556: an image, beside 300 requests"
    with pytest.raises(
        ConfigError, match=r"319 is less than 320: .* raise it, or lower --max-num-"
    ):
        resolve(EngineOptions(max_num_batched_tokens=319), model, MACHINE, cpu_settings)


def test_a_model_whose_tokens_see_what_follows() -> None:
    """A step holds the longest text, and no beginning of a prompt is kept."""
    model = replace(MODEL, context_length=2048, whole_prompts=True)
    found = resolve(EngineOptions(), model, MACHINE, cpu_settings)
    assert found.sizes.max_num_batched_tokens == found.sizes.max_model_len == 2048
    assert found.scheduler.whole_prompts and not found.scheduler.enable_prefix_caching
    assert found.reasons["kv_memory"].endswith("2 requests of 2048 tokens, or one of 2048")
    short = resolve(EngineOptions(max_model_len=100), model, MACHINE, cpu_settings)
    assert (short.sizes.max_model_len, short.sizes.max_num_batched_tokens) == (100, 512)
    with pytest.raises(ConfigError, match="max_num_batched_tokens 512 is less than max_model_len"):
        resolve(EngineOptions(max_num_batched_tokens=512), model, MACHINE, cpu_settings)
    with pytest.raises(ConfigError, match="leave --kv-disk out"):
        resolve(EngineOptions(kv_disk="x"), model, MACHINE, cpu_settings)
