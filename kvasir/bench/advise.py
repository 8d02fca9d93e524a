"""Which format of a model serves a load best here: measured times of its shapes in each, memory as
the planner gives it, and how far each is from the model as it is."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace as with_options
from pathlib import Path

import msgspec
from msgspec.structs import replace

from kvasir.bench.candidates import AS_IT_IS, Candidate
from kvasir.bench.pretend_times import (
    SHORT,
    FormatTimes,
    RequestLoad,
    attention_seconds,
    format_times,
)
from kvasir.checkpoints.loaded import LoadedModel, model_facts
from kvasir.config.advice import room_of
from kvasir.config.options import EngineOptions
from kvasir.config.resolve import resolve
from kvasir.config.sizes import format_size
from kvasir.core.errors import ConfigError
from kvasir.evaluation.calibrate import calibrated_by
from kvasir.evaluation.chunks import SELF
from kvasir.evaluation.evaluate import Evaluation, check, evaluate
from kvasir.evaluation.figures import Figures
from kvasir.evaluation.gates import Requirement
from kvasir.exec.cpu.backend import CPU
from kvasir.quantize.quantize import SPARE, CalibratedMethod, quantize

CLOSE = 1.05
"""Times as long as the shortest that are taken for equal."""
SEED = 1
"""Of texts that the model writes to be judged on."""
Told = Callable[[str], None]


class AdvisedFormat(msgspec.Struct, frozen=True):
    """A format, and what is expected of it."""

    name: str
    n_bytes: int
    """Of its tensors, in the file."""
    command: str
    is_made: bool = False
    """By ``kvasir quantize``: else it is not compared, however it is asked for."""
    refusal: str = ""
    """Why it does not serve the load; empty: it does."""
    decode: float | None = None
    """Tokens a second of all requests together; None: not measured."""
    prefill: float | None = None
    """Tokens a second of one prompt."""
    seconds: float | None = None
    """Of all requests, from their beginning to their end."""
    figures: Figures | None = None
    """Beside the model as it is; None: not asked for, or not made by ``kvasir quantize``."""


class AskedAdvice(msgspec.Struct, frozen=True):
    load: RequestLoad
    memory: int | None = None
    """Bytes that it may take; None: what is free."""
    text: str | None = None
    """To measure the divergence on: a file, or ``self``; None: it is not measured."""
    n_chunks: int | None = None
    requirements: tuple[Requirement, ...] = ()


def advise(
    model: LoadedModel,
    found: Sequence[Candidate],
    asked: AskedAdvice,
    options: EngineOptions,
    told: Told = lambda name: None,
) -> list[AdvisedFormat]:
    """The best first, then those that do not serve. Raises ConfigError, ModelError."""
    if not model.config.writes:
        raise ConfigError(
            f"{model.source.name} makes vectors: what is advised is measured on answers"
        )
    if asked.text is not None:
        check(Evaluation(options, asked.text, n_chunks=asked.n_chunks))
        _check_room(found)
    judged = [_fitting(model, x, asked, options) for x in found]
    able = [x for x, one in zip(found, judged, strict=True) if not one.refusal]
    slope = 0.0
    if able:
        told("attention")
        slope = attention_seconds(model, asked.load, options)
    known: dict[frozenset[tuple[str, str]], FormatTimes] = {}
    answers = []
    for candidate, one in zip(found, judged, strict=True):
        if not one.refusal:
            told(candidate.name)
            key = frozenset(candidate.formats.items())
            if key not in known:
                known[key] = format_times(
                    model, candidate.formats, candidate.n_bytes, asked.load, options
                )
            one = _timed(one, known[key], asked.load, slope)
            one = _judged(one, model, candidate, asked, options)
        answers.append(one)
    return sorted(answers, key=lambda x: (bool(x.refusal), x.seconds or 0.0, x.n_bytes))


def _check_room(found: Sequence[Candidate]) -> None:
    """Of the folder in which formats are made, one at a time. Raises ConfigError."""
    made = [x for x in found if x.method is not None]
    largest = max(made, key=lambda x: x.n_bytes, default=None)
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if largest is not None and free < largest.n_bytes + SPARE:
        raise ConfigError(
            f"{folder} has {format_size(free)} free, {largest.name} is made there to be judged and "
            f"needs {format_size(largest.n_bytes + SPARE)}: set TMPDIR to a folder with room, name "
            "smaller --formats, or leave --text out"
        )


def choice(found: Sequence[AdvisedFormat]) -> AdvisedFormat | None:
    """Of those that serve and are about as fast as the fastest: the nearest to the model where that
    was measured, else the model itself, else the one with most bytes. None: none serves."""
    able = [x for x in found if not x.refusal]
    least = min((x.seconds or 0.0 for x in able), default=0.0)
    close = [x for x in able if (x.seconds or 0.0) <= CLOSE * least]
    return min(close, key=_distance, default=None)


def _distance(one: AdvisedFormat) -> tuple[bool, float, int]:
    against = None if one.figures is None else one.figures.against
    kld = 0.0 if against is None else against.kld.value
    is_known = one.name == AS_IT_IS or against is not None
    return (not is_known, kld, -one.n_bytes)


def _fitting(
    model: LoadedModel, candidate: Candidate, asked: AskedAdvice, options: EngineOptions
) -> AdvisedFormat:
    is_made = candidate.method is not None
    one = AdvisedFormat(candidate.name, candidate.n_bytes, candidate.command, is_made)
    facts, hardware, load = model_facts(model), CPU.probe(), asked.load
    if candidate.name != AS_IT_IS:
        facts = replace(facts, weight_bytes=candidate.n_bytes, weight_dtype="quantized")
    if asked.memory is not None:
        hardware = replace(hardware, free_memory=asked.memory)
    longest = load.prompt + load.output
    wanted = with_options(options, max_model_len=longest, max_num_seqs=load.batch)
    try:
        room = room_of(resolve(wanted, facts, hardware, CPU.settings))
    except ConfigError as error:
        return replace(one, refusal=error.message)
    if room.concurrency < load.batch:
        why = (
            f"room for {room.concurrency:.1f} of {load.batch} requests of {longest} tokens: "
            f"{format_size(room.kv_bytes)} of KV blocks beside {format_size(candidate.n_bytes)}"
        )
        return replace(one, refusal=why)
    return one


def _timed(
    one: AdvisedFormat, times: FormatTimes, load: RequestLoad, slope: float
) -> AdvisedFormat:
    step = times.step + slope * max(0, load.context - SHORT)
    return replace(
        one,
        decode=load.batch / step,
        prefill=load.prompt / times.prompt,
        seconds=load.batch * times.prompt + load.output * step,
    )


def _judged(
    one: AdvisedFormat,
    model: LoadedModel,
    candidate: Candidate,
    asked: AskedAdvice,
    options: EngineOptions,
) -> AdvisedFormat:
    """With its divergence, where that is asked for."""
    if asked.text is None or candidate.name == AS_IT_IS:
        return one
    if candidate.method is None:
        why = (
            "kvasir quantize does not make it of this model, so nothing says how far it is from it"
        )
        return replace(one, refusal=why if asked.requirements else "")
    with tempfile.TemporaryDirectory(prefix="kvasir-advise-") as folder:
        output = Path(folder) / ("made.gguf" if model.source.kind == "gguf" else "made")
        path, calibrate = str(model.source.origin), None
        if isinstance(candidate.method, CalibratedMethod):
            calibrate = calibrated_by(EngineOptions(), SELF, asked.n_chunks, lambda done, n: None)
        quantize(path, candidate.method, output, calibrate=calibrate)
        made = with_options(options, model=str(output))
        size = min(512, model.config.max_positions // 2 * 2)
        evaluation = Evaluation(made, asked.text, path, size, n_chunks=asked.n_chunks, seed=SEED)
        figures = evaluate(evaluation)
    faults = [x for x in (gate.fault(figures) for gate in asked.requirements) if x]
    return replace(one, figures=figures, refusal="; ".join(faults))
