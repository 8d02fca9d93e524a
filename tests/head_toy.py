"""A head and its target as a toy of the exactness harness."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from kvasir.checkpoints import build_program, ignorable
from kvasir.checkpoints.loaded import load_model
from kvasir.checkpoints.read_heads import bind_features, bind_head, load_head, of_target_alone
from kvasir.checkpoints.read_medusa import load_medusa, medusa_program
from kvasir.exec.cpu.passes import lower_passes
from kvasir.ir.bundle import DRAFT, TARGET, draft_name, of_programs, with_draft, with_drafts
from kvasir.models.heads import HeadExport, head_program
from kvasir.models.medusa import MedusaExport
from kvasir.weights.bind import bind
from tests.toy_bundle import Toy, lower_bundle

MAX_POSITIONS = 128


def head_toy(method: str, target: Path, head: str | None, dtype: str = "float32") -> Toy:
    if method == "medusa":
        return medusa_toy(target, str(head), dtype)
    model = load_model(str(target))
    loaded = load_head(method, head, model)
    raw = build_program(model.config, max_positions=MAX_POSITIONS, export=HeadExport(loaded))
    binding = bind(of_target_alone(raw), model.source, ignorable(model.config))
    program, carried = head_program(loaded, MAX_POSITIONS)
    own = bind_head(loaded, program).named(f"{DRAFT}.")
    binding = replace(binding, others=(bind_features(loaded, raw), own))
    joined = with_draft(of_programs({TARGET: raw}), program, loaded.shared, carried)
    formats = binding.formats()
    plain = build_program(model.config, max_positions=MAX_POSITIONS)
    return Toy(
        method,
        lower_passes(plain, dtype=dtype, formats=formats),
        lower_bundle(joined, dtype=dtype, formats=formats),
        binding,
    )


def medusa_toy(target: Path, folder: str, dtype: str) -> Toy:
    model = load_model(str(target))
    heads = load_medusa(folder, model)
    raw = build_program(model.config, max_positions=MAX_POSITIONS, export=MedusaExport())
    binding = bind(raw, model.source, ignorable(model.config))
    made = [medusa_program(heads, i) for i in range(heads.n_heads)]
    own = tuple(each.named(f"{draft_name(i)}.") for i, (_, each) in enumerate(made))
    binding = replace(binding, others=own)
    joined = with_drafts(of_programs({TARGET: raw}), [program for program, _ in made])
    formats = binding.formats()
    plain = build_program(model.config, max_positions=MAX_POSITIONS)
    return Toy(
        "medusa",
        lower_passes(plain, dtype=dtype, formats=formats),
        lower_bundle(joined, dtype=dtype, formats=formats),
        binding,
    )
