"""Ollama: POST /api/embed and, its older form, /api/embeddings."""

from __future__ import annotations

import time
from collections.abc import Mapping

from msgspec.structs import replace

from kvasir.serve.answer import Dialect, Tally
from kvasir.serve.answers.ollama import EmbedAnswer, EmbeddingsAnswer
from kvasir.serve.asked import Asked, PoolWish
from kvasir.serve.dialects.completions import split_prompts
from kvasir.serve.dialects.ollama import check_alive, error_of, read_options
from kvasir.serve.dialects.single import encode
from kvasir.serve.dialects.vectors import VectorGrammar
from kvasir.serve.parts import HOLE, Parts, filled
from kvasir.serve.protocol import pool
from kvasir.serve.protocol.parse import parse_request
from kvasir.serve.resolved import Json
from kvasir.text.vectors import Floats
from kvasir.validation.warn import bounded, escaped, warned

EMBED, EMBEDDINGS = "ollama.embed", "ollama.embeddings"


def read_ollama(body: Json, *, strict: bool) -> Asked:
    """Raises RequestError (400)."""
    kind = pool.OllamaEmbedRequest
    request, warnings = parse_request(kind, body, pool.UNSUPPORTED, strict=strict)
    show: Json = {"normalize": True, "dimensions": request.dimensions}
    prompts, wish = split_prompts(request.input, "input"), PoolWish(dimensions=request.dimensions)
    asked = pool.asked_for(request, EMBED, prompts, "input", warnings, show, wish)
    return _with_options(asked, request, strict=strict)


class OllamaEmbedGrammar(VectorGrammar):
    """Times are nanoseconds."""

    def _item(self, index: int, vector: Floats) -> Parts:
        return [encode(vector.tolist())]

    def _answer(self, items: Parts, tally: Tally) -> Parts:
        warnings = self._resolved.warnings
        told = {
            "model": self._resolved.model,
            "embeddings": HOLE,
            "total_duration": int(1e9 * (time.monotonic() - tally.arrived)),
            "load_duration": 0,
            "prompt_eval_count": tally.n_prompt,
            **({"warnings": warnings} if warnings else {}),
        }
        return filled(told, items)


def read_ollama_old(body: Json, *, strict: bool) -> Asked:
    """Raises RequestError (400)."""
    kind = pool.OllamaEmbeddingsRequest
    request, warnings = parse_request(kind, body, pool.UNSUPPORTED, strict=strict)
    prompts, show = (request.prompt,), {"normalize": False}
    asked = pool.asked_for(request, EMBEDDINGS, prompts, "prompt", warnings, show, PoolWish())
    return _with_options(asked, request, strict=strict)


def _with_options(asked: Asked, request: pool.OllamaFields, *, strict: bool) -> Asked:
    """Of a vector only the room means anything; a name may say that it is the latest."""
    options, _ = read_options(request.options, strict=strict)
    others = [key for key in request.options if key != "num_ctx"]
    ignored = bounded(others, lambda key: f"options.{escaped(key)} means nothing to a vector")
    check_alive(request.keep_alive)
    model = request.model and request.model.removesuffix(":latest")
    return replace(asked, model=model, room=options.num_ctx, warnings=asked.warnings + ignored)


class OllamaEmbeddingsGrammar(VectorGrammar):
    """One vector, as the model gives it."""

    def _item(self, index: int, vector: Floats) -> Parts:
        return [encode(vector.tolist())]

    def _answer(self, items: Parts, tally: Tally) -> Parts:
        return filled({"embedding": HOLE, **warned(self._resolved.warnings)}, items[1:-1])


_EMBED = Dialect(
    EMBED,
    "",
    read_ollama,
    OllamaEmbedGrammar,
    error_of,
    request=pool.OllamaEmbedRequest,
    answer=(EmbedAnswer,),
)
_EMBEDDINGS = Dialect(
    EMBEDDINGS,
    "",
    read_ollama_old,
    OllamaEmbeddingsGrammar,
    error_of,
    request=pool.OllamaEmbeddingsRequest,
    answer=(EmbeddingsAnswer,),
)
DIALECTS: Mapping[str, Dialect] = {"/api/embed": _EMBED, "/api/embeddings": _EMBEDDINGS}
"""By their paths."""
