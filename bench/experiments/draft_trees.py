"""What trees of drafts bring beside chains of as many rows: tokens of a step, counted."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from bench.experiments.engines import SEED
from bench.experiments.programs import Vocabulary, asked, described, opened
from kvasir.checkpoints.loaded import load_model
from kvasir.core.errors import ConfigError
from kvasir.formats.gguf import open_gguf
from kvasir.offline.llm import LLM
from kvasir.validation.sampling import SamplingParams

WIDTHS = (1, 2, 3)
"""Tokens that are drafted in each place; 1: chains."""
BLOCK_BYTES, SCALE_BYTES = 20, 4
"""Of Q4_1: 32 weights, behind their scale and minimum."""


def write_noised(source: Path, target: Path, share: float) -> None:
    """``source``, in whose Q4_1 blocks about ``share`` of the bytes are others. Raises ConfigError
    where it has no such blocks, or is a folder."""
    if not source.is_file():
        raise ConfigError(f"{source.name} is no GGUF file: name one of type Q4_1")
    shutil.copy(source, target)
    rng, n_changed = np.random.default_rng(SEED), 0
    found = np.memmap(target, np.uint8, "r+")
    file = open_gguf(source)
    begin = np.frombuffer(file.mapping, np.uint8).ctypes.data
    for tensor in file.tensors.values():
        if tensor.format != "Q4_1":
            continue
        at = np.frombuffer(tensor.data, np.uint8).ctypes.data - begin
        blocks = found[at : at + tensor.n_bytes].reshape(-1, BLOCK_BYTES)
        chosen = rng.integers(0, blocks.shape[0], int(share * blocks.shape[0]))
        blocks[chosen, SCALE_BYTES + rng.integers(0, BLOCK_BYTES - SCALE_BYTES, len(chosen))] ^= (
            0x44
        )
        n_changed += len(chosen)
    found.flush()
    if not n_changed:
        raise ConfigError(f"{source.name} has no Q4_1 blocks: name a model of this type")


def noised(settings: Settings, folder: str, share: float) -> Path:
    """A draft model of ``write_noised`` in ``folder``."""
    source, draft = load_model(settings.options.model).source.path, Path(folder) / "noised.gguf"
    if settings.quick and source.is_dir():  # it drafts for itself
        return source
    write_noised(source, draft, share)
    return draft


def _configs(draft: Path, n_rows: int) -> list[tuple[str, Json]]:
    """By name what is drafted: of chains and trees as many rows, and what has no draft model."""
    found: list[tuple[str, Json]] = []
    for width in WIDTHS:
        config = {"model": str(draft), "num_speculative_tokens": n_rows, "draft_width": width}
        found.append((f"{n_rows} rows, {width} in each place", config))
    found.append(("recycling", {"method": "recycling", "num_speculative_tokens": n_rows}))
    return [*found, ("lookahead", {"method": "lookahead"})]


def _counted(llm: LLM, texts: list[str], temperature: float, n_out: int) -> tuple[Json, list[Any]]:
    """Of one stream after the other: how many drafted tokens a step with drafts accepts."""
    engine = llm.session().opened().built.engine
    tokens: list[Any] = []
    before = engine.stats()
    for i, text in enumerate(texts):
        params = SamplingParams(
            temperature=temperature, seed=SEED + i, max_tokens=n_out, ignore_eos=True
        )
        tokens += asked(llm, [text], params)[1]
    after = engine.stats()
    steps = after.n_drafts - before.n_drafts
    accepted, drafted = after.n_accepted - before.n_accepted, after.n_drafted - before.n_drafted
    return {
        "steps": steps,
        "rows": round(drafted / max(1, steps), 3),
        "tokens_a_step": round(1 + accepted / max(1, steps), 4),
    }, tokens


def run(settings: Settings) -> Outcome:
    n_texts, n_out, n_rows = settings.pick((3, 48, 7), (1, 8, 4))
    options: dict[str, Any] = {"max_num_seqs": 4, "max_model_len": 512}
    points: list[Json] = []
    answers: dict[float, list[Any]] = {}
    is_same = True
    with TemporaryDirectory() as folder:
        for name, config in _configs(noised(settings, folder, 0.12), n_rows):
            chosen = {**options, "speculative_config": {**config, "adaptive": False}}
            with opened(settings, **chosen) as llm:
                words = Vocabulary(llm.get_tokenizer())
                texts = [words.text(24, i) for i in range(n_texts)]
                for temperature, drawn in ((0.0, "greedy"), (1.0, "sampled")):
                    found, tokens = _counted(llm, texts, temperature, n_out)
                    is_same &= answers.setdefault(temperature, tokens) == tokens
                    of = drawn if "model" in config else ""
                    points.append({"point": f"{name}, {drawn}", "of": of, **found})
                engine = described(settings, llm)
    chains: dict[str, float] = {}
    for point in points:
        chains.setdefault(point["of"], point["tokens_a_step"])
    trees = [x for x in points if x["of"]]
    gains = {x["point"]: round(x["tokens_a_step"] / chains[x["of"]], 4) for x in trees}
    others = {x["point"]: x["tokens_a_step"] for x in points if not x["of"]}
    return Outcome(
        measured="tokens of a step over those of chains with as many rows: "
        + ", ".join(f"{name} {gain:.3f}" for name, gain in gains.items())
        + "; tokens of a step without a draft model: "
        + ", ".join(f"{name} {found:.2f}" for name, found in others.items()),
        conditions=(
            f"a draft model that is the target with other bits in 12 % of its blocks, {n_texts} "
            f"prompts of 24 random words, {n_out} outputs each, one stream; counts, no times"
        ),
        summary={**gains, **others},
        points=points,
        met=settings.quick or all(gain >= 1 for gain in gains.values()),
        identical=is_same,
        engine=engine,
    )


EXPERIMENT = Experiment(
    name="draft-trees",
    title="Trees of drafts beside chains of equal rows",
    claim="trees accept more tokens a step (SpecInfer, arXiv 2305.09781; EAGLE-2, 2406.16858)",
    target="no tree accepts fewer than a chain of as many rows",
    uses_model=True,
    seconds=60,
    chart=Chart(
        x="point",
        x_label="rows, tokens in each place, how tokens are drawn",
        y_label="tokens of a step",
        lines={"tokens_a_step": "one stream"},
        kind="bar",
    ),
    run=run,
)
