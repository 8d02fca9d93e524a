"""Targets with heads, and what these draft by NumPy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvasir.config.options import EngineOptions
from tests import tiny
from tests.draft_heads import (
    N_OWN,
    READS,
    NumpyHead,
    NumpyMedusa,
    Wide,
    target,
    with_mtp,
    write_eagle,
    write_eagle3,
    write_medusa,
)
from tests.loading import Loaded, load, reference, whole_prompt
from tests.tiny import TinyModel

METHODS = ("eagle", "eagle3", "mtp", "medusa")
K = 4
SIZES: dict[str, Any] = {
    "max_model_len": 96,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 24,
    "kv_memory": "2MiB",
    "threads": 1,
    "packed_cache": "off",
}


@dataclass(frozen=True)
class Headed:
    """A target with a head, and what that drafts by NumPy."""

    method: str
    path: Path
    config: str
    model: Loaded
    head: NumpyHead | NumpyMedusa

    def rows(self, tokens: tuple[int, ...]) -> Wide:
        """What the head reads of the target."""
        values = reference(self.model).trace(whole_prompt(tokens))
        if isinstance(self.head, NumpyHead) and self.head.reads:
            taps = [np.asarray(values[f"l{i - 1}.x.mlp"], np.float64) for i in READS]
            return self.head.features(taps)
        last = np.asarray(values[f"l{len(self.model.config.layers) - 1}.x.mlp"], np.float64)
        norm = self.model.binding["final_norm"].dequantize().astype(np.float64)
        return last / np.sqrt((last * last).mean(axis=1, keepdims=True) + 1e-5) * norm

    def drafts(self, known: tuple[int, ...]) -> tuple[int, ...]:
        return self.head.drafts(known, self.rows(known[:-1]), K)

    def options(self, **more: Any) -> EngineOptions:
        return EngineOptions(model=str(self.path), **SIZES | more)


def headed(method: str, folder: Path) -> Headed:
    whole = with_mtp() if method == "mtp" else target()
    path = tiny.write_hf(whole, folder / "target")
    config: dict[str, object] = {"method": method, "num_speculative_tokens": K, "adaptive": False}
    if method != "mtp":
        path_of = folder / "head"
        if method == "eagle":
            write_eagle(path_of, whole)
        elif method == "eagle3":
            write_eagle3(path_of, whole)
        else:
            write_medusa(path_of, whole)
        config["model"] = str(path_of)
    return Headed(method, path, json.dumps(config), load(path), oracle(method, folder, whole))


def oracle(method: str, folder: Path, whole: TinyModel) -> NumpyHead | NumpyMedusa:
    if method == "medusa":
        return NumpyMedusa(read_floats(folder / "head" / "medusa_lm_head.safetensors"))
    own = {
        "embed.weight": whole.tensors["model.embed_tokens.weight"],
        "lm_head.weight": whole.tensors["lm_head.weight"],
    }
    if method == "mtp":
        layer = "model.layers.3."
        norms = (f"{layer}enorm", f"{layer}hnorm")
        return NumpyHead(
            {**whole.tensors, **own},
            layer,
            reads=False,
            join=f"{layer}eh_proj",
            norms=norms,
            last_norm=f"{layer}shared_head.norm",
            rotary=8,
        )
    tensors = read_floats(folder / "head" / "model.safetensors")
    if method == "eagle":
        return NumpyHead({**own, **tensors}, "layers.0.", reads=False)
    norms = ("midlayer.input_layernorm", "midlayer.hidden_norm")
    ids = tuple(3 * i + 1 for i in range(N_OWN))
    return NumpyHead(
        {**own, **tensors}, "midlayer.", reads=True, norms=norms, last_norm="norm", ids=ids
    )


def read_floats(path: Path) -> dict[str, tiny.Array]:
    data = path.read_bytes()
    n = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + n]), data[8 + n :]
    return {
        name: np.frombuffer(body[slice(*entry["data_offsets"])], "<f4").reshape(entry["shape"])
        for name, entry in header.items()
        if entry["dtype"] == "F32"
    }
