"""``kvasir bench``: in process, so that the engine alone is measured."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from math import isinf
from pathlib import Path
from typing import Any

import click

from kvasir.cli.options import Command, take, with_options
from kvasir.cli.startup import interruptible
from kvasir.cli.terminal import show
from kvasir.config.options import EngineOptions, describe
from kvasir.core.errors import ConfigError

_ALL_BUT_THREADS_AND_ISA = tuple(
    info.name for info in describe(EngineOptions) if info.name not in ("threads", "isa")
)


def _measuring(command: Command) -> Command:
    """Options of every measurement."""
    added: list[Callable[[Command], Command]] = [
        click.option("--repeat", type=click.IntRange(1, 1000), default=3, show_default=True,
                     help="Measured runs of each shape; all are in the report."),
        click.option("--output", type=click.Path(dir_okay=False, path_type=Path),
                     help="Write the JSON here instead of to standard output."),
        click.option("--ceilings/--no-ceilings", default=True, show_default=True,
                     help="Measure what the machine allows as well: about five seconds."),
        with_options(EngineOptions, skip=("enable_prefix_caching",)),
    ]  # fmt: skip
    for add in reversed(added):
        command = add(command)
    return command


def _count(flag: str, default: int, text: str) -> Callable[[Command], Command]:
    return click.option(
        flag, type=click.IntRange(1, 10**7), default=default, show_default=True, help=text
    )


@click.group()
def bench() -> None:
    """Measure this machine. Every report carries the machine, its ceilings and the command."""


@bench.command()
@_count("--input-len", 32, "Prompt tokens before the measured decode.")
@_count("--output-len", 128, "Decoded tokens.")
@click.option(
    "--prefill",
    type=click.IntRange(1, 10**7),
    multiple=True,
    default=(512, 2048),
    show_default=True,
    help="Prompt length whose prefill is measured; may be repeated.",
)
@_measuring
def latency(input_len: int, output_len: int, prefill: tuple[int, ...], **values: Any) -> None:
    """One request at a time: decode and prefill rates, time to the first token."""
    from kvasir.bench.latency import LatencySettings, measure_latency

    settings = LatencySettings(input_len, output_len, prefill, values["repeat"])
    _measure("latency", lambda workload: measure_latency(workload, settings), values)


@bench.command()
@_count("--num-prompts", 64, "Requests, all submitted at once.")
@_count("--input-len", 128, "Prompt tokens of each.")
@_count("--output-len", 128, "Output tokens of each.")
@_measuring
def throughput(num_prompts: int, input_len: int, output_len: int, **values: Any) -> None:
    """Many requests at once: output tokens per second of wall time, prefill included."""
    from kvasir.bench.throughput import ThroughputSettings, measure_throughput

    settings = ThroughputSettings(num_prompts, input_len, output_len, values["repeat"])
    _measure("throughput", lambda workload: measure_throughput(workload, settings), values)


@bench.command()
@click.option("--url", "--base-url", default="http://127.0.0.1:8000", show_default=True,
              help="The server.")  # fmt: skip
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Its key [OPENAI_API_KEY].")
@click.option("--model", help="Default: the first model that the server lists.")
@click.option("--endpoint", default="/v1/completions", show_default=True,
              help="Or /v1/chat/completions.")  # fmt: skip
@click.option("--dataset-name", type=click.Choice(("random", "sharegpt", "custom")),
              default="random", show_default=True, help="What is asked.")  # fmt: skip
@click.option("--dataset-path", type=click.Path(dir_okay=False, path_type=Path),
              help="ShareGPT's JSON, or lines of {\"prompt\": …}.")  # fmt: skip
@_count("--num-prompts", 64, "Requests.")
@click.option("--input-len", "--random-input-len", type=click.IntRange(1), default=128,
              show_default=True, help="Prompt tokens of each random request.")  # fmt: skip
@click.option("--output-len", "--random-output-len", "--sharegpt-output-len", "--custom-output-len",
              "fixed_len", type=click.IntRange(1),
              help="Output tokens of each; default: 128, of files what they say.")  # fmt: skip
@click.option("--prefix-len", "--random-prefix-len", type=click.IntRange(0), default=0,
              show_default=True,
              help="Tokens at the start of every prompt that all share.")  # fmt: skip
@click.option("--request-rate", type=click.FloatRange(0), default=0.0, show_default=True,
              help="Requests per second with exponential gaps; 0 or inf: all at once.")  # fmt: skip
@click.option("--max-concurrency", type=click.IntRange(1),
              help="Requests that are answered at a time; default: any number.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True,
              help="Of the order of a file.")  # fmt: skip
@click.option("--ignore-eos/--no-ignore-eos", default=True, show_default=True,
              help="Go on to the last token that is asked for.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the report instead of the table.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON here."
)
def serve(url: str, api_key: str | None, as_json: bool, output: Path | None, **values: Any) -> None:
    """Load on a running server: what its clients see. Options are those of vllm bench serve."""
    if values["prefix_len"] > values["input_len"]:
        raise ConfigError("--prefix-len exceeds --input-len, which it is a part of")
    from kvasir.bench.cputime import server_at
    from kvasir.bench.http_client import target_of
    from kvasir.bench.load import LoadSettings, measure_load
    from kvasir.bench.report import report, write
    from kvasir.bench.result_block import result_block

    rate = values.pop("request_rate")
    values["request_rate"] = 0.0 if isinf(rate) else rate
    values["output_len"] = values["fixed_len"] or 128
    target = target_of(url, api_key)
    server = server_at(target.host, target.port)
    results = measure_load(target, LoadSettings(**values), server)
    if as_json or output is not None:
        write(report("serve", {"url": url}, results), output)
    if not as_json:
        show(result_block(results), sys.stdout)


@bench.command()
@_count("--num-prompts", 64, "Requests, all submitted at once.")
@_count("--input-len", 128, "Prompt tokens of each.")
@_count("--output-len", 128, "Output tokens of each.")
@_count("--repeat", 3, "Pairs of measured runs.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON here."
)
@with_options(EngineOptions, skip=("enable_prefix_caching", "seed", "served_model_name"))
def streaming(output: Path | None, **values: Any) -> None:
    """What streaming costs the engine: the same work offline and over HTTP, in turns."""
    from kvasir.bench.report import write
    from kvasir.bench.streaming import StreamingSettings, measure_streaming

    names = ("num_prompts", "input_len", "output_len", "repeat")
    settings = StreamingSettings(**{name: values.pop(name) for name in names})
    options = replace(take(EngineOptions, values), enable_prefix_caching=False)
    interruptible()
    document = measure_streaming(options, settings)
    write(document, output)
    _warn(document)


@bench.command()
@_count("--streams", 64, "At a time, in one dialect after another.")
@_count("--output-len", 160, "Output tokens of each.")
@_count("--repeat", 3, "Turns of all dialects.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON here."
)
@with_options(EngineOptions, skip=("enable_prefix_caching", "seed", "served_model_name"))
def events(output: Path | None, **values: Any) -> None:
    """CPU time of the API process for each streamed event, by dialect."""
    from kvasir.bench.events import EventsSettings, measure_events
    from kvasir.bench.report import write

    names = ("streams", "output_len", "repeat")
    settings = EventsSettings(**{name: values.pop(name) for name in names})
    options = replace(take(EngineOptions, values), enable_prefix_caching=False)
    interruptible()
    document = measure_events(options, settings)
    write(document, output)
    _warn(document)


@bench.command()
@_count("--num-prompts", 16, "Requests, all submitted at once; 1: a single stream.")
@_count("--input-len", 32, "Prompt tokens of each.")
@_count("--output-len", 128, "Output tokens of each.")
@click.option("--share", type=click.FloatRange(0.05, 0.95), default=0.5, show_default=True,
              help="Of one CPU, that another process wants.")  # fmt: skip
@_measuring
def disturbed(
    num_prompts: int, input_len: int, output_len: int, share: float, **values: Any
) -> None:
    """Throughput while another process takes part of a CPU, and alone, in turns."""
    from kvasir.bench.disturbed import DisturbedSettings, measure_disturbed

    settings = DisturbedSettings(num_prompts, input_len, output_len, share, values["repeat"])
    _measure("disturbed", lambda workload: measure_disturbed(workload, settings), values)


@bench.command()
@_count("--repeat", 5, "Measured starts of each; all are in the report.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON here."
)
@with_options(EngineOptions, skip=("seed", "served_model_name"))
def start(repeat: int, output: Path | None, **values: Any) -> None:
    """From the start of a process to its first token: ``kvasir run``, and ``kvasir serve``."""
    from kvasir.bench.report import write
    from kvasir.bench.start import measure_start

    interruptible()
    document = measure_start(take(EngineOptions, values), repeat)
    write(document, output)
    _warn(document)


@bench.command()
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON here."
)
@with_options(EngineOptions, skip=("seed", "served_model_name"))
def memory(output: Path | None, **values: Any) -> None:
    """What both processes of a server hold beyond the weights that they map."""
    from kvasir.bench.memory import measure_memory
    from kvasir.bench.report import write

    interruptible()
    write(measure_memory(take(EngineOptions, values)), output)


@bench.command()
@_count("--requests", 1_000_000, "Requests of one token.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON here."
)
@with_options(EngineOptions, skip=("seed", "served_model_name"))
def soak(requests: int, output: Path | None, **values: Any) -> None:
    """Many short requests to one server: growth of its memory, open files and threads."""
    from kvasir.bench.report import write
    from kvasir.bench.soak import measure_soak

    interruptible()
    write(measure_soak(take(EngineOptions, values), requests), output)


@bench.command()
@_count("--threads", 1, "Threads that measure together.")
@_count("--repeat", 3, "Runs; the report has their median and the best.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON here."
)
def ceilings(threads: int, repeat: int, output: Path | None) -> None:
    """What the machine allows: read bandwidth by size, int8, bf16 and fp32 peaks."""
    from kvasir.bench.ceilings import measure_ceilings
    from kvasir.bench.fingerprint import Meter
    from kvasir.bench.report import report, write

    with Meter() as meter:
        found = measure_ceilings(threads, repeat)
    write(report("ceilings", {}, {**found, "foreign": meter.foreign}), output)


@bench.command()
@click.option("--format", "formats", multiple=True, metavar="NAME",
              help="File format of the weights, as Q4_0; may be repeated; default: one of every "
              "packed layout.")  # fmt: skip
@click.option("--rows", type=click.IntRange(1, 4096), multiple=True, default=(1, 8, 64, 512),
              show_default=True, help="Tokens of a step; may be repeated.")  # fmt: skip
@click.option("--context", "contexts", type=click.IntRange(1, 10**6), multiple=True,
              default=(1024, 8192), show_default=True,
              help="Positions that a decoded token attends to; may be repeated.")  # fmt: skip
@_count("--repeat", 5, "Runs of each step; the median time of each phase counts.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON here."
)
@click.option("--table", type=click.Path(dir_okay=False, path_type=Path),
              help="Write a table in Markdown here.")  # fmt: skip
@with_options(EngineOptions, skip=_ALL_BUT_THREADS_AND_ISA)
def ops(output: Path | None, table: Path | None, **values: Any) -> None:
    """Every linear kernel by format and rows, and decode attention, as a share of the ceilings."""
    from kvasir.bench.ops import OpsSettings, cpu_settings, markdown, measure_ops
    from kvasir.bench.report import report, write

    cpu = cpu_settings(take(EngineOptions, values))
    settings = OpsSettings(**{name: value for name, value in values.items() if value})
    found = measure_ops(settings, cpu)
    document = report("ops", {"threads": cpu.threads, "isa": cpu.isa}, **found)
    write(document, output)
    if table is not None:
        table.write_text(markdown(document), encoding="utf-8")
    _warn(document)


def _measure(kind: str, measure: Callable[[Any], dict[str, Any]], values: dict[str, Any]) -> None:
    from kvasir.bench.measured import measured
    from kvasir.bench.report import write

    output, wants_ceilings = values.pop("output"), values.pop("ceilings")
    # Every prompt is new: the prefix cache could only make each one touch fresh KV memory.
    options = replace(take(EngineOptions, values), enable_prefix_caching=False)
    document = measured(kind, options, measure, wants_ceilings)
    write(document, output)
    _warn(document)


def _warn(document: dict[str, Any]) -> None:
    if document["disturbed"]:
        print(
            "kvasir: other processes took more than 10 % of the machine: repeat it", file=sys.stderr
        )
