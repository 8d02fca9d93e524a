"""What was wanted of grammars, over the schemas of MaskBench."""

from __future__ import annotations

from typing import Any

from bench.figures.serving import counted, most, results
from bench.figures.target import Read, Target

RESULT = "schemas-2cores"
MODELS = {"SmolLM2-135M-Instruct.Q4_1": "49,152", "qwen2.5-coder-1.5b-instruct-q4_k_m": "151,936"}


def seconds(model: str, what: str, quantile: str, scale: float) -> Read:
    def read(document: dict[str, Any]) -> float:
        return scale * float(document["results"][model][f"{what}_seconds"][quantile])

    return read


def times(model: str, n_tokens: str) -> list[Target]:
    return [
        most(f"{what}, {quantile}, vocabulary of {n_tokens}", RESULT,
             seconds(model, name, quantile, scale), bound, form)
        for name, what, quantile, scale, form, bound in (
            ("mask", "time of a mask", "p50", 1e6, "{:.0f} us", 20),
            ("mask", "time of a mask", "p99", 1e6, "{:.0f} us", 500),
            ("compile", "time to compile", "p50", 1e3, "{:.3g} ms", 3),
            ("compile", "time to compile", "p99", 1e3, "{:.3g} ms", 60),
            ("cached", "time to begin with what is compiled", "p50", 1e3, "{:.3g} ms", 0.2),
        )
    ]  # fmt: skip


BESIDE = "grammars-2cores", "llama-server on the same file"
BESIDE_VLLM = "grammars-vllm-2cores", "the better of vLLM's (xgrammar, guidance), bfloat16"
STREAMS = (1, "one stream"), (64, "64 streams")


def at(streams: int, what: str) -> Read:
    """Of the medians, with so many streams."""

    def read(document: dict[str, Any]) -> float:
        return float(next(m for m in document["median"] if m["streams"] == streams)[what])

    return read


def invalid(document: dict[str, Any]) -> float:
    """Finished answers of Kvasir that their schema does not allow."""
    each = (values for m in document["median"] for name, values in m.items() if "Kvasir" in name)
    return float(sum(values["invalid"] for values in each))


def beside(result: str, others: str) -> list[Target]:
    said = f"tokens per second under the same schemas, over {others}"
    rates = [
        Target(f"{said}, {n_said}", result, at(n, "over_best"), 1.5, "{:.2f}x")
        for n, n_said in STREAMS
    ]
    what = "the same: finished answers that their schema does not allow"
    return [*rates, most(what, result, invalid, 0, "{:.0f}")]


OTHERS = (*beside(*BESIDE), *beside(*BESIDE_VLLM))

WRITTEN = "schema-answers"
MUTATED = "fuzz-calls"


def valid(document: dict[str, Any]) -> float:
    """Share of the finished answers."""
    found = document["results"]
    return float(found["valid"] / found["finished"])


ANSWERS = (
    Target("the same schemas, each with an answer of SmolLM2-135M at temperature 1: asked for",
           WRITTEN, results("schemas"), 996, "{:.0f}", is_timed=False),
    Target("the same: accepted", WRITTEN, results("accepted_share"), 0.9, "{:.1%}",
           is_timed=False),
    Target("the same: valid, of the answers that ended by themselves", WRITTEN, valid, 1.0,
           "{:.1%}", is_timed=False),
    Target("mutated and cut answers with tool calls, each whole and in pieces", MUTATED,
           results("cases"), 1_000_000, "{:,.0f}", is_timed=False),
    counted("the same: with an exception, another message in pieces, or a character lost", MUTATED,
            results("findings"), 0, "{:.0f}"),
)  # fmt: skip

EXPERIMENTS = "experiments/"
COSTS = tuple(
    most(f"tokens a second lost to a grammar, {model}, {said}", f"{EXPERIMENTS}{name}",
         results("summary", f"lost_{n}"), bound, "{:.1%}")
    for name, model, bounds in (
        ("grammar-cost", "SmolLM2-135M", (0.03, 0.04)),
        ("qwen/grammar-cost", "Qwen2.5-Coder-1.5B", (0.01, 0.01)),
    )
    for (n, said), bound in zip(STREAMS, bounds, strict=True)
)  # fmt: skip


