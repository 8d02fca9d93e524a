"""What the server can be asked and what it answers, for people and for programs: made from the
table of routes, the types that requests are read into, and those of answers. OpenAPI 3.1."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_type_hints

import msgspec

from kvasir import __version__
from kvasir.serve.answer import AnswerTypes, Form
from kvasir.serve.answers.errors import ErrorAnswer
from kvasir.serve.answers.own import OpenApiDocument, Routes
from kvasir.serve.endpoint import Access, Handler
from kvasir.serve.errors import describe_error
from kvasir.serve.exchange import Exchange
from kvasir.serve.resolved import Json
from kvasir.serve.service import Service

PARAMETER = re.compile(r"\{([a-z_]+)(:path)?\}")
EVENTS, LINES = "text/event-stream", "application/x-ndjson"
REFERENCE = "#/components/schemas/{name}"
NUMBER, TEXT = {"type": "integer", "minimum": 1}, {"type": "string", "minLength": 1}
ORDER = {"type": "string", "enum": ["asc", "desc"]}
PAGED: Json = {"after": TEXT, "limit": NUMBER}
INCLUDE: Json = {"include": {"type": "array", "items": TEXT}}
RESUMED: Json = {
    "stream": {"type": "boolean"},
    "starting_after": {"type": "integer", "minimum": 0},
}
METADATA: Json = {"type": "object", "additionalProperties": {"type": "string"}}
QUERIES: dict[str, Json] = {
    "/v1/timeline": {"steps": NUMBER},
    "/v1/files": {**PAGED, "order": ORDER, "purpose": TEXT},
    "/v1/batches": PAGED,
    "/v1/chat/completions": {**PAGED, "order": ORDER, "model": TEXT, "metadata": METADATA},
    "/v1/chat/completions/{completion_id}": RESUMED,
    "/v1/chat/completions/{completion_id}/messages": {**PAGED, "order": ORDER},
    "/v1/responses/{response_id}": RESUMED,
    "/v1/responses/{response_id}/input_items": {**PAGED, "order": ORDER, **INCLUDE},
    "/v1/conversations/{conversation_id}/items": {**PAGED, "order": ORDER, **INCLUDE},
    "/v1/conversations/{conversation_id}/items/{item_id}": INCLUDE,
}
"""What may stand in a target that is read, by its path."""
ANY: Json = {}
Schemas = Mapping[Any, Json]
"""Of types."""


class RouteSpec(NamedTuple):
    method: str
    path: str
    handler: Handler
    access: Access
    form: Form = describe_error
    """Of its errors."""
    request: type[msgspec.Struct] | None = None
    """What its body is read into, where that is JSON."""
    answer: AnswerTypes = ()
    """Of its JSON where all is well."""
    is_health: bool = False
    """Whether a 503 may say the same as a 200."""
    events: AnswerTypes = ()
    """Of a stream, beside its errors; none where there are no streams."""
    stream_media: str = EVENTS
    media: tuple[str, ...] = ()
    """Types of other answers that are no JSON."""
    form_data: Json | None = None
    """Schema of its body, where that is multipart/form-data."""


def described(specs: Sequence[RouteSpec]) -> tuple[RouteSpec, ...]:
    """``specs``, and two routes that tell of all."""
    names = {f"{spec.method} {spec.path}": spec.access for spec in specs}
    told: list[Json] = []

    async def get_routes(service: Service, exchange: Exchange) -> None:
        """Every route, and the scope that its key needs."""
        await exchange.send_json({"server": "kvasir", "version": __version__, "routes": names})

    async def get_document(service: Service, exchange: Exchange) -> None:
        """This document."""
        if not told:
            told.append(document(whole))
        await exchange.send_json(told[0])

    whole = (
        *specs,
        RouteSpec("GET", "/", get_routes, "any", answer=(Routes,)),
        RouteSpec("GET", "/openapi.json", get_document, "any", answer=(OpenApiDocument,)),
    )
    return whole


def document(specs: Sequence[RouteSpec]) -> Json:
    asked = dict.fromkeys(spec.request for spec in specs if spec.request is not None)
    _, requests = msgspec.json.schema_components(list(asked), ref_template=REFERENCE)
    kinds = [(*spec.answer, *spec.events, *_errors(spec)) for spec in specs]
    told = list(dict.fromkeys(kind for some in kinds for kind in some))
    found, answers = msgspec.json.schema_components(told, ref_template=REFERENCE)
    schemas = dict(zip(told, found, strict=True))
    paths: dict[str, Json] = {}
    for spec in specs:
        path = PARAMETER.sub(r"{\1}", spec.path)
        paths.setdefault(path, {})[spec.method.lower()] = _operation(spec, schemas, specs)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Kvasir", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**requests, **{name: _closed(each) for name, each in answers.items()}},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _closed(schema: Json) -> Json:
    """An answer has no other fields than those that are said."""
    is_open = "properties" in schema and "additionalProperties" not in schema
    return {**schema, "additionalProperties": False} if is_open else schema


def _errors(spec: RouteSpec) -> AnswerTypes:
    """What comes instead of an answer; where a connection is refused before its path is known, or a
    server is unwell, that is not of the route's own form."""
    own = get_type_hints(spec.form)["return"]
    return tuple(dict.fromkeys((own, ErrorAnswer)))


