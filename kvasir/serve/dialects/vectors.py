"""Vectors of texts: OpenAI's /v1/embeddings, vLLM's /pooling, and llama-server's /embedding."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence

import msgspec

from kvasir.core.errors import RequestError
from kvasir.serve.answer import Dialect, Tally, Whole
from kvasir.serve.answers.vectors import Embeddings, LlamaEmbedding, PooledList
from kvasir.serve.asked import Asked, PoolWish
from kvasir.serve.dialects.completions import split_prompts
from kvasir.serve.dialects.whole import WholeGrammar
from kvasir.serve.errors import describe_error
from kvasir.serve.parts import HOLE, Parts, filled, listed
from kvasir.serve.protocol import pool
from kvasir.serve.protocol.parse import parse_request
from kvasir.serve.resolved import Json
from kvasir.serve.slices import Work
from kvasir.text.vectors import Floats, finished

EMBEDDINGS, POOLING = "embeddings", "pooling"
LLAMA = "llama_embedding"
encode = msgspec.json.Encoder().encode


def read_embeddings(body: Json, *, strict: bool) -> Asked:
    """Raises RequestError (400)."""
    return _read(EMBEDDINGS, body, strict=strict, normalizes=True)


def read_pooling(body: Json, *, strict: bool) -> Asked:
    return _read(POOLING, body, strict=strict, normalizes=False)


def _read(dialect: str, body: Json, *, strict: bool, normalizes: bool) -> Asked:
    kind = pool.EmbeddingRequest
    request, warnings = parse_request(kind, body, pool.UNSUPPORTED, strict=strict)
    normalize = normalizes if request.normalize is None else request.normalize
    show: Json = {"normalize": normalize, "dimensions": request.dimensions}
    show["base64"] = request.encoding_format == "base64"
    prompts = split_prompts(request.input, "input")
    wish = PoolWish(dimensions=request.dimensions, prompt_name=request.prompt_name)
    return pool.asked_for(request, dialect, prompts, "input", warnings, show, wish)


class VectorGrammar(WholeGrammar):
    """A list with an item for each text."""

    kind = "embedding"
    field = "embedding"

    def whole(self, choices: Sequence[Whole], tally: Tally) -> Work[Parts]:
        found = []
        for index, choice in enumerate(choices):
            found.append(self._item(index, self._finished(choice)))
            yield
        return self._answer(listed(found), tally)

    def _finished(self, choice: Whole) -> Floats:
        show = self._resolved.show
        return finished(choice.vector, show.get("dimensions"), normalize=show["normalize"])

    def _item(self, index: int, vector: Floats) -> Parts:
        value = {"object": self.kind, "index": index, self.field: HOLE}
        return filled(value, [self._numbers(vector)])

    def _numbers(self, vector: Floats) -> bytes:
        if self._resolved.show.get("base64"):
            return b'"%b"' % b64encode(vector.tobytes())
        return encode(vector.tolist())

    def _answer(self, items: Parts, tally: Tally) -> Parts:
        return filled(self._wrapped({"data": HOLE}, tally), items)


class PoolingGrammar(VectorGrammar):
    kind = "pooling"
    field = "data"


def read_llama(body: Json, *, strict: bool) -> Asked:
    """Raises RequestError (400)."""
    if "input" in body and "content" not in body:
        body = {**body, "content": body["input"]}
        del body["input"]
    kind = pool.LlamaEmbeddingRequest
    request, warnings = parse_request(kind, body, pool.UNSUPPORTED, strict=strict)
    if request.embd_normalize not in (-1, 2):
        raise RequestError(
            f"embd_normalize {request.embd_normalize} is not supported: use 2, the Euclidean "
            "length, or -1 for none",
            param="embd_normalize",
        )
    show: Json = {"normalize": request.embd_normalize == 2}
    prompts = split_prompts(request.content, "content")
    return pool.asked_for(request, LLAMA, prompts, "content", warnings, show, PoolWish())


class LlamaGrammar(VectorGrammar):
    """A bare list; each vector is a list of one, as of one sequence."""

    def _item(self, index: int, vector: Floats) -> Parts:
        return filled({"index": index, "embedding": [HOLE]}, [encode(vector.tolist())])

    def _answer(self, items: Parts, tally: Tally) -> Parts:
        return items


_EMBEDDINGS = Dialect(
    EMBEDDINGS,
    "embd-",
    read_embeddings,
    VectorGrammar,
    describe_error,
    request=pool.EmbeddingRequest,
    answer=(Embeddings,),
)
_POOLING = Dialect(
    POOLING,
    "pool-",
    read_pooling,
    PoolingGrammar,
    describe_error,
    False,
    pool.EmbeddingRequest,
    answer=(PooledList,),
)
_LLAMA = Dialect(
    LLAMA,
    "embd-",
    read_llama,
    LlamaGrammar,
    describe_error,
    False,
    pool.LlamaEmbeddingRequest,
    answer=(list[LlamaEmbedding],),
)
DIALECTS: Mapping[str, Dialect] = {
    "/v1/embeddings": _EMBEDDINGS,
    "/pooling": _POOLING,
    "/embedding": _LLAMA,
}
"""By their paths."""
