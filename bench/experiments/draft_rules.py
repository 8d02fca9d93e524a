"""Both rules of acceptance on real logits: the pairs of tokens that they give, counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from bench.experiments.draft_trees import noised
from bench.experiments.engines import SEED
from bench.experiments.programs import described, opened
from kvasir import _native
from kvasir.checkpoints.loaded import load_model
from kvasir.core.params import TokenParams
from kvasir.core.plan import Row, SlotOpen, StepPlan, TableChange
from kvasir.engine.build import build_engine
from kvasir.exec.cpu.executor import CpuExecutor

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
TEXT = (
    "The old lighthouse keeper looked out over the grey water. Nobody had come for weeks, and the "
    "lamp burned low. He opened the door, and on the step there was"
)
N_CONTEXTS = 24
"""Beginnings of the text behind which acceptance is counted."""
N_KEPT = 32
"""Likeliest tokens that are drawn from: so many texts follow from the first one."""
NOISE = {"a little": 0.1, "much": 0.4}
"""Shares of blocks in which the draft model is another; pairs are drawn with the last one, of
which both rules refuse most."""
LIMIT = 2.33
"""Standard deviations: a check is beyond it with a probability of 0.01."""
MOST_LOST = 0.06
LEAST_EXPECTED = 5.0
"""Pairs of a cell of chi-square; seldom ones share one."""


@contextmanager
def _executor(settings: Settings, model: Path) -> Iterator[CpuExecutor]:
    options = replace(settings.options, model=str(model), max_num_seqs=4, max_model_len=256)
    built = build_engine(options)
    try:
        if not isinstance(built.executor, CpuExecutor):
            raise TypeError("logits are those of the cpu executor")
        yield built.executor
    finally:
        built.engine.close()


def _logits(executor: CpuExecutor, texts: Sequence[tuple[int, ...]]) -> F32:
    """Behind each text, f32 [texts, vocab]."""
    sizes = executor.sizes
    found = np.zeros((len(texts), sizes.vocab_size), np.float32)
    for i, tokens in enumerate(texts):
        blocks = tuple(range(-(-len(tokens) // sizes.block_size)))
        opening = SlotOpen(0, TokenParams(seed=1, max_tokens=1), tokens)
        plan = StepPlan(i, (Row(0, 0, tokens),), (opening,), (TableChange(0, 0, 0, blocks),))
        executor.run(plan, logits=found[i : i + 1])
    return found


def _shares(logits: F32) -> F64:
    """What the likeliest ``N_KEPT`` leave, without the sampler's arithmetic."""
    kept = np.argsort(-logits, kind="stable")[:N_KEPT]
    p = np.zeros(logits.size)
    p[kept] = np.exp(logits[kept].astype(np.float64) - float(logits.max()))
    shares: F64 = p / p.sum()
    return shares


def excess(counts: F64, expected: F64) -> float:
    """Of chi-square over what it is by chance, in standard deviations (Wilson and Hilferty)."""
    if counts[expected == 0].any():
        return float("inf")
    n = counts.sum()
    often = expected * n >= LEAST_EXPECTED
    counts = np.append(counts[often], counts[~often].sum())
    expected = np.append(expected[often], expected[~often].sum()) * n
    counts, expected = counts[expected > 0], expected[expected > 0]
    k = counts.size - 1
    chi = ((counts - expected) ** 2 / expected).sum()
    return float(((chi / k) ** (1 / 3) - (1 - 2 / (9 * k))) / np.sqrt(2 / (9 * k)))


class _Rule:
    """Draws of a request, as a draft program and its target make them."""

    def __init__(self, vocab: int, *, is_classical: bool) -> None:
        self._sampler = _native.Sampler(1, vocab, 2 if is_classical else 0)
        self._sampler.open(0, TokenParams(seed=SEED, max_tokens=9, top_k=N_KEPT), (), ())

    def draft(self, logits: F32, index: int) -> int:
        return self._sampler.draft(0, logits.copy(), index, [])[0]

    def draw(self, logits: F32, index: int, drafted: int) -> int:
        return self._sampler.sample(0, logits.copy(), index, [], -1, drafted=drafted)[0]

    def accepted(self, target: F32, draft: F32, n: int) -> float:
        """The share of ``n`` drafts that stay."""
        n_right = 0
        for index in range(n):
            drafted = self.draft(draft, index)
            n_right += self.draw(target, index, drafted) == drafted
        return n_right / n

    def pairs(self, target: F32, draft: F32, firsts: dict[int, int], n: int) -> F64:
        """How often each pair came, [first, second] of the vocabulary of ``firsts``: row 0 of the
        logits is of the first token, row ``firsts[token]`` of the one behind it."""
        counts = np.zeros((1 + len(firsts), target.shape[1]))
        for index in range(0, 2 * n, 2):
            a = self.draft(draft[0], index)
            b = self.draft(draft[firsts[a]], index + 1) if a in firsts else -1
            first = self.draw(target[0], index, a)
            drafted = b if first == a else -1
            counts[firsts[first], self.draw(target[firsts[first]], index + 1, drafted)] += 1
        return counts


