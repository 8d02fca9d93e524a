"""Draft models that do not fit their target end the start, with sizes and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kvasir.cli.main import run_command
from kvasir.config.drafting import beside
from kvasir.config.options import EngineOptions
from kvasir.config.resolved import EngineConfig, ModelFacts
from kvasir.core.errors import ConfigError, KvasirError, ModelError
from kvasir.engine.build import build_engine, resolve_options
from tests import tiny
from tests.draft_pair import write_pair
from tests.tiny_encoders import bert
from tests.tiny_state import lfm2

SIZES: dict[str, Any] = {"max_model_len": 128, "threads": 1, "packed_cache": "off"}
TARGET = ModelFacts("large", 320, 512, 1024, 10_000, "float32", 16)
DRAFT = ModelFacts("small", 320, 256, 128, 1000, "bfloat16", 4)


def resolved(
    draft: ModelFacts | None = DRAFT, model: ModelFacts = TARGET, **more: Any
) -> EngineConfig:
    config = json.dumps({"model": "small", **more})
    return resolve_options(EngineOptions(speculative_config=config), model, draft=draft)


def started(pair: tuple[str, str], **more: Any) -> None:
    config = json.dumps({"model": pair[1]})
    build_engine(EngineOptions(model=pair[0], speculative_config=config, **SIZES | more))


def test_both_are_planned_together() -> None:
    config = resolved()
    alone = resolve_options(EngineOptions(), TARGET)
    assert config.draft is not None and config.scheduler.lazy_drafts
    assert (config.model.dtype, config.draft.dtype) == ("float32", "bfloat16")
    assert config.draft.max_model_len == 256, "its own context is shorter"
    assert config.kv.block_bytes == alone.kv.block_bytes * (1024 + 128) // 1024
    assert config.scheduler.max_draft_tokens == 8
    assert config.scheduler.draft_share == 0.1, "of the weights"
    assert resolved(max_model_len=100).reasons["draft_max_model_len"] == "100: as asked"


def test_a_head_is_computed_as_its_target_is_and_rests_where_it_does_not_pay() -> None:
    head = replace(DRAFT, is_head=True)
    config = resolved(head)
    assert config.draft is not None and config.draft.dtype == config.model.dtype == "float32"
    assert config.scheduler.draft_is_head and config.scheduler.head_may_rest
    assert not config.scheduler.lazy_drafts, "it reads what the target computes"
    assert not resolved(head, adaptive=False).scheduler.head_may_rest
    windowed = replace(head, windows=(64,), kv_layers=((128, 4),))
    assert not resolved(windowed).scheduler.head_may_rest
    assert not resolved().scheduler.head_may_rest


def test_windows_of_either_are_groups_of_both() -> None:
    windowed = replace(DRAFT, windows=(64, 0), kv_layers=((96, 3), (32, 1)))
    both = beside(TARGET, windowed, 1 << 30)
    assert both.windows == (0, 64, 0)
    assert both.kv_layers == ((1024, 16), (96, 3), (32, 1))
    assert both.kv_values_per_token == 1024 + 128
    config = resolved(windowed)
    assert [group.window for group in config.kv.groups] == [0, 64]
    assert not config.scheduler.lazy_drafts, "what left the window cannot be taken in later"


@pytest.mark.parametrize(
    ("draft", "model", "told"),
    [
        ({"vocab_size": 300}, {}, "large has 320 tokens and the draft model small 300: take"),
        ({"state_bytes": (64,)}, {}, "small has layers with a state"),
        ({}, {"state_bytes": (64,)}, "large has layers with a state"),
        ({"whole_prompts": True}, {}, "small reads texts and writes none"),
        ({"weight_bytes": 1 << 60}, {}, "small, 1048576 TiB, exceed the free memory"),
    ],
)
def test_what_does_not_fit_is_refused(
    draft: dict[str, Any], model: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        resolved(replace(DRAFT, **draft), replace(TARGET, **model))


def test_a_context_beyond_its_own_is_refused() -> None:
    with pytest.raises(ConfigError, match="300 exceeds the context of the draft model small, 256"):
        resolved(max_model_len=300)


def test_nobody_forgets_to_open_it() -> None:
    with pytest.raises(KvasirError, match="nobody opened the draft model small"):
        resolved(None)


def test_files_that_are_missing_or_another_models(tmp_path: Path) -> None:
    target, draft = write_pair(tmp_path)
    with pytest.raises(ModelError, match=r"speculative_config's model: .*nowhere"):
        started((target, str(tmp_path / "nowhere")))
    (Path(draft) / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="speculative_config's model"):
        started((target, draft))
    other = tiny.write_hf(tiny.llama("other", vocab_size=300), tmp_path / "other")
    with pytest.raises(ConfigError, match="target has 320 tokens and the draft model other 300"):
        started((target, str(other)))
    states = tiny.write_hf(lfm2(), tmp_path / "states")
    with pytest.raises(ConfigError, match="states has layers with a state"):
        started((target, str(states)))
    encoder = tiny.write_hf(bert(), tmp_path / "encoder")
    with pytest.raises(ModelError, match="gives no tokens"):
        started((target, str(encoder)))


def test_a_draft_with_tensors_of_another_shape_names_them(tmp_path: Path) -> None:
    target, draft = write_pair(tmp_path)
    path = Path(draft) / "config.json"
    path.write_text(path.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    with pytest.raises(ModelError, match=r"missing: model\.layers\.2"):
        started((target, draft))


def test_keys_and_values_of_both_must_fit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--kv-memory"):
        started(write_pair(tmp_path), kv_memory="20KiB")


def test_words_of_llama_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, draft = write_pair(tmp_path)
    words = ["config", target, "-md", draft, "--draft-max", "4", "--draft-min", "2"]
    assert run_command([*words, "--max-model-len", "128"]) == 0
    told = capsys.readouterr().out
    assert f"draft_model {draft}, at most 4 tokens" in told
    assert "draft_dtype" in told and "bfloat16" in told
