"""Vertex AI: POST /vertex, as Text Generation Inference has it there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import structs
from msgspec.structs import replace

from kvasir.core.errors import RequestError
from kvasir.serve.answer import Tally, Whole
from kvasir.serve.answers.peers import VertexAnswer
from kvasir.serve.asked import Asked
from kvasir.serve.dialects import tgi
from kvasir.serve.dialects.tgi import TGI, TgiGrammar
from kvasir.serve.protocol.parse import nested, parse_request
from kvasir.serve.resolved import Json

NAME = "vertex"
NO_PLACE = ("decoder_input_details", "details", "return_full_text", "top_n_tokens")
"""Parameters of what a prediction, which is a text, has no place for."""


class VertexInstance(msgspec.Struct, frozen=True, kw_only=True):
    inputs: str
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)


class VertexRequest(msgspec.Struct, frozen=True, kw_only=True):
    instances: list[dict[str, Any]]
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    """Of all of them."""
    model: str | None = None


def read(body: Json, *, strict: bool) -> Asked:
    """Raises RequestError (400)."""
    request, warnings = parse_request(VertexRequest, body, {}, strict=strict)
    texts: list[str] = []
    parameters: list[Json] = []
    for i, instance in enumerate(request.instances):
        with nested(f"instances[{i}]"):
            one, notes = parse_request(VertexInstance, instance, {}, strict=strict)
        texts.append(one.inputs)
        parameters.append({**request.parameters, **one.parameters})
        warnings += notes
    if not texts:
        raise RequestError("instances is empty: it needs at least one", param="instances")
    if any(each != parameters[0] for each in parameters):
        raise RequestError(
            "the instances have different parameters: send a request for each", param="instances"
        )
    given = next((name for name in NO_PLACE if parameters[0].get(name)), None)
    if given is not None:
        raise RequestError(
            f"{given}: a prediction is a text, leave it out", param=f"parameters.{given}"
        )
    first = {"inputs": texts[0], "parameters": parameters[0], "model": request.model}
    asked = tgi.read(first, strict=strict)
    more = {"prompts": tuple(texts), "warnings": warnings + asked.warnings}
    return structs.replace(asked, dialect=NAME, **more)


class VertexGrammar(TgiGrammar):
    def _answer(self, choices: Sequence[Whole], tally: Tally) -> Json:
        found: Json = {"predictions": [choice.text for choice in choices]}
        if self._resolved.warnings:
            found["warnings"] = self._resolved.warnings
        return found


VERTEX = replace(
    TGI,
    name=NAME,
    read=read,
    grammar=VertexGrammar,
    request=VertexRequest,
    answer=(VertexAnswer,),
    events=(),
)
