"""What a batch answers: a file of the lines that went well, and one of the others."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from kvasir.serve.resolved import Json
from kvasir.serve.state import lines
from kvasir.serve.state.batches import BatchRecord, BatchUsage
from kvasir.serve.state.files import File, Files
from kvasir.serve.state.folder import Content
from kvasir.serve.state.kept import decode
from kvasir.serve.state.lines import AnsweredLine

LINES = 64
"""Written at a time."""

_json = msgspec.json.Encoder()
UNANSWERED = {
    "expired": ("batch_expired", "the batch expired before this line was answered"),
    "cancelled": ("batch_cancelled", "the batch was cancelled before this line was answered"),
    "failed": ("batch_failed", "the batch failed before this line was answered"),
}


class _Usage(msgspec.Struct):
    """As completions and chat, or as responses and embeddings tell it."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: dict[str, int] = {}
    input_tokens_details: dict[str, int] = {}
    completion_tokens_details: dict[str, int] = {}
    output_tokens_details: dict[str, int] = {}


class _LineAnswer(msgspec.Struct):
    usage: _Usage | None = None


class OutputFiles:
    """The files of one batch that is being finalized."""

    def __init__(self, files: Files, record: BatchRecord) -> None:
        self._files = files
        self._record = record
        self._contents: dict[str, Content] = {}
        self._sizes: dict[str, int] = {}
        self._n_input = self._n_cached = self._n_output = self._n_reasoning = 0

    async def write(self) -> tuple[list[File], BatchUsage]:
        """The files, which are in place but no entries yet. Raises StorageFull, StateError."""
        store, after = self._files.store, 0
        batch = self._record.batch.id
        try:
            while found := await store.run(
                lambda db, after=after: lines.answered(db, batch, after, LINES)  # type: ignore[misc]
            ):
                await store.on_disk(lambda found=found: self._write(found))  # type: ignore[misc]
                after = found[-1].number
            await store.on_disk(self._keep)
        except BaseException:
            await store.on_disk(self._drop)
            raise
        return [self._file(name, size) for name, size in self._sizes.items()], self._usage()

    def _write(self, found: list[AnsweredLine]) -> None:
        for line in found:
            is_well = line.status is not None and line.status < 400
            name = self._record.output_id if is_well else self._record.error_id
            data = _json.encode(self._worded(line)) + b"\n"
            if name not in self._contents:
                self._contents[name] = self._files.store.folder.begin(name)
            self._contents[name].write(data)
            self._sizes[name] = self._sizes.get(name, 0) + len(data)

    def _worded(self, line: AnsweredLine) -> Json:
        batch = self._record.batch.id
        digest = blake2b(f"{batch}/{line.number}".encode(), digest_size=16).hexdigest()
        worded: Json = {"id": f"batch_req_{digest}", "custom_id": line.custom_id}
        if line.status is None or line.answer is None:
            code, message = UNANSWERED.get(self._record.end, UNANSWERED["failed"])
            return {**worded, "response": None, "error": {"code": code, "message": message}}
        if line.status < 400:
            self._count(line.answer)
        response = {
            "status_code": line.status,
            "request_id": decode(line.request).envelope.id,
            "body": msgspec.Raw(line.answer),
        }
        return {**worded, "response": response, "error": None}

    def _count(self, answer: bytes) -> None:
        usage = msgspec.json.decode(answer, type=_LineAnswer).usage or _Usage()
        details = usage.prompt_tokens_details or usage.input_tokens_details
        self._n_input += usage.prompt_tokens + usage.input_tokens
        self._n_output += usage.completion_tokens + usage.output_tokens
        self._n_cached += details.get("cached_tokens", 0)
        details = usage.completion_tokens_details or usage.output_tokens_details
        self._n_reasoning += details.get("reasoning_tokens", 0)

    def _usage(self) -> BatchUsage:
        return BatchUsage(
            input_tokens=self._n_input,
            input_tokens_details={"cached_tokens": self._n_cached},
            output_tokens=self._n_output,
            output_tokens_details={"reasoning_tokens": self._n_reasoning},
            total_tokens=self._n_input + self._n_output,
        )

    def _keep(self) -> None:
        for content in self._contents.values():
            content.keep()

    def _drop(self) -> None:
        for content in self._contents.values():
            content.drop()

    def _file(self, name: str, size: int) -> File:
        record = self._record
        kind = "output" if name == record.output_id else "error"
        filename = f"{record.batch.id}_{kind}.jsonl"
        return self._files.made(name, filename, "batch_output", size, record.output_seconds)