SCHEMAS_COST = "schema-cost-2cores"


def lost_with(n_streams: int) -> Read:
    def read(document: dict[str, Any]) -> float:
        points = document["results"]["points"]
        return float(next(point["lost"] for point in points if point["streams"] == n_streams))

    return read


COSTS_OF_SCHEMAS = tuple(
    most(f"tokens a second lost to schemas of MaskBench, each another, SmolLM2-135M, {said}",
         SCHEMAS_COST, lost_with(n), bound, "{:.1%}")
    for (n, said), bound in zip(STREAMS, (0.03, 0.04), strict=True)
)  # fmt: skip


def least_ratio(document: dict[str, Any]) -> float:
    """Of the loads that two versions were given."""
    return float(min(row["ratio"] for row in document["results"]["rows"]))


FREE: tuple[Target, ...] = (
    Target("rows without a grammar, over the version before there were masks, the worst load",
           "rates-2cores", least_ratio, 0.995, "{:.3f}x"),
    *(Target(f"a form of 20 fixed fields, jump-ahead over none, {said}", f"{EXPERIMENTS}jump-ahead",
             results("summary", f"faster_{n}"), bound)
      for (n, said), bound in zip(STREAMS, (2.0, 1.0), strict=True)),
    Target("64 programs in `run_batch`, over the plain batch", f"{EXPERIMENTS}program-batch",
           results("summary", "ratio"), 0.9),
)  # fmt: skip
FORKED = f"{EXPERIMENTS}program-fork"
FORKS = (
    Target("a fork of three, 1,000 shared tokens and 20 own, 100 outputs: fewer prompt tokens "
           "computed", FORKED, results("summary", "tokens_ratio"), 2.8),
    Target("the same: faster than the three in turn", FORKED, results("summary", "in_turn_ratio"),
           2.5),
    Target("the same: faster than the three at once, no cache", FORKED,
           results("summary", "at_once_ratio"), 1.6),
)  # fmt: skip
CALLED = "calls-2cores"
JUMPED = "jumps-2cores"


def jumps(what: str) -> Read:
    def read(document: dict[str, Any]) -> float:
        return float(document["jump_ahead"][what])

    return read


def least_valid(document: dict[str, Any]) -> float:
    """Share of Kvasir's finished answers whose calls are all valid, of the worst category."""
    (ours,) = (each for each in document["engines"] if each["name"].startswith("Kvasir"))
    return float(min(x["valid_share"] for x in ours.values() if isinstance(x, dict)))


def right_over(document: dict[str, Any]) -> float:
    """Points by which more answers are right than llama-server's, of all categories together."""
    ours, theirs = (
        [found for found in engine.values() if isinstance(found, dict)]
        for engine in document["engines"]
    )
    n_asked = sum(found["asked"] for found in ours)
    more = sum(
        mine["asked"] * (mine["right_share"] - other["right_share"])
        for mine, other in zip(ours, theirs, strict=True)
    )
    return float(100 * more / n_asked)


CALLS = (
    Target("calls of BFCL, Qwen2.5-Coder-1.5B: valid, of the answers that ended by themselves",
           CALLED, least_valid, 1.0, "{:.1%}", is_timed=False),
    Target("the same: points of right answers over llama-server on the same file", CALLED,
           right_over, -1, "{:.0f}", is_timed=False),
    Target("the same with one stream: jump-ahead over none", JUMPED, jumps("faster"), 1.2,
           "{:.2f}x"),
    Target("the same: of the steps saved, saved as time", JUMPED, jumps("saved_as_time"), 0.8,
           "{:.0%}"),
)  # fmt: skip

GRAMMARS = (
    Target("996 schemas: accepted", RESULT, lambda d: d["results"]["accepted_share"], 0.9, "{:.1%}",
           is_timed=False),
    *(target for model, n_tokens in MODELS.items() for target in times(model, n_tokens)),
    *COSTS,
    *COSTS_OF_SCHEMAS,
    *FREE,
    *FORKS,
    *OTHERS,
    *ANSWERS,
    *CALLS,
)  # fmt: skip
