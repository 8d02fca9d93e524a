"""The page of structured outputs: each thing that was wanted in a row, and other servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.figures.blocks import Blocks
from bench.figures.grammars import (
    ANSWERS,
    BESIDE,
    BESIDE_VLLM,
    CALLS,
    COSTS,
    COSTS_OF_SCHEMAS,
    FORKS,
    FREE,
    MODELS,
    OTHERS,
    times,
)
from bench.figures.results import load
from bench.figures.target import Target

RESULTS = "../bench/results/"


@dataclass(frozen=True, slots=True)
class Bar:
    """``wanted`` is that of all ``targets``, whose figures are told in this order; ``held`` by
    tests where it is no figure, or besides."""

    what: str
    wanted: str
    targets: Sequence[Target] = ()
    held: str = ""

    def row(self) -> str:
        names = dict.fromkeys(target.result for target in self.targets)
        links = [f"[{name}]({RESULTS}{name}.json)" for name in names]
        sources = ", ".join([*links, self.held] if self.held else links)
        told = ", ".join(target.measured() for target in self.targets) or "–"
        return f"| {self.what} | {self.wanted} | {told} | {self.verdict()} | {sources} |"

    def verdict(self) -> str:
        missed = ", ".join(target.measured() for target in self.targets if not target.is_met())
        if missed:
            return f"missed: {missed}"
        return "met" if self.targets else "by tests"


MASKS = [target for model, n in MODELS.items() for target in times(model, n)]
SIZES = " and of ".join(MODELS.values())
FREE_ROWS, FORM_ALONE, FORM_MANY, PROGRAMS = FREE
ASKED, ACCEPTED, VALID, MUTANTS, FINDINGS = ANSWERS
CALLS_VALID, CALLS_RIGHT, CALLS_FASTER, CALLS_SAVED = CALLS

BARS = (
    Bar("JSON-Schema-Test-Suite, drafts 7 and 2020-12",
        "refused by name, or nothing invalid passes; what is rejected is "
        "[listed](json-schema.md#valid-instances-that-are-rejected)",
        held="`make test-schemas`"),
    Bar("996 schemas of MaskBench, SmolLM2-135M, temperature 1: asked, accepted, valid of the "
        "answers that ended", "996, 90 %, 100 %", (ASKED, ACCEPTED, VALID),
        "`tests/schemas/test_sample.py`"),
    Bar(f"time of a mask over them, p50 and p99, vocabulary of {SIZES}", "20 us, 500 us",
        [x for x in MASKS if "of a mask" in x.what]),
    Bar(f"time to compile, p50 and p99, vocabulary of {SIZES}", "3 ms, 60 ms",
        [x for x in MASKS if "to compile" in x.what]),
    Bar("the same where it is compiled, p50", "0.2 ms", [x for x in MASKS if "begin" in x.what]),
    Bar("tokens a second lost to one schema, SmolLM2-135M, one stream and 64", "3 %, 4 %",
        COSTS[:2]),
    Bar("the same, Qwen2.5-Coder-1.5B", "1 %, 1 %", COSTS[2:]),
    Bar("the same, SmolLM2-135M, schemas of MaskBench, each another", "3 %, 4 %",
        COSTS_OF_SCHEMAS),
    Bar("rows without a grammar, over the version before masks, the worst load", "0.995x",
        (FREE_ROWS,)),
    Bar("rate under the same schemas over llama-server, same file, one stream and 64",
        "1.5x, 1.5x, nothing invalid", OTHERS[:3]),
    Bar("the same over the better of vLLM's, xgrammar and guidance, bfloat16",
        "1.5x, 1.5x, nothing invalid", OTHERS[3:]),
    Bar("jump-ahead, calls of BFCL, one stream: faster, saved steps that are saved time",
        "1.2x, 80 %", (CALLS_FASTER, CALLS_SAVED)),
    Bar("jump-ahead, a form of 20 fixed fields, one stream and 64", "2x, never slower",
        (FORM_ALONE, FORM_MANY)),
    Bar("one answer: jump-ahead, overlap, chunks, batches, threads, preemption, cache hits, "
        "drafts, native and Python masks, replay", "the same bits",
        held="`tests/unit/test_grammar_rows.py`, `tests/diff/test_native_fills.py`"),
    Bar("formats of calls: what 65 templates of others write is read back", "55 detected",
        held="`make test-templates`"),
    Bar("splits at every byte and 1,000 at random; mutated and cut answers, findings",
        "the unstreamed message; 1,000,000, 0", (MUTANTS, FINDINGS),
        "`tests/unit/test_toolcalls.py`"),
    Bar("calls of BFCL, Qwen2.5-Coder-1.5B: valid of those that ended, points of right ones over "
        "llama-server, same file", "100 %, at most 1 below", (CALLS_VALID, CALLS_RIGHT)),
    Bar("a program that forks three ways, 1,000 shared tokens, 20 own, 100 outputs: fewer prompt "
        "tokens, faster than in turn, than at once without cache", "2.8x, 2.5x, 1.6x", FORKS,
        "`tests/unit/test_lang_llm.py`"),
    Bar("64 programs in `run_batch`, over the plain batch", "0.9x", (PROGRAMS,),
        "`tests/e2e/test_lang.py`"),
    Bar("hostile schemas, patterns and grammars, 10,000 schemas, a killed compiler",
        "400 or compiled within limits; others as undisturbed, memory flat",
        held="`tests/e2e/test_structured.py`, `make test-long`: `tests/e2e/test_many_schemas.py`"),
    Bar("unmodified clients: `openai`, `anthropic`, `langchain-openai`", "pass",
        held="`make test-clients`"),
)  # fmt: skip


def bars() -> str:
    head = ["| what | wanted | measured | | kept in, held by |", "|---|---|---|---|---|"]
    return "\n".join([*head, *(bar.row() for bar in BARS)]) + "\n"


def peers() -> str:
    """A row for each engine of both comparisons."""
    head = [
        "| | schemas refused | tokens a second, one stream and 64 | lost to schemas "
        "| finished | not valid |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    return "\n".join([*head, *engines(BESIDE[0]), *engines(BESIDE_VLLM[0])]) + "\n"


def engines(result: str) -> list[str]:
    document = load(result)
    n_asked = document["schemas"]["asked"]
    rows = []
    for engine in document["engines"]:
        refused = f"{len(engine['refused'])} of {n_asked}"
        rows.append(f"| {engine['name']} | {refused} | {outcome(document, engine)} |")
    return rows


def outcome(document: dict[str, Any], engine: dict[str, Any]) -> str:
    """Medians of the turns; of answers their sum."""
    each = [median[engine["name"]] for median in document["median"]]
    rates = ", ".join(f"{values['tokens_per_second']:,.0f}" for values in each)
    lost = ", ".join(f"{values['lost']:.1%}" for values in each)
    finished, invalid = (sum(values[x] for values in each) for x in ("finished", "invalid"))
    return f"{rates} | {lost} | {finished} | {invalid}"


STRUCTURED: Blocks = {"structured": bars, "structured-peers": peers}
