"""What the linears of a model read of a text, as the engine computes it: X^T X of their rows, and
the sizes of each input."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace as with_options
from hashlib import blake2b
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kvasir.checkpoints.loaded import LoadedModel
from kvasir.config.cpu import PACKED_CACHE_OFF
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError, ModelError
from kvasir.engine.build import resolve_options
from kvasir.evaluation.chunks import SELF, Chunks, chunks_of_file, chunks_written
from kvasir.evaluation.reader import STEP, ChunkReader
from kvasir.exec.backend import Wishes
from kvasir.exec.cpu.backend import CPU
from kvasir.exec.cpu.executor import CpuExecutor
from kvasir.ir.bundle import as_bundle
from kvasir.ir.program import Program
from kvasir.quantize.statistics import Inputs

CHUNK = 512
"""Tokens of a chunk; fewer of a model that has room for fewer."""
OPTIONS = "--calibration", "--calibration-chunks"
MAX_CHUNKS = 128
"""Of a file that are read, unless another number is asked for."""
_BUDGET = 1 << 30
"""Bytes of the products that are gathered in one pass over the text, where one is not larger."""
_SEED = 1 << 21
"""Of texts that the model writes: chunk i of a seed is chunk i - 1 of the next one, and nothing is
evaluated, advised or judged on what a method chose by."""
_SAMPLE = 256
"""Rows that are kept of each input, at most."""
Floats = NDArray[np.float32]
Told = Callable[[int, int], None]


class Calibration:
    """Runs the model over the text as often as the budget of memory asks for: products of as many
    inputs as fit are gathered in a pass, in the order in which they are asked for."""

    def __init__(
        self,
        model: LoadedModel,
        tensors: Sequence[str],
        options: EngineOptions,
        text: str | Chunks,
        n_chunks: int | None = None,
        told: Told = lambda done, n: None,
        has_grams: bool = True,
        kept: Path | None = None,
    ) -> None:
        """``tensors``: matrices in the order in which they will be asked for; ``text``: a file,
        ``self``, or chunks of tokens; ``told``: how many chunks of how many a pass has read;
        ``has_grams``: without them all inputs take one pass; ``kept``:
        where chunks that the model writes are kept. Raises ConfigError."""
        if isinstance(text, str) and text != SELF and not Path(text).is_file():
            raise ConfigError(
                f"--calibration {text} is no file: give one of plain text in the model's language, "
                f"or '{SELF}' for texts that the model writes"
            )
        program, executor = _executor(model, options)
        self._executor, self._program = executor, program
        self._reader = ChunkReader(executor)
        self.chunks = (
            _chunks(model, text, n_chunks, self._reader, kept) if isinstance(text, str) else text
        )
        """Tokens of the text."""
        self._told = told
        self._has_grams = has_grams
        self._known = inputs = _inputs(program)
        self._wanted = [(name, inputs[name]) for name in tensors if name in inputs]
        """Tensors that nobody asked for yet, and the values that they meet."""
        self._found: dict[str, Inputs] = {}

    @property
    def digest(self) -> str:
        tokens = np.array([x for chunk in self.chunks for x in (*chunk, -1)], np.int32)
        return blake2b(tokens.tobytes(), digest_size=16).hexdigest()

    def inputs(self, tensor: str) -> Inputs | None:
        """As ``Statistics`` has it. Raises ModelError for numbers that are not finite."""
        value = dict(self._wanted).get(tensor)
        if value is None:
            return None
        if value not in self._found:
            self._gather(self._next_values(value))
        found = self._found[value]
        self._wanted = [x for x in self._wanted if x[0] != tensor]
        if value not in {x for _, x in self._wanted}:
            del self._found[value]
        return found

    def knows(self, tensor: str) -> bool:
        return tensor in self._known

    def forget(self, tensors: Collection[str]) -> None:
        self._wanted = [x for x in self._wanted if x[0] not in tensors]

    def close(self) -> None:
        self._executor.close()

    def _next_values(self, first: str) -> list[str]:
        """``first``, and those that are asked for next, while there is room."""
        found, left = [first], _BUDGET - sum(x.gram.nbytes for x in self._found.values())
        left -= self._size(first)
        for _, value in self._wanted:
            size = self._size(value)
            if value in found or value in self._found:
                continue
            if size > left:
                break
            found.append(value)
            left -= size
        return found

    def _size(self, value: str) -> int:
        """Bytes that stay of it."""
        k = self._columns(value)
        return 4 * k * (_SAMPLE + (k if self._has_grams else 0))

    def _columns(self, value: str) -> int:
        lowered = self._executor.lowered
        return lowered.buffers[lowered.values[value]].columns

    def _gather(self, values: Sequence[str]) -> None:
        until = self._last_record(values)
        n = sum(map(len, self.chunks))
        sums = {x: _Moments(self._columns(x), -(-n // _SAMPLE), self._has_grams) for x in values}
        for i, tokens in enumerate(self.chunks):
            runs: dict[str, list[Floats]] = {x: [] for x in values}
            for n_rows in self._reader.steps(tokens, until):
                for x, rows in runs.items():
                    rows.append(self._rows(x, n_rows))
            for x, rows in runs.items():
                sums[x].add(np.concatenate(rows))
            self._told(i + 1, len(self.chunks))
        self._found |= {x: each.inputs() for x, each in sums.items()}

    def _last_record(self, values: Sequence[str]) -> int:
        """By which all are computed."""
        ops = self._program.ops
        made = {i for i, op in enumerate(ops) if set(op.outs) & set(values)}
        return max(i for i, op in enumerate(self._executor.lowered.op_of_record) if op in made)

    def _rows(self, value: str, n: int) -> Floats:
        """A copy of its first ``n`` rows."""
        lowered = self._executor.lowered
        buffer = lowered.buffers[lowered.values[value]]
        size = {"f32": 4, "bf16": 2}[buffer.dtype]
        data = self._executor.arena[buffer.offset : buffer.offset + n * buffer.columns * size]
        if size == 4:
            return data.view(np.float32).reshape(n, -1).copy()
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(n, -1)


class _Moments:
    """Of rows of ``k`` numbers, chunk by chunk; each ``step``-th is kept."""

    def __init__(self, k: int, step: int, has_gram: bool) -> None:
        self._gram = np.zeros((k, k) if has_gram else (0, 0), np.float32)
        self._sizes: NDArray[np.float64] = np.zeros(k)
        self._squares: NDArray[np.float64] = np.zeros(k)
        self._peak = np.zeros(k, np.float32)
        self._sample: list[Floats] = []
        self._step, self._n = step, 0

    def add(self, rows: Floats) -> None:
        sizes = np.abs(rows)
        if len(self._gram):
            self._gram += rows.T @ rows
        self._squares += np.square(rows).sum(axis=0, dtype=np.float64)
        self._sizes += sizes.sum(axis=0, dtype=np.float64)
        self._peak = np.maximum(self._peak, sizes.max(axis=0))
        self._sample.append(rows[-self._n % self._step :: self._step].copy())
        self._n += len(rows)

    def inputs(self) -> Inputs:
        if not np.isfinite(self._squares).all():
            raise ModelError(
                "a linear meets numbers that are not finite: the checkpoint is damaged"
            )
        squares, mean = (
            (x / max(1, self._n)).astype(np.float32) for x in (self._squares, self._sizes)
        )
        sample = np.concatenate(self._sample)
        return Inputs(self._gram, squares, mean, self._peak, sample, self._n)


def calibrated_by(
    options: EngineOptions,
    text: str | Chunks,
    n_chunks: int | None,
    told: Told,
    has_grams: bool = True,
) -> Callable[[LoadedModel, Sequence[str], Path], Calibration]:
    """Of a model and its matrices, once they are known, and where chunks are kept."""

    def calibrate(model: LoadedModel, tensors: Sequence[str], kept: Path) -> Calibration:
        return Calibration(model, tensors, options, text, n_chunks, told, has_grams, kept)

    return calibrate


def _inputs(program: Program) -> dict[str, str]:
    """Tensor -> the value that its linear reads; of tensors that one linear reads, of a model that
    is not quantized."""
    found: dict[str, set[str]] = {}
    for op in program.ops:
        for name in op.weights:
            for tensor in program.weights[name].sources:
                readable = op.kind == "linear" and len(program.weights[name].shape) == 2
                found.setdefault(tensor, set()).add(op.ins[0] if readable else "")
    return {
        tensor: min(names) for tensor, names in found.items() if names != {""} and len(names) == 1
    }


def _executor(model: LoadedModel, options: EngineOptions) -> tuple[Program, CpuExecutor]:
    """Whose steps leave all inputs of linears in their places."""
    asked = with_options(
        options,
        model=str(model.source.origin),
        max_model_len=_chunk_size(model),
        max_num_seqs=1,
        max_num_batched_tokens=STEP,
        async_scheduling=False,
        enable_prefix_caching=False,
        packed_cache=PACKED_CACHE_OFF,  # read once: what is served from there keeps its room
        tuning="off",
    )
    config = resolve_options(asked, CPU.facts(model))
    program, binding = CPU.program(model, config)
    kept = sorted({x for x in _inputs(program).values() if x not in program.outputs})
    tapped = replace(program, outputs=(*program.outputs, *kept))
    executor = CPU.make(as_bundle(tapped), binding, config, Wishes())
    assert isinstance(executor, CpuExecutor)
    return tapped, executor


def _chunks(
    model: LoadedModel, text: str, n: int | None, reader: ChunkReader, kept: Path | None
) -> Chunks:
    size = _chunk_size(model)
    if text == SELF and not model.config.writes:
        raise ConfigError(
            f"{model.source.name} makes vectors and writes no text: give a file of what it will "
            "read (--calibration FILE)"
        )
    if text == SELF:
        return chunks_written(reader, model, size, n, _SEED, kept)
    found = chunks_of_file(Path(text), model, size, n, OPTIONS)
    return found if n else found[:MAX_CHUNKS]


def _chunk_size(model: LoadedModel) -> int:
    """Where tokens see each other all of them are in one step."""
    return min(STEP if model.config.block.both_ways else CHUNK, model.config.max_positions)
