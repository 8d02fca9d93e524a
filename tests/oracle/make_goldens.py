"""Writes golden logits from ``transformers``: python -m tests.oracle.make_goldens [name ...]."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers

from tests.oracle.cases import ENCODERS, GOLDEN_MODELS, PROMPTS, kept
from tests.oracle.torch_logits import hidden_states, logits
from tests.tiny import TinyModel, write_hf

GOLDEN = Path(__file__).parents[1] / "golden"


def golden(model: TinyModel, what: str = "logits") -> dict[str, object]:
    """Prompts and logits, or "states", rounded to six digits."""
    made_by = {"logits": logits, "states": hidden_states}[what]
    with TemporaryDirectory() as folder:
        path = write_hf(model, Path(folder) / model.name)
        rows = [(prompt, made_by(path, prompt)) for prompt in PROMPTS]
    prompts = [
        {
            "tokens": list(prompt),
            what: {str(at): [float(f"{x:.6g}") for x in found[at]] for at in kept(len(prompt))},
        }
        for prompt, found in rows
    ]
    return {
        "made_by": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "prompts": prompts,
    }


def main(names: Sequence[str]) -> None:
    for name in names or (*GOLDEN_MODELS, *ENCODERS):
        file, what = GOLDEN / f"{name}.json", "states" if name in ENCODERS else "logits"
        model = {**GOLDEN_MODELS, **ENCODERS}[name]()
        file.write_text(json.dumps(golden(model, what), indent=None) + "\n")
        print(f"wrote {file}")


if __name__ == "__main__":
    main(sys.argv[1:])
