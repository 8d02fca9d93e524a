"""The table of families: no entry can be altered unnoticed, and what is in no entry is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import eq
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as with_fields
from numpy.testing import assert_allclose

from kvasir.checkpoints import build_program, choose, config_from, tensors
from kvasir.core.errors import ModelError
from kvasir.ir.ops.attention import QK_NORMS
from kvasir.ir.printer import render
from kvasir.models.families import FAMILIES
from kvasir.models.family import Family, always
from kvasir.weights.source import ModelSource, open_model
from kvasir.weights.transforms import TRANSFORMS
from tests import (
    tiny,
    tiny_latent,
)
from tests.forms import IS_LONG
from tests.gguf_latents import as_older
from tests.gguf_writer import write_gguf
from tests.loading import load
from tests.tiny import TinyModel, gguf_parts
from tests.whole_models import GGUF_MODELS, MODELS

_LACKING = {
    ("qwen2_moe", "gguf"): ("gate", "up", "down"),
    ("qwen3_next", "gguf"): ("gate", "up", "down", "key of ffn_size"),
    ("granite_hybrid", "hf"): ("gate", "up", "down", "key of ffn_size"),
    ("granite_hybrid", "gguf"): ("gate", "up", "down", "key of ffn_size"),
    ("nemotron_h", "gguf"): ("up", "down", "key of ffn_size"),
    ("deepseek_v2", "hf"): ("q_a", "q_a_norm", "q_b_plain", "q_b_turned"),
    ("deepseek_v2", "gguf"): ("q_plain", "q_turned"),
    ("glm4_moe_lite", "hf"): ("q_plain", "q_turned"),
    ("kimi_linear", "hf"): ("q_plain", "q_turned"),
    ("kimi_linear", "gguf"): ("q_plain", "q_turned"),
    ("deepseek_v3", "hf"): ("q_plain", "q_turned"),
    ("deepseek_v3", "gguf"): ("q_plain", "q_turned"),
}
"""Weights of dense layers, of which these files cannot speak; those of the other way to queries."""
WRITERS: Mapping[str, Callable[[TinyModel, Path], Path]] = {
    "hf": tiny.write_hf,
    "gguf": lambda model, folder: tiny.write_gguf_model(model, folder / "m.gguf"),
}


def seen(source: ModelSource) -> Iterator[str]:
    """All that a test could notice of how a file is understood, what costs least first."""
    try:
        config = config_from(source)
        yield f"{config.unread}"
        yield render(build_program(config, max_positions=4))
    except (ModelError, KeyError) as error:
        yield f"refused: {error}"


def altered(family: Family, kind: str) -> Iterator[tuple[str, Family]]:
    """The family with one entry changed, for each; to all transforms in the long form, to every
    eighth in the short one."""
    at = ("hf", "gguf").index(kind)
    unused = {"yarn_truncate"}  # the models have no YaRN
    unused |= {"full_first"} if kind == "hf" else set()  # the model says it of each layer
    unused |= {"tiled_heads"} if kind == "gguf" else set()  # these files always have them so
    is_sparse, attends = "n_experts" in family.fields, "n_heads" in family.fields
    unused |= {"mlp_bias", "gated"} if is_sparse or "ffn_size" not in family.fields else set()
    for name, field in family.fields.items():
        if field[at]:
            other = field._replace(**{kind: f"{field[at]}_other"})
            yield f"key of {name}", with_fields(family, fields={**family.fields, name: other})
        elif not any(field[:2]) and isinstance(field.default, bool) and name not in unused:
            opposite = {name: always(not field.default)}
            yield f"value of {name}", with_fields(family, fields={**family.fields, **opposite})
    for i, (name, names) in enumerate(family.tensors.items()):
        step = f"{kind}_step"
        steps = sorted({"", *TRANSFORMS} - {getattr(names, step)})
        steps = steps if IS_LONG else steps[i % 8 :: 8]
        for key, value in ((kind, f"{names[at]}_other"), *((step, other) for other in steps)):
            changed = {**family.tensors, name: names._replace(**{key: value})}
            yield f"{name}: {key} {value}", with_fields(family, tensors=changed)
    for name in family.fields.keys() & {"expert_score"}:
        field = family.fields[name]
        if field == always("sigmoid"):
            fields = {**family.fields, name: always("softmax")}
            yield f"always {name}", with_fields(family, fields=fields)
    has_keys = "latent_size" not in family.fields and attends
    for norm in (set(QK_NORMS) - {family.block.qk_norm}) if has_keys else ():
        yield f"qk_norm {norm}", with_fields(family, block=with_fields(family.block, qk_norm=norm))
    flags = ["one_norm"] if "parallel" in family.fields else ["pre_norms", "post_norms"]
    flags = ["sum_norms", "both_ways"] if family.block.both_ways else flags
    flags += ["expert_bias"] * ("router" in family.tensors)
    flags += ["shared_gate"] * ("shared_gate" in family.tensors)
    flags += [x for x in ("chunked", "weighs_input") if getattr(family.block, x)]
    flags += ["sinks"] * has_keys
    flags += ["spans"] * (family.tower is not None) + ["near_spans"] * family.block.near_spans
    flags += ["interleaved_rope"] * attends
    for flag in (*flags, *({"gated"} - unused)):
        change: dict[str, Any] = {flag: not getattr(family.block, flag)}
        block = with_fields(family.block, **change)
        yield flag, with_fields(family, block=block)
    for norm in {"rms", "layer", "layer_bias"} - {family.block.norm}:
        yield f"norm {norm}", with_fields(family, block=with_fields(family.block, norm=norm))
    if family.full_without_rope:
        yield "full_without_rope", with_fields(family, full_without_rope=False)
    yield "name of files", with_fields(family, architectures=("Other",), gguf="other")
    yield "sqrt_embed", with_fields(family, sqrt_embed=not family.sqrt_embed)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_no_entry_is_altered_unnoticed(
    family: Family, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the name of a weight that the model lacks: the head that is its embedding, and what
    files of a kind never have."""
    if kind == "gguf" and not family.gguf:
        pytest.skip("its GGUF files are those of another family")
    models = MODELS if kind == "hf" else GGUF_MODELS
    source = open_model(WRITERS[kind](models[family.name](), tmp_path))
    expected, quiet = [*seen(source)], []
    assert len(expected) == 2 and not expected[1].startswith("refused")
    assert config_from(source).unread == ()
    for what, changed in altered(family, kind):
        table = tuple(changed if each is family else each for each in FAMILIES)
        monkeypatch.setattr(choose, "FAMILIES", table)
        monkeypatch.setattr(tensors, "FAMILIES", table)
        if all(map(eq, seen(source), expected)):
            quiet.append(what)
    lacking = {"lm_head", *_LACKING.get((family.name, kind), ())}
    assert [what for what in quiet if what.split(":")[0] not in lacking] == []


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("name", ["falcon", "falcon_two_norms"])
def test_of_families_of_one_name_the_tensors_choose(name: str, kind: str, tmp_path: Path) -> None:
    assert config_from(open_model(WRITERS[kind](MODELS[name](), tmp_path))).family == name


@pytest.mark.parametrize("make", [tiny_latent.deepseek_v2, tiny_latent.deepseek_v3])
@pytest.mark.parametrize("format", ["F32", "Q8_0"])
def test_latents_of_older_gguf_files(
    make: Callable[[], TinyModel], format: str, tmp_path: Path
) -> None:
    """Matrices of keys and values in one tensor are those of two: the same numbers and program."""
    write_gguf(tmp_path / "older.gguf", *as_older(*gguf_parts(make(), format)))
    write_gguf(tmp_path / "new.gguf", *gguf_parts(make(), "F32"))
    found = [load(tmp_path / f"{name}.gguf") for name in ("older", "new")]
    assert found[0].config.family == found[1].config.family == make().config["model_type"]
    assert found[0].program.ops == found[1].program.ops
    step = {"F32": 0.0, "Q8_0": 0.02}[format]
    for name in ("layers.1.k_up", "layers.1.v_up"):
        older_values, values = (each.binding[name].dequantize() for each in found)
        assert_allclose(older_values, values, rtol=0, atol=step * float(np.abs(values).max()))