def _measured(name: str, target: list[F32], draft: list[F32], sizes: tuple[int, int]) -> list[Json]:
    """``target`` and ``draft``: logits behind the beginnings, and behind the last and each of its
    likeliest tokens."""
    contexts, pairs = target
    n_pairs, n_each = sizes
    firsts = {int(x): i for i, x in enumerate(np.flatnonzero(_shares(pairs[0]) > 0), 1)}
    p = np.stack([_shares(row) for row in pairs])
    expected = np.zeros((1 + len(firsts), p.shape[1]))
    for token, i in firsts.items():
        expected[i] = p[0][token] * p[i]
    tv = np.array(
        [
            0.5 * np.abs(_shares(a) - _shares(b)).sum()
            for a, b in zip(contexts, draft[0], strict=True)
        ]
    )
    points = []
    for rule in ("coupled", "standard"):
        made = _Rule(p.shape[1], is_classical=rule == "standard")
        point: Json = {"point": f"{name}, {rule}", "noise": name, "rule": rule}
        if n_pairs:
            counts = made.pairs(pairs, draft[1], firsts, n_pairs)
            deviations = round(excess(counts.ravel(), expected.ravel()), 3)
            point |= {"pairs": int(counts.sum()), "deviations": deviations}
        shares = [made.accepted(a, b, n_each) for a, b in zip(contexts, draft[0], strict=True)]
        point["accepted"] = round(float(np.mean(shares)), 4)
        point["least"] = round(float(np.mean((1 - tv) / (1 + tv))), 4)
        point["overlap"] = round(float(np.mean(1 - tv)), 4)
        points.append(point)
    return points


def _is_met(points: Sequence[Json]) -> bool:
    """Each pair of rules: their pairs of tokens, and what they accept."""
    for coupled, standard in zip(points[::2], points[1::2], strict=True):
        error = 0.01  # of 24 times 1,000 draws three standard deviations
        if max(point.get("deviations", 0.0) for point in (coupled, standard)) > LIMIT:
            return False
        if coupled["accepted"] < coupled["least"] - error:
            return False
        if standard["accepted"] - coupled["accepted"] > MOST_LOST:
            return False
    return True


def run(settings: Settings) -> Outcome:
    sizes = settings.pick((100_000, 1000), (200, 4))
    with opened(settings, max_num_seqs=4, max_model_len=256) as llm:
        text = tuple(llm.get_tokenizer().encode(TEXT))
        engine = described(settings, llm)
    step = max(1, (len(text) - 4) // N_CONTEXTS)
    beginnings = [text[:n] for n in range(4, len(text), step)][:N_CONTEXTS]
    with _executor(settings, load_model(settings.options.model).source.path) as executor:
        contexts, last = _logits(executor, beginnings), _logits(executor, [text])
        firsts = np.flatnonzero(_shares(last[0]) > 0)
        behind = [text, *((*text, int(token)) for token in firsts)]
        target = [contexts, _logits(executor, behind)]
    points: list[Json] = []
    with TemporaryDirectory() as folder:
        for name, share in NOISE.items():
            with _executor(settings, noised(settings, folder, share)) as executor:
                draft = [_logits(executor, beginnings), _logits(executor, behind)]
            has_pairs = name == next(reversed(NOISE))
            points += _measured(name, target, draft, (sizes[0] if has_pairs else 0, sizes[1]))
    return Outcome(
        measured="; ".join(
            f"{x['point']}: {x['accepted']} accepted of {x['overlap']} (least {x['least']})"
            + (f", {x['pairs']} pairs {x['deviations']} deviations" if "pairs" in x else "")
            for x in points
        ),
        conditions=(
            f"a draft model that is the target with other bits in {NOISE['a little']:.0%} or "
            f"{NOISE['much']:.0%} of its blocks; temperature 1, the likeliest {N_KEPT}; acceptance "
            f"behind {len(beginnings)} beginnings of a text; deviations of chi-square from the "
            "target's own pairs; counts, no times"
        ),
        summary={x["point"]: x["accepted"] for x in points},
        points=points,
        met=settings.quick or _is_met(points),
        identical=None,
        engine=engine,
    )


EXPERIMENT = Experiment(
    name="draft-rules",
    title="Two rules of acceptance on real logits",
    claim="coupled drafts stay with (1 - TV) / (1 + TV) at least (Daliri et al., arXiv 2408.07978)",
    target=(
        "pairs of tokens of both rules have the target's distribution (p > 0.01); coupled, at most "
        "6 points fewer stay"
    ),
    uses_model=True,
    seconds=130,
    chart=Chart(
        x="point",
        x_label="noise of the draft model, rule",
        y_label="share of drafts that stay",
        lines={"accepted": "accepted", "overlap": "1 - TV", "least": "(1 - TV) / (1 + TV)"},
        kind="bar",
    ),
    run=run,
)
