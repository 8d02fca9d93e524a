"""The calls of ``LLM`` that give vectors, and what is made of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from kvasir.core.errors import RequestError
from kvasir.offline.opened import ModelCalls, check_ids
from kvasir.offline.pooling import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
    judged,
    last_events,
)
from kvasir.offline.prompts import Prompt, prompted, read_prompts, truncated
from kvasir.offline.turns import QueuedCall
from kvasir.text.heads import through
from kvasir.text.judge import ANSWERS, answer_ids, judging_problem
from kvasir.text.pairs import fit_of, method_of, pairs_of, probabilities
from kvasir.text.vectors import check_dimensions, cosine, finished, note_of, pooling_of, prompt_of

_log = logging.getLogger(__name__)

PoolOutput = TypeVar("PoolOutput")


class VectorCalls(ModelCalls):
    def embed(
        self,
        prompts: object,
        *,
        pooling: str | None = None,
        dimensions: int | None = None,
        normalize: bool = True,
        truncate_prompt_tokens: int | None = None,
        prompt_name: str | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """A vector of each prompt.

        ``prompts`` as for ``generate``. ``pooling``: "mean", "last" or "cls"; default: as the model
        was trained, else "last". ``dimensions``: cut to so many numbers, where it was trained for
        that. ``truncate_prompt_tokens``: of what is longer the last tokens are left; -1: as many as
        the context holds. ``prompt_name``: of what stands before each text, as the model was
        trained; default: as its folder says. Raises RequestError before anything runs,
        KvasirError for a prompt that fails.
        """
        check_dimensions(dimensions, self._has().vectors)

        def output(number: int, ids: Sequence[int], vector: bytes) -> EmbeddingRequestOutput:
            embedding = finished(vector, dimensions, normalize=normalize).tolist()
            return EmbeddingRequestOutput(str(number), EmbeddingOutput(embedding), list(ids))

        named = self._named(prompts, prompt_name)
        return self._pool(named, pooling, truncate_prompt_tokens, output)

    def encode(
        self,
        prompts: object,
        *,
        pooling: str | None = None,
        truncate_prompt_tokens: int | None = None,
        prompt_name: str | None = None,
    ) -> list[PoolingRequestOutput]:
        """As ``embed``, but vectors are arrays, f32 [size], as the model gives them."""

        def output(number: int, ids: Sequence[int], vector: bytes) -> PoolingRequestOutput:
            data = np.frombuffer(vector, "<f4")
            return PoolingRequestOutput(str(number), PoolingOutput(data), list(ids))

        named = self._named(prompts, prompt_name)
        return self._pool(named, pooling, truncate_prompt_tokens, output)

    def classify(self, prompts: object) -> list[ClassificationRequestOutput]:
        """The probabilities of the model's labels for each prompt. Raises RequestError for a model
        without a head for them."""
        has = self._has()
        if not has.vectors.labels:
            raise RequestError("this model has no classifier head, so no labels")
        head = has.heads.classifier

        def output(number: int, ids: Sequence[int], vector: bytes) -> ClassificationRequestOutput:
            probs = ClassificationOutput(probabilities(head.logits(vector)))
            return ClassificationRequestOutput(str(number), probs, list(ids))

        return self._pool(prompts, has.vectors.label_pooling, None, output, is_told=False)

    def score(
        self,
        text_1: object,
        text_2: object,
        *,
        method: str = "auto",
        pooling: str | None = None,
    ) -> list[ScoringRequestOutput]:
        """How much each text on one side has to do with its pair on the other: one text is compared
        with each of the others, or as many on both sides in pairs.

        ``method``: "cosine" of their vectors; "logits", the odds with which the model says yes when
        it is asked; "auto": these where it follows instructions and was not trained for vectors.
        """
        has = self._has()
        first, second = (read_prompts(x, has.tokenizer) for x in (text_1, text_2))
        pairs = pairs_of(len(first), len(second))
        wants_vectors = pooling is not None or bool(has.vectors.trained)
        problem = judging_problem(has.tokenizer, has.template)
        labels = has.vectors.labels
        found = method_of(method, problem, wants_vectors=wants_vectors, labels=labels)
        if found != "cosine":
            return self._judge([(first[i], second[j]) for i, j in pairs], found)
        if has.vectors.default_prompt:
            sides = (self._named(x, None) for x in (text_1, text_2))
            first, second = (read_prompts(x, has.tokenizer) for x in sides)
        vectors = self._told([*first, *second], pooling)

        def output(number: int, i: int, j: int) -> ScoringRequestOutput:
            score = ScoringOutput(cosine(vectors[i], vectors[len(first) + j]), "cosine")
            return ScoringRequestOutput(str(number), score, list(second[j].ids))

        return [output(next(has.numbers), *pair) for pair in pairs]

    def _judge(
        self, pairs: Sequence[tuple[Prompt, Prompt]], method: str
    ) -> list[ScoringRequestOutput]:
        has = self._has()
        asked = [judged(*pair, has.template, has.tokenizer) for pair in pairs]
        kind = "last"
        if method == "classifier":
            head, labels = has.heads.classifier, has.vectors.labels
            kind = has.vectors.label_pooling
        else:
            head, labels = has.heads.of_tokens(answer_ids(has.tokenizer)), ANSWERS
        if has.vectors.n_types < 2:
            asked = [replace(prompt, second=0) for prompt in asked]

        def output(prompt: Prompt, vector: bytes) -> ScoringRequestOutput:
            score = ScoringOutput(fit_of(head.logits(vector), labels), method)
            return ScoringRequestOutput(str(next(has.numbers)), score, list(prompt.ids))

        return list(map(output, asked, self._vectors(asked, kind)))

    def _named(self, prompts: object, name: str | None) -> object:
        """With what the model reads before texts."""
        return prompted(prompts, prompt_of(name, self._has().vectors), name is not None)

    def _pool(
        self,
        prompts: object,
        pooling: str | None,
        limit: int | None,
        output: Callable[[int, Sequence[int], bytes], PoolOutput],
        is_told: bool = True,
    ) -> list[PoolOutput]:
        """``is_told``: of the vectors themselves, not of what a head makes of them."""
        has = self._has()
        read = truncated(read_prompts(prompts, has.tokenizer), limit, has.sizes.max_model_len)
        vectors = (self._told if is_told else self._vectors)(read, pooling)
        return [
            output(next(has.numbers), prompt.ids, vector)
            for prompt, vector in zip(read, vectors, strict=True)
        ]

    def _told(self, prompts: Sequence[Prompt], pooling: str | None) -> list[bytes]:
        """What the model's own layers make of the engine's vectors."""
        vectors, has = self._vectors(prompts, pooling), self._has()
        return [through(has.heads.dense, x) for x in vectors] if has.vectors.n_dense else vectors

    def _vectors(self, prompts: Sequence[Prompt], pooling: str | None) -> list[bytes]:
        facts = self._has().vectors
        kind = pooling_of(pooling, facts)
        for note in note_of(kind, facts):
            _log.warning(note)

        def work(turn: QueuedCall[list[bytes]]) -> list[bytes]:
            has = self._has()
            for prompt in prompts:
                check_ids(has, prompt)
            engine = has.built.engine
            events = last_events(engine, has.ids, prompts, pooling=kind, check=turn.check)
            return [event.vector for event in events]

        return self._turns.call(work)
