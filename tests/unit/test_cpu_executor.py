"""What the native executor refuses before it computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as with_fields

from kvasir.core.errors import ConfigError, ModelError
from kvasir.exec.cpu import executor
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.exec.cpu.passes import lower_passes
from tests import tiny
from tests.loading import load, sizes_for
from tests.native import BEST, native


@pytest.mark.parametrize("head_dim", [24, 528])
def test_heads_that_no_kernel_takes_are_refused(
    head_dim: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(tiny.write_hf(tiny.llama(head_dim=head_dim), tmp_path), "float32")
    expected = f"layer 0 has heads of {head_dim} numbers; .* multiples of 16 up to 512"
    with pytest.raises(ModelError, match=expected):
        native(model)
    monkeypatch.setattr(executor, "_refuse_heads", lambda program: None)
    with pytest.raises(ValueError, match=f"heads of {head_dim} numbers"):
        native(model)


def test_int8_blocks_that_no_kernel_takes_are_refused(tmp_path: Path) -> None:
    config = tiny.llama(intermediate_size=1024)
    raw = load(tiny.write_gguf_model(config, tmp_path / "m.gguf", "Q8_0"))
    formats = raw.binding.formats()
    program = lower_passes(raw.program, dtype="auto", formats=formats, act_block=1024)
    with pytest.raises(ValueError, match="blocks of 1024: the kernels take at most 512"):
        native(replace(raw, program=program))


@pytest.mark.parametrize(("size", "use"), [(24, 32), (8, 16), (0, 16)])
def test_kv_blocks_that_end_within_a_tile_are_refused(size: int, use: int, tmp_path: Path) -> None:
    model = load(tiny.write_hf(tiny.llama(), tmp_path), "float32")
    spec = with_fields(sizes_for(model.config), block_size=size)
    with pytest.raises(ConfigError, match=f"KV blocks of {size} tokens; .* of 16: use {use}$"):
        CpuExecutor(model.program, model.binding, spec, CpuSettings(1, BEST))
