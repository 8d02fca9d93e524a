"""From texts that are asked about to the resolved prompts of their vectors, or of a judge."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from kvasir.core.errors import RequestError
from kvasir.core.messages import Ready
from kvasir.core.params import TokenParams
from kvasir.core.request import NO_DRAWS, PoolKind
from kvasir.serve.admission import AdmissionLimits
from kvasir.serve.asked import Asked, PoolWish, Prompt, Truncation
from kvasir.serve.resolved import Ids, Json
from kvasir.serve.slices import Slices, Work
from kvasir.serve.text import INLINE_BYTES, Rendering, TextModel
from kvasir.text.judge import ANSWERS, answer_ids, judging_problem, question
from kvasir.text.pairs import method_of, pairs_of
from kvasir.text.vectors import (
    check_dimensions,
    ids_with_prompt,
    note_of,
    pooling_of,
    prompt_of,
)
from kvasir.validation.params import check_prompt


class PoolRead(msgspec.Struct, frozen=True):
    """A job's part of what was asked, and what its grammar must know."""

    prompts: tuple[Ids, ...]
    params: tuple[TokenParams, ...]
    kind: PoolKind
    show: Json
    head: Ids | Literal["classifier"] = ()
    seconds: Ids = ()
    """Both as in ``Job``."""
    warnings: tuple[str, ...] = ()


