"""The OpenAPI document is valid, has every route, and follows the types of the requests."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openapi_spec_validator import validate

from kvasir.serve.app import ROUTES
from kvasir.serve.openapi import PARAMETER, RouteSpec, document
from kvasir.serve.protocol.chat import ChatRequest


@pytest.fixture(scope="module")
def told() -> Any:
    """As JSON says it."""
    return msgspec.json.decode(msgspec.json.encode(document(ROUTES)))


def test_it_is_valid(told: Any) -> None:
    validate(told)


def test_every_route_is_in_it(told: Any) -> None:
    found = {(method.upper(), path) for path, item in told["paths"].items() for method in item}
    assert found == {(route.method, PARAMETER.sub(r"{\1}", route.path)) for route in ROUTES}
    ids = [each["operationId"] for item in told["paths"].values() for each in item.values()]
    assert len(ids) == len(set(ids))


def test_requests_are_those_that_are_read(told: Any) -> None:
    schema = told["components"]["schemas"]["ChatRequest"]
    assert schema["properties"].keys() == set(ChatRequest.__struct_encode_fields__)
    assert "messages" in schema["required"]
    chat = told["paths"]["/v1/chat/completions"]["post"]
    content = chat["requestBody"]["content"]["application/json"]
    assert content["schema"] == {"$ref": "#/components/schemas/ChatRequest"}
    assert "text/event-stream" in chat["responses"]["200"]["content"]
    timeline = told["paths"]["/v1/requests/{request_id}/timeline"]["get"]
    assert [parameter["name"] for parameter in timeline["parameters"]] == ["request_id"]


LINKS = {
    "/v1/files": "file_id",
    "/v1/batches": "batch_id",
    "/v1/responses": "response_id",
    "/v1/chat/completions": "completion_id",
    "/v1/conversations": "conversation_id",
    "/v1/conversations/{conversation_id}/items": "item_id",
}


def test_what_is_made_is_linked_to_what_asks_for_it(told: Any) -> None:
    by_id = {
        each["operationId"]: (path, each)
        for path, item in told["paths"].items()
        for each in item.values()
    }
    linked = {}
    for path, item in told["paths"].items():
        links = item.get("post", {}).get("responses", {}).get("200", {}).get("links", {})
        for link in links.values():
            target, asked = by_id[link["operationId"]]
            wanted = {each["name"] for each in asked["parameters"] if each["in"] == "path"}
            assert link["parameters"].keys() == wanted and target.startswith(path + "/{")
            linked[path] = list(link["parameters"])[-1]
    assert linked == LINKS
    chats = told["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["links"]
    assert len(chats) == 4
    items = told["paths"]["/v1/conversations/{conversation_id}/items"]["post"]
    (found, *_) = items["responses"]["200"]["links"].values()
    assert found["parameters"] == {
        "conversation_id": "$request.path.conversation_id",
        "item_id": "$response.body#/data/0/id",
    }


def test_events_of_streams_are_in_it(told: Any) -> None:
    chat = told["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    event = chat["text/event-stream"]["schema"]["x-event"]
    names = [each["$ref"].rpartition("/")[2] for each in event["anyOf"]]
    assert names == ["ChatChunk", "ErrorAnswer"]
    ollama = told["paths"]["/api/chat"]["post"]["responses"]["200"]["content"]
    assert ollama.keys() == {"application/json", "application/x-ndjson"}
    counted = told["paths"]["/v1/responses/input_tokens"]["post"]["responses"]["200"]["content"]
    assert counted.keys() == {"application/json"}


def test_a_new_field_is_in_it_at_once() -> None:
    class Wanted(msgspec.Struct):
        brand_new: int = 3

    async def handle(service: Any, exchange: Any) -> None:
        """Says nothing."""

    found = document([RouteSpec("POST", "/new", handle, "any", request=Wanted)])
    validate(msgspec.json.decode(msgspec.json.encode(found)))
    field = found["components"]["schemas"]["Wanted"]["properties"]["brand_new"]
    assert field == {"type": "integer", "default": 3}
    assert found["paths"]["/new"]["post"]["summary"] == "Says nothing."