def _operation(spec: RouteSpec, schemas: Schemas, specs: Sequence[RouteSpec]) -> Json:
    found: Json = {
        "summary": (spec.handler.__doc__ or "").strip().partition("\n")[0] or spec.path,
        "operationId": _operation_id(spec),
        "parameters": [*_of_path(spec), *_of_query(spec)],
        "responses": _responses(spec, schemas),
    }
    if links := _links(spec, specs):
        found["responses"]["200"]["links"] = links
    if spec.access != "public":
        found["security"] = [{"key": []}, {}]
    if spec.request is not None:
        schema = {"$ref": f"#/components/schemas/{spec.request.__name__}"}
        content = {"application/json": {"schema": schema}}
        found["requestBody"] = {"required": True, "content": content}
    if spec.form_data is not None:
        content = {"multipart/form-data": {"schema": spec.form_data}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _operation_id(spec: RouteSpec) -> str:
    return f"{spec.method.lower()}{re.sub('[^a-z0-9]+', '_', spec.path)}"


def _links(spec: RouteSpec, specs: Sequence[RouteSpec]) -> Json:
    """What may be asked of that which a POST has made: operations that take its id."""
    is_list = bool(spec.answer) and "data" in getattr(spec.answer[0], "__annotations__", ())
    own = "$response.body#/data/0/id" if is_list else "$response.body#/id"
    known = {match[1]: f"$request.path.{match[1]}" for match in PARAMETER.finditer(spec.path)}
    found: Json = {}
    for other in specs if spec.method == "POST" else ():
        names = [match[1] for match in PARAMETER.finditer(other.path)]
        is_below = other.path.startswith(f"{spec.path}/{{") and len(names) == len(known) + 1
        if is_below:
            name = _operation_id(other)
            found[name] = {"operationId": name, "parameters": {**known, names[-1]: own}}
    return found


def _of_path(spec: RouteSpec) -> list[Json]:
    names = [match[1] for match in PARAMETER.finditer(spec.path)]
    return [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in names]


def _of_query(spec: RouteSpec) -> list[Json]:
    known = QUERIES.get(spec.path, {}) if spec.method == "GET" else {}
    return [
        {
            "name": name,
            "in": "query",
            "schema": schema,
            **({"style": "deepObject", "explode": True} if schema["type"] == "object" else {}),
        }
        for name, schema in known.items()
    ]


def _responses(spec: RouteSpec, schemas: Schemas) -> Json:
    """An error has a status that says so, and is JSON."""
    answer = _any_of([schemas[kind] for kind in spec.answer])
    kinds: dict[str, Any] = {"application/json": {"schema": answer}} if spec.answer else {}
    kinds |= {kind: {"schema": ANY} for kind in spec.media}
    errors = [schemas[kind] for kind in _errors(spec)]
    if spec.events:
        event = _any_of([*(schemas[kind] for kind in spec.events), *errors[:1]])
        kinds[spec.stream_media] = {"schema": _stream(spec.stream_media, event)}
    found: Json = {"200": {"description": "the answer", "content": kinds}}
    if spec.is_health:
        unwell = {"application/json": {"schema": _any_of([answer, *errors])}}
        found["503"] = {"description": "the same, where all is not well", "content": unwell}
    error = {"application/json": {"schema": _any_of(errors)}}
    return {**found, "default": {"description": "an error", "content": error}}


def _stream(media: str, event: Json) -> Json:
    """The whole is text; what it holds is one JSON value after another, each of them ``event``:
    what follows ``data:``, or a line. OpenAPI 3.1 has no words of its own for that, and those who
    check do not agree whether a schema is that of the text or of its parts."""
    return {"contentMediaType": media, "x-event": event}


def _any_of(schemas: Sequence[Json]) -> Json:
    return schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