class PoolReading(msgspec.Struct, frozen=True):
    """Of one request. Raises RequestError (400)."""

    asked: Asked
    wish: PoolWish
    text: TextModel
    info: Ready
    room: int
    """Tokens that a prompt may have."""

    async def run(self, limits: AdmissionLimits, slices: Slices) -> PoolRead:
        method = self._method()
        check_dimensions(self.wish.dimensions, self.info.vectors)
        limits.check(len(self.asked.prompts), 1)
        if method in ("logits", "classifier"):
            read = await self._judged(method, slices)
        else:
            facts = self.info.vectors
            own = facts.label_pooling if self.wish.classifies else None
            kind = pooling_of(self.wish.pooling or own, facts)
            prompts = await self._prompts(slices)
            params, show = (NO_DRAWS,) * len(prompts), {"pooling": kind}
            head = self._labelled(show) if self.wish.classifies else ()
            read = PoolRead(prompts, params, kind, show, head, warnings=note_of(kind, facts))
        if method is not None:
            labels = self.info.vectors.labels if method == "classifier" else ANSWERS
            read.show.update(method=method, n_queries=self.wish.n_queries, labels=labels)
        await slices.run(self._check(read.prompts))
        limits.check(len(read.prompts), 1, sum(map(len, read.prompts)))
        return read

    def _method(self) -> str | None:
        """How texts are compared, where they are: by the odds of the model's answer where it
        follows instructions and was not trained for vectors, else by the angle between these."""
        wish, texts = self.wish, self.asked.prompts
        if wish.method is None:
            return None
        pairs_of(wish.n_queries, len(texts) - wish.n_queries)
        asks_vectors = wish.pooling is not None or wish.truncation is not None
        if wish.method == "logits" and asks_vectors:
            raise RequestError(
                "a judge reads whole texts and pools none: leave pooling and truncate out, or use "
                "method cosine",
                param="method",
            )
        problem = judging_problem(self.text.tokenizer, self.text.template)
        wants_vectors = asks_vectors or bool(self.info.vectors.trained)
        labels = self.info.vectors.labels
        return method_of(wish.method, problem, wants_vectors=wants_vectors, labels=labels)

    def _labelled(self, show: Json) -> Literal["classifier"]:
        labels = self.info.vectors.labels
        if not labels:
            raise RequestError(
                "this model has no classifier head, so no labels: rerank or score texts with it",
                param="model",
            )
        show["labels"] = labels
        return "classifier"

    async def _judged(self, method: str, slices: Slices) -> PoolRead:
        """One prompt for each pair, and the vector that the head reads of it."""
        texts, n = self.asked.prompts, self.wish.n_queries
        found = [
            await self._joined(_text(texts[i], self.asked), _text(texts[n + j], self.asked), slices)
            for i, j in pairs_of(n, len(texts) - n)
        ]
        prompts, params = tuple(ids for ids, _ in found), (NO_DRAWS,) * len(found)
        if method == "logits":
            return PoolRead(prompts, params, "last", {}, answer_ids(self.text.tokenizer))
        kind = pooling_of(self.info.vectors.label_pooling, self.info.vectors)
        seconds = tuple(second for _, second in found)
        own = seconds if self.info.vectors.n_types > 1 else ()
        return PoolRead(prompts, params, kind, {}, self._labelled({}), own)

    async def _joined(self, query: str, document: str, slices: Slices) -> tuple[Ids, int]:
        """As the model was trained to read two texts: with what its tokenizer puts between them, in
        a conversation, or else on two lines; and where the second begins."""
        tokenizer, name = self.text.tokenizer, self.asked.names.prompt
        if self.text.template.problem is None or not tokenizer.joins_pairs:
            return await self._question(query, document, slices), 0
        self._check_size(query, document)
        both = [
            await self.text.encode(text, add_special=False, limit=self.room, param=name)
            for text in (query, document)
        ]
        ids, second = tokenizer.pair(*both)
        return tuple(ids), second

    def _check_size(self, *texts: str) -> int:
        """Bytes of the texts."""
        size = sum(len(text.encode("utf-8", "replace")) for text in texts)
        self.text.check_bytes(size, self.room, self.asked.names.prompt)
        return size

    async def _question(self, query: str, document: str, slices: Slices) -> Ids:
        size = self._check_size(query, document)
        if self.text.template.problem is not None:
            text, name = f"{query}\n{document}", self.asked.names.prompt
            return await self.text.encode(text, add_special=True, limit=self.room, param=name)
        said = question(query, document, self.wish.instruction)
        if size > INLINE_BYTES or not self.text.renders_inline:
            return await self.text.render(said, Rendering())
        return await slices.run(self._short(said))

    def _short(self, said: Sequence[Mapping[str, object]]) -> Work[Ids]:
        yield
        return self.text.render_short(said, Rendering())

    async def _prompts(self, slices: Slices) -> tuple[Ids, ...]:
        asked, cut = self.asked, self.wish.truncation
        limit = self.room if cut is None else sys.maxsize
        found = await self.text.read_many(
            self._prompted(),
            slices,
            add_special=asked.add_special and cut is None,
            limit=limit,
            param=asked.names.prompt,
        )
        return tuple(found) if cut is None else await slices.run(self._cut(found, cut))

    def _prompted(self) -> tuple[Prompt, ...]:
        """The texts, with what the model reads before each; labels are of texts alone."""
        prompts, name = self.asked.prompts, self.wish.prompt_name
        before = "" if self.wish.classifies else prompt_of(name, self.info.vectors)
        if name is not None and not all(isinstance(x, str) for x in prompts):
            raise ids_with_prompt()
        return tuple(before + x if isinstance(x, str) else x for x in prompts)

    def _cut(self, prompts: Sequence[Ids], cut: Truncation) -> Work[tuple[Ids, ...]]:
        """Special tokens are put around what is left of a text."""
        surround = self.text.tokenizer.surround
        limit = min(cut.limit or self.room, self.room)
        found = []
        for ids, written in zip(prompts, self.asked.prompts, strict=True):
            is_text = isinstance(written, str) and self.asked.add_special
            room = limit - len(surround(())) if is_text else limit
            if room < 1:
                raise RequestError(
                    f"{limit} tokens leave no room beside the special ones: allow more",
                    param="truncate_prompt_tokens",
                )
            kept = ids[-room:] if cut.keeps_end else ids[:room]
            found.append(tuple(surround(kept)) if is_text else kept)
            yield
        return tuple(found)

    def _check(self, prompts: Sequence[Ids]) -> Work[None]:
        sizes = {"vocab_size": self.info.vocab_size, "max_model_len": self.room}
        for prompt in prompts:
            check_prompt(prompt, **sizes, name=self.asked.names.prompt)
            yield


def _text(prompt: Prompt, asked: Asked) -> str:
    if isinstance(prompt, str):
        return prompt
    raise RequestError(
        "a judge reads texts: send no ids, or use method cosine", param=asked.names.prompt
    )
