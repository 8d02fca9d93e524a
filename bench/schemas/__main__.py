"""Schemas of others, with their instances.

    python -m bench.schemas suite FOLDER [--write]
    python -m bench.schemas sample FILE [--model MODEL]... [--output NAME.json]
    python -m bench.schemas write FILE --answers LINES [--model MODEL] [--limit N]
        [--output NAME.json]
    python -m bench.schemas cost FILE [--model MODEL] [--output NAME.json]

FOLDER is ``tests`` of the JSON-Schema-Test-Suite (``make test-schemas`` fetches it); FILE gzipped
lines of JSON with ``id``, ``schema`` and ``tests``, as of MaskBench.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click

from bench.schemas.cases import DRAFTS, sample_cases, spread, suite_cases
from bench.schemas.cost import costs
from bench.schemas.finished import Answers, told, write_answers
from bench.schemas.listing import PAGE, write
from bench.schemas.timing import measure
from bench.schemas.validity import fault
from bench.schemas.verdict import Verdict, judge
from kvasir.bench.fingerprint import Meter
from kvasir.bench.report import command_line, describe_engine, report
from kvasir.bench.report import write as write_report
from kvasir.checkpoints.loaded import load_model
from kvasir.cli.main import run_command
from kvasir.grammar.errors import UnsupportedSchema
from kvasir.grammar.matcher import library_version, load_tokens
from kvasir.grammar.vocabulary import vocabulary_of
from kvasir.offline.llm import LLM
from kvasir.tokenizer.load import load_tokenizer
from kvasir.weights.default import default_model
from kvasir.weights.source import open_model

PROGRAM = "python -m bench.schemas"
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
COST_CASES = 160
"""Of which a hundred can be put into a list."""
_OUTPUT = click.option("--output", type=click.Path(dir_okay=False, path_type=Path))


@click.group()
def schemas() -> None:
    """Schemas of others, with their instances."""


@schemas.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--write", "writes", is_flag=True, help=f"The list of docs/{PAGE.name} anew.")
def suite(folder: Path, writes: bool) -> None:
    """What the grammars make of the JSON-Schema-Test-Suite."""
    for draft in DRAFTS:
        print(f"{draft}: {counts([judge(case) for case in suite_cases(folder, draft)])}")
    if writes:
        write(folder)


@schemas.command()
@click.argument("file", type=_FILE)
@click.option("--model", "models", multiple=True, help="GGUF file or folder: whose tokens.")
@_OUTPUT
def sample(file: Path, models: tuple[str, ...], output: Path | None) -> None:
    """Verdicts, and seconds to compile and to make masks over the tokens of each model."""
    cases = list(sample_cases(file))
    results: dict[str, Any] = counts([judge(case) for case in cases])
    print(results)
    for model in models or (default_model(),):
        source = open_model(model)
        vocabulary = vocabulary_of(load_tokenizer(source))
        with Meter() as meter:
            times = measure(cases, vocabulary, len(vocabulary.tokens)).told()
        results[source.name] = {
            "n_tokens": len(vocabulary.tokens),
            **times,
            "foreign": meter.foreign,
        }
        print(source.name, {name: _short(found) for name, found in times.items()})
    _report("schema-sample", {"llguidance": library_version()}, results, output)


@schemas.command(name="write")
@click.argument("file", type=_FILE)
@click.option("--answers", "path", type=click.Path(dir_okay=False, path_type=Path), required=True)
@click.option("--model")
@click.option("--limit", type=click.IntRange(1), help="Schemas, spread over the file.")
@click.option("--max-tokens", default=512, show_default=True)
@click.option("--streams", default=8, show_default=True)
@_OUTPUT
def write_command(
    file: Path,
    path: Path,
    model: str | None,
    limit: int | None,
    max_tokens: int,
    streams: int,
    output: Path | None,
) -> None:
    """A model's answers at temperature 1, held against ``jsonschema``; goes on where it ended, and
    says in between what there is."""
    loaded = load_model(model)
    answers = Answers(path)
    chosen = spread(list(sample_cases(file)), limit)
    with LLM(model, max_num_seqs=streams) as llm:
        built = llm.session().opened().built
        tokens = load_tokens(model, built.config.sizes.vocab_size)
        described = describe_engine(loaded, built)

        def say() -> None:
            results = {**told(answers.all), "max_tokens": max_tokens}
            print(f"{results['schemas']} schemas: {results['outcomes']}", flush=True)
            _report("schema-answers", described, results, output)

        say()
        write_answers(llm, tokens, chosen, answers, (max_tokens, streams), say)
    results = told(answers.all)
    print(results)
    if results["faults"]:
        raise SystemExit(f"kvasir: {len(results['faults'])} finished answers are not valid")


@schemas.command()
@click.argument("file", type=_FILE)
@click.option("--model")
@click.option("--max-tokens", default=48, show_default=True)
@click.option("--runs", default=5, show_default=True)
@_OUTPUT
def cost(file: Path, model: str | None, max_tokens: int, runs: int, output: Path | None) -> None:
    """Tokens a second that one stream and 64 lose to the schemas, each in an endless list, no
    forced tokens ahead."""
    loaded = load_model(model)
    cases = spread(list(sample_cases(file)), COST_CASES)
    with LLM(model, max_num_seqs=64, enable_prefix_caching=False, jump_ahead=False) as llm:
        with Meter() as meter:
            results = costs(llm, cases, max_tokens, runs)
        described = describe_engine(loaded, llm.session().opened().built)
    _report("schema-cost", described, {**results, "foreign": meter.foreign}, output)


def counts(verdicts: list[Verdict]) -> dict[str, Any]:
    """Schemas accepted and refused by keyword, instances taken and rejected by reason."""
    refused = Counter(_keyword(one) for one in verdicts if one.refusal is not None)
    taken = Counter(
        "not asserted" if fault(one.case.schema, instance.value) is None else "FAULT"
        for one in verdicts
        for instance in one.taken
    )
    n_instances = sum(len(one.case.instances) for one in verdicts if one.refusal is None)
    return {
        "schemas": len(verdicts),
        "accepted_share": round(1 - refused.total() / max(len(verdicts), 1), 4),
        "refused": dict(refused.most_common()),
        "instances": n_instances,
        "invalid_taken": dict(taken),
        "valid_rejected": dict(Counter(why for one in verdicts for _, why in one.rejected)),
    }


def _keyword(verdict: Verdict) -> str:
    if isinstance(verdict.refusal, UnsupportedSchema):
        return verdict.refusal.keyword
    return verdict.refusal.message[:80] if verdict.refusal is not None else ""


def _short(found: Any) -> Any:
    if not isinstance(found, dict):
        return found
    return {name: found[name] for name in ("count", "p50", "p99", "max") if name in found}


def _report(
    kind: str, engine: dict[str, Any], results: dict[str, Any], output: Path | None
) -> None:
    if output is not None:
        write_report(report(kind, engine, results, command=command_line(PROGRAM)), output)


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1:], schemas, PROGRAM))
