"""Heads that do not fit end the start, with tensors, sizes and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvasir.checkpoints.loaded import load_model
from kvasir.checkpoints.read_heads import head_facts, load_head
from kvasir.checkpoints.read_medusa import load_medusa, medusa_facts
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError, ModelError
from kvasir.core.params import TokenParams
from kvasir.core.plan import Row, SlotOpen, StepPlan
from kvasir.engine.build import build_engine
from kvasir.exec.successors import UNKNOWN, Successors
from tests import tiny, tiny_moe
from tests.draft_heads import (
    MEDUSA_NAMES,
    mixed_safetensors,
    target,
    write_eagle,
    write_eagle3,
    write_medusa,
)

SIZES: dict[str, Any] = {"max_model_len": 96, "threads": 1, "packed_cache": "off"}
GREEDY = TokenParams(seed=0, max_tokens=8, temperature=0.0)


def started(target_path: Path, **config: Any) -> None:
    told = json.dumps(config)
    build_engine(
        EngineOptions(model=str(target_path), speculative_config=told, **SIZES)
    ).engine.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_hf(target(), tmp_path_factory.mktemp("model") / "target")


def changed(folder: Path, **fields: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return folder


def test_what_planning_knows_of_one(model: Path, tmp_path: Path) -> None:
    loaded = load_model(str(model))
    facts = head_facts(load_head("eagle3", str(write_eagle3(tmp_path, target())), loaded), loaded)
    assert facts.is_head and facts.vocab_size == tiny.VOCAB
    assert facts.kv_values_per_token == 2 * 2 * 16
    floats = 64 * (3 * 64 + 128 + 2 * 64 + 64 + 3 * 96) + 96 * 64 + 4 * 64
    assert facts.weight_bytes == 4 * floats


def lacking(folder: Path) -> Path:
    """Without a matrix of its layer."""
    return with_tensors(folder, {"layers.0.mlp.up_proj.weight": None})


def scalar(folder: Path) -> Path:
    """Its embeddings are a number."""
    return with_tensors(folder, {"embed_tokens.weight": np.float32(1.0)})


def with_tensors(folder: Path, others: dict[str, Any]) -> Path:
    """Of an EAGLE head, some in place of its own; None: none."""
    write_eagle(folder, target())
    path = folder / "model.safetensors"
    data = path.read_bytes()
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + n])
    kept = {
        name: np.frombuffer(data[8 + n :][slice(*x["data_offsets"])], "<f4").reshape(x["shape"])
        for name, x in header.items()
        if name not in others
    }
    kept |= {name: np.asarray(x) for name, x in others.items() if x is not None}
    path.write_bytes(mixed_safetensors(kept))
    return folder


def pickled(folder: Path) -> Path:
    """As Medusa's heads are published."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "medusa_lm_head.pt").write_bytes(b"PK")
    return folder


