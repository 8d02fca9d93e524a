"""Texts compared: /v1/rerank of Jina, Cohere and TEI, and vLLM's /v1/score and /v1/classify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvasir.core.errors import RequestError
from kvasir.serve.answer import Dialect, Tally, Whole
from kvasir.serve.answers.vectors import Classes, Ranking, Scores, TeiRanked
from kvasir.serve.asked import Asked, PoolWish
from kvasir.serve.dialects.completions import split_prompts
from kvasir.serve.dialects.whole import WholeGrammar
from kvasir.serve.errors import describe_error
from kvasir.serve.parts import Parts, filled
from kvasir.serve.protocol import pool
from kvasir.serve.protocol.parse import parse_request
from kvasir.serve.resolved import Json
from kvasir.serve.slices import Work
from kvasir.text.pairs import fit_of, pairs_of, probabilities
from kvasir.text.vectors import cosine

RERANK, SCORE, CLASSIFY = "rerank", "score", "classify"


class ScoreGrammar(WholeGrammar):
    """A score for each pair."""

    def whole(self, choices: Sequence[Whole], tally: Tally) -> Work[Parts]:
        scores = yield from self._scores(choices)
        data = [{"index": i, "object": "score", "score": x} for i, x in enumerate(scores)]
        return filled(self._wrapped({"data": data}, tally))

    def _scores(self, choices: Sequence[Whole]) -> Work[list[float]]:
        if self._resolved.job.head:
            labels = self._resolved.show["labels"]
            return [fit_of(choice.logits, labels) for choice in choices]
        n, found = self._resolved.show["n_queries"], []
        for i, j in pairs_of(n, len(choices) - n):
            found.append(cosine(choices[i].vector, choices[n + j].vector))
            yield
        return found


class ClassifyGrammar(WholeGrammar):
    """The likeliest label of each text, and the probabilities of all."""

    def whole(self, choices: Sequence[Whole], tally: Tally) -> Work[Parts]:
        labels, data = self._resolved.show["labels"], []
        for index, choice in enumerate(choices):
            chances = probabilities(choice.logits)
            label = labels[chances.index(max(chances))]
            told = {"probs": chances, "num_classes": len(labels)}
            data.append({"index": index, "label": label, **told})
            yield
        return filled(self._wrapped({"data": data}, tally))


class RerankGrammar(ScoreGrammar):
    """The documents, the best first; of equal ones in their order."""

    def whole(self, choices: Sequence[Whole], tally: Tally) -> Work[Parts]:
        scores, show = (yield from self._scores(choices)), self._resolved.show
        order = sorted(range(len(scores)), key=lambda i: -scores[i])[: show["top_n"]]
        results = [self._result(i, scores[i]) for i in order]
        if show["is_tei"]:
            return filled(results)
        return filled(self._wrapped({"results": results}, tally))

    def _result(self, index: int, score: float) -> Json:
        documents = self._resolved.show["documents"]
        if self._resolved.show["is_tei"]:
            told = {"text": documents[index]} if documents else {}
            return {"index": index, "score": score, **told}
        told = {"document": {"text": documents[index]}} if documents else {}
        return {"index": index, "relevance_score": score, **told}


def read_rerank(body: Json, *, strict: bool) -> Asked:
    """Raises RequestError (400)."""
    is_tei = "texts" in body
    aliases = {"instruct": "instruction", "texts": "documents", "return_text": "return_documents"}
    body = _renamed(body, aliases)
    idle = {**pool.UNSUPPORTED, "raw_scores": (False,)}
    request, warnings = parse_request(pool.RerankRequest, body, idle, strict=strict)
    if not request.documents:
        raise RequestError("documents is empty: send at least one", param="documents")
    if request.top_n is not None and request.top_n < 1:
        raise RequestError(f"top_n is {request.top_n}: needs at least 1", param="top_n")
    documents = tuple(_document(x, i) for i, x in enumerate(request.documents))
    show: Json = {"top_n": request.top_n, "is_tei": is_tei}
    show["documents"] = documents if request.return_documents else ()
    wish = PoolWish(method=request.method, n_queries=1, instruction=request.instruction)
    prompts = (request.query, *documents)
    return pool.asked_for(request, RERANK, prompts, "documents", warnings, show, wish)


def _document(written: str | dict[str, Any], index: int) -> str:
    text = written if isinstance(written, str) else written.get("text")
    if not isinstance(text, str):
        where = f"documents[{index}]"
        raise RequestError(f"{where} must be a text, or an object with a text", param=where)
    return text


def read_score(body: Json, *, strict: bool) -> Asked:
    """Raises RequestError (400)."""
    aliases = {"instruct": "instruction", "queries": "text_1", "documents": "text_2"}
    body = _renamed(body, aliases)
    request, warnings = parse_request(pool.ScoreRequest, body, pool.UNSUPPORTED, strict=strict)
    first, second = _listed(request.text_1, "text_1"), _listed(request.text_2, "text_2")
    wish = PoolWish(method=request.method, n_queries=len(first), instruction=request.instruction)
    prompts = (*first, *second)
    return pool.asked_for(request, SCORE, prompts, "text_1", warnings, {}, wish)


def read_classify(body: Json, *, strict: bool) -> Asked:
    """Raises RequestError (400)."""
    request, warnings = parse_request(pool.ClassifyRequest, body, pool.UNSUPPORTED, strict=strict)
    prompts, wish = split_prompts(request.input, "input"), PoolWish(classifies=True)
    return pool.asked_for(request, CLASSIFY, prompts, "input", warnings, {}, wish)


def _listed(texts: str | list[str], name: str) -> tuple[str, ...]:
    if not texts:
        raise RequestError(f"{name} is empty: send at least one text", param=name)
    return (texts,) if isinstance(texts, str) else tuple(texts)


def _renamed(body: Json, aliases: Mapping[str, str]) -> Json:
    """Other names of the same fields. Raises RequestError (400) where both are sent."""
    for other, name in aliases.items():
        if other in body and name in body:
            raise RequestError(f"{other} and {name} are the same: leave one out", param=other)
    return {aliases.get(key, key): value for key, value in body.items()}


_RERANK = Dialect(
    RERANK,
    "rerank-",
    read_rerank,
    RerankGrammar,
    describe_error,
    False,
    pool.RerankRequest,
    answer=(Ranking, list[TeiRanked]),
)
_SCORE = Dialect(
    SCORE,
    "score-",
    read_score,
    ScoreGrammar,
    describe_error,
    False,
    pool.ScoreRequest,
    answer=(Scores,),
)
_CLASSIFY = Dialect(
    CLASSIFY,
    "classify-",
    read_classify,
    ClassifyGrammar,
    describe_error,
    False,
    pool.ClassifyRequest,
    answer=(Classes,),
)
RERANKS = ("/v1/rerank", "/rerank", "/v2/rerank", "/v1/reranking", "/reranking")
DIALECTS: Mapping[str, Dialect] = {
    **dict.fromkeys(RERANKS, _RERANK),
    **dict.fromkeys(("/v1/score", "/score"), _SCORE),
    **dict.fromkeys(("/v1/classify", "/classify"), _CLASSIFY),
}
"""By their paths."""