WRONG: dict[str, tuple[str, Callable[[Path], Path], str]] = {
    "an EAGLE-3 head": (
        "eagle",
        lambda folder: write_eagle3(folder, target()),
        "is an EAGLE-3 head: its method is eagle3",
    ),
    "an EAGLE head": (
        "eagle3",
        lambda folder: write_eagle(folder, target()),
        r"no tensor midlayer\.hidden_norm\.weight",
    ),
    "a model": (
        "eagle",
        lambda folder: tiny.write_hf(tiny.llama(), folder),
        r"no tensor fc\.weight, layers\.0\.self_attn\.q_proj\.weight: it is no EAGLE head",
    ),
    "another width": (
        "eagle",
        lambda folder: write_eagle(folder, tiny.llama("wide", hidden_size=128)),
        "it has rows of 128 numbers, the target 64",
    ),
    "another vocabulary": (
        "eagle",
        lambda folder: write_eagle(folder, tiny.llama("less", vocab_size=300)),
        "it has 300 tokens, the target 320",
    ),
    "tokens that the target lacks": (
        "eagle3",
        lambda folder: write_eagle3(folder, tiny.llama("more", vocab_size=400), n_own=120),
        "d2t names tokens up to 358 of 320",
    ),
    "more layers": (
        "eagle3",
        lambda folder: changed(write_eagle3(folder, target()), num_hidden_layers=2),
        "2 layers, expected one",
    ),
    "layers that the target lacks": (
        "eagle3",
        lambda folder: changed(
            write_eagle3(folder, target()),
            eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 9]},
        ),
        r"is \[1, 2, 9\]: the target has 4 layers",
    ),
    "two layers": (
        "eagle3",
        lambda folder: changed(
            write_eagle3(folder, target()),
            eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 2]},
        ),
        "reads behind 2 layers, expected 3",
    ),
    "a number for a matrix": ("eagle", scalar, "it has 0 tokens, the target 320"),
    "a missing tensor": ("eagle", lacking, r"missing: layers\.0\.mlp\.up_proj\.weight"),
    "a pickle": ("eagle", pickled, r"medusa_lm_head\.pt is a pickled checkpoint"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_head_of_the_target(case: str, model: Path, tmp_path: Path) -> None:
    method, write, told = WRONG[case]
    with pytest.raises(ModelError, match=told):
        started(model, method=method, model=str(write(tmp_path / "head")))


def test_a_checkpoint_without_such_layers(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="target has no layers that guess further tokens"):
        started(model, method="mtp")
    named = tiny.write_hf(tiny_moe.glm4_moe(num_nextn_predict_layers=1), tmp_path)
    told = r"no tensor model\.layers\.3\.eh_proj\.weight .*: the file came without them"
    with pytest.raises(ModelError, match=told):
        started(named, method="mtp")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"method": "eagle"}, "eagle needs model: a file or folder"),
        ({"method": "mtp", "model": "a"}, "mtp has no model: leave 'a' out"),
        ({"method": "mtp", "num_speculative_tokens": 17}, "needs a number from 1 to 16"),
        ({"method": "mtp", "use_heterogeneous_vocab": True}, "has no use_heterogeneous_vocab"),
    ],
)
def test_options_that_mean_nothing(config: dict[str, Any], told: str, model: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        started(model, **config)


def test_what_follows_a_row_that_draws_nothing() -> None:
    followers = Successors()
    opens = (SlotOpen(2, GREEDY, (5, 6, 7, 8), (9,)),)
    followers.open(StepPlan(0, (), opens))
    rows = [
        Row(2, 0, (5, 6), n_logits=0),
        Row(2, 2, (7, 8), n_logits=0),
        Row(2, 4, (9,), n_logits=0),
        Row(2, 0, (5, 6), n_logits=1),
        Row(2, 0, (5, 6), n_logits=1, targets=(6,)),
    ]
    assert followers.of(rows) == [7, 9, UNKNOWN, UNKNOWN, 7]


def test_heads_of_medusa_in_both_layouts(model: Path, tmp_path: Path) -> None:
    loaded = load_model(str(model))
    for names in MEDUSA_NAMES:
        heads = load_medusa(str(write_medusa(tmp_path / names, target(), names, 3)), loaded)
        assert (heads.n_heads, heads.n_layers) == (3, 2)
        facts = medusa_facts(heads, loaded)
        assert facts.weight_bytes == 4 * 3 * (2 * (64 * 64 + 64) + 320 * 64)
        assert (facts.most_drafts, facts.kv_values_per_token) == (3, 0)
        started(model, method="medusa", model=str(tmp_path / names))


def test_what_are_no_heads_of_medusa(model: Path, tmp_path: Path) -> None:
    folder = write_medusa(tmp_path / "three", target(), n_heads=3)
    with pytest.raises(ConfigError, match=r"tokens 4 is more than the 3 heads of three \(medusa\)"):
        started(model, method="medusa", model=str(folder), num_speculative_tokens=4)
    with pytest.raises(ModelError, match=r"no tensor 0\.0\.linear\.weight or blocks\.0\.layers"):
        started(model, method="medusa", model=str(model))
    with pytest.raises(ModelError, match=r"medusa_lm_head\.pt is a pickled checkpoint"):
        started(model, method="medusa", model=str(pickled(tmp_path / "pickle")))
    other = write_medusa(tmp_path / "wide", tiny.llama("wide", hidden_size=128))
    with pytest.raises(ModelError, match=r"0\.0\.linear\.weight \[128, 128\], expected \[64, 64\]"):
        started(model, method="medusa", model=str(other))
