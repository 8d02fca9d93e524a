"""The routes. Every route is an ``Endpoint``, so that none can be reached around authentication."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.routing import BaseRoute, Route, Router

from kvasir.serve import (
    routes_admin,
    routes_batches,
    routes_chats,
    routes_control,
    routes_conversations,
    routes_dashboard,
    routes_files,
    routes_info,
    routes_keys,
    routes_library,
    routes_ollama,
    routes_page,
    routes_peers,
    routes_responses,
    routes_sessions,
    routes_timeline,
    routes_tokens,
    routes_web,
    routes_why,
)
from kvasir.serve.answer import Dialect
from kvasir.serve.answers import ollama, openai, own, page, peers, stored
from kvasir.serve.answers.events import ChatChunk
from kvasir.serve.answers.response_events import RESPONSE_EVENTS
from kvasir.serve.answers.responses import ITEMS, ItemList, Response
from kvasir.serve.dialects.ollama import error_of
from kvasir.serve.dialects.table import COUNTS, GENERATES, RENDERS
from kvasir.serve.endpoint import Access, Endpoint, Handler
from kvasir.serve.openapi import EVENTS, LINES, RouteSpec, described
from kvasir.serve.planes import Plane, admin_plane, admin_socket_plane, client_plane
from kvasir.serve.protocol.tokens import DetokenizeRequest, TokenizeRequest
from kvasir.serve.routes_chats import MetadataRequest
from kvasir.serve.routes_conversations import ConversationRequest, ItemsRequest
from kvasir.serve.routes_generate import count, generate, render
from kvasir.serve.routes_ollama import OllamaShow
from kvasir.serve.service import Service
from kvasir.serve.state.batches import StoredBatch
from kvasir.serve.state.conversations import StoredConversation
from kvasir.serve.state.files import File

RESPONSE = "/v1/responses/{response_id}"
COMPACT = "/v1/responses/compact"
"""Of Open Responses, and not here: no response has this id, so that POST is 404 and not 405."""
BYTES, TEXT = "application/octet-stream", "text/plain"


def _get(path: str, handler: Handler, access: Access, *answer: Any, **more: Any) -> RouteSpec:
    return RouteSpec("GET", path, handler, access, answer=answer, **more)


def _post(path: str, handler: Handler, access: Access, *answer: Any, **more: Any) -> RouteSpec:
    return RouteSpec("POST", path, handler, access, answer=answer, **more)


def _delete(path: str, handler: Handler, *answer: Any) -> RouteSpec:
    return RouteSpec("DELETE", path, handler, "state", answer=answer)


def _public(path: str, handler: Handler, answer: Any) -> RouteSpec:
    return RouteSpec("GET", path, handler, "public", answer=(answer,), is_health=True)


def _spoken(path: str, handler: Handler, dialect: Dialect, *answer: Any) -> RouteSpec:
    """Takes a request in ``dialect``."""
    said = {"form": dialect.form, "request": dialect.request}
    return _post(path, handler, "inference", *answer, **said)


def _generates(path: str, dialect: Dialect) -> RouteSpec:
    """Answers it, as a stream if that is asked for."""
    said = _spoken(path, generate(dialect), dialect, *dialect.answer)
    media = LINES if dialect.streams_lines else EVENTS
    return said._replace(events=dialect.events, stream_media=media)


CHATS = "/v1/chat/completions"
CHAT = f"{CHATS}/{{completion_id}}"
CONVERSATION = "/v1/conversations/{conversation_id}"
ITEM = f"{CONVERSATION}/items/{{item_id}}"
STATE = (
    _get(CHATS, routes_chats.get_chats, "state", stored.ChatList),
    _get(CHAT, routes_chats.get_chat, "state", openai.ChatAnswer, events=(ChatChunk,)),
    _post(CHAT, routes_chats.post_chat, "state", openai.ChatAnswer, request=MetadataRequest),
    _delete(CHAT, routes_chats.delete_chat, own.Deleted),
    _get(f"{CHAT}/messages", routes_chats.get_chat_messages, "state", stored.MessageList),
    _post(
        "/v1/conversations",
        routes_conversations.post_conversation,
        "state",
        StoredConversation,
        request=ConversationRequest,
    ),
    _get(CONVERSATION, routes_conversations.get_conversation, "state", StoredConversation),
    _post(
        CONVERSATION,
        routes_conversations.update_conversation,
        "state",
        StoredConversation,
        request=MetadataRequest,
    ),
    _delete(CONVERSATION, routes_conversations.delete_conversation, own.Deleted),
    _get(f"{CONVERSATION}/items", routes_conversations.get_items, "state", ItemList),
    _post(
        f"{CONVERSATION}/items",
        routes_conversations.post_items,
        "state",
        ItemList,
        request=ItemsRequest,
    ),
    _get(ITEM, routes_conversations.get_item, "state", *ITEMS),
    _delete(ITEM, routes_conversations.delete_item, StoredConversation),
)
"""Behind those whose paths they would take."""
ROUTES = described(
    (
        _public("/health", routes_info.get_health, own.Health),
        _public("/v1/health", routes_info.get_health, own.Health),
        _public("/startup", routes_info.get_startup, own.StateAnswer),
        _public("/live", routes_info.get_live, own.StateAnswer),
        _public("/ready", routes_info.get_ready, own.StateAnswer),
        _get("/metrics", routes_info.get_metrics, "metrics", media=(TEXT,)),
        _get("/version", routes_info.get_version, "any", own.Version),
        _get("/v1/models", routes_info.get_models, "inference", openai.ModelList),
        _get("/v1/models/{model:path}", routes_info.get_model, "inference", openai.ModelCard),
        _post(
            "/v1/chat/completions/control",
            routes_control.post_control,
            "inference",
            own.Controlled,
            request=routes_control.ControlRequest,
        ),
        _get(
            "/v1/requests/{request_id}/timeline",
            routes_timeline.get_request_timeline,
            "inference",
            own.RequestTimeline,
        ),
        _get(
            "/v1/requests/{request_id}/why",
            routes_why.get_request_why,
            "inference",
            page.RequestWhy,
        ),
        _get("/v1/page", routes_page.get_page, "inference", page.PageFacts),
        _get("/v1/dashboard", routes_dashboard.get_dashboard, "metrics", page.Dashboard),
        _get(
            "/v1/dashboard/history", routes_dashboard.get_history, "metrics", page.DashboardHistory
        ),
        _get(
            "/v1/dashboard/prefixes",
            routes_dashboard.get_prefixes,
            "metrics",
            page.DashboardPrefixes,
        ),
        _get("/v1/timeline", routes_timeline.get_timeline, "inference", own.StepTimeline),
        _get("/v1/kv_cache", routes_timeline.get_kv_cache, "inference", own.KvCache),
        _get("/api/tags", routes_ollama.get_tags, "inference", ollama.Tags),
        _get("/api/ps", routes_ollama.get_ps, "inference", ollama.Loaded),
        _get("/api/version", routes_ollama.get_api_version, "any", own.Version),
        _post(
            "/api/show",
            routes_ollama.post_show,
            "inference",
            ollama.Shown,
            form=error_of,
            request=OllamaShow,
        ),
        _post(
            "/tokenize",
            routes_tokens.post_tokenize,
            "inference",
            own.Tokenized,
            request=TokenizeRequest,
        ),
        _post(
            "/detokenize",
            routes_tokens.post_detokenize,
            "inference",
            own.Detokenized,
            request=DetokenizeRequest,
        ),
        _post(
            "/open_session",
            routes_sessions.post_open_session,
            "inference",
            str,
            request=routes_sessions.SessionToOpen,
        ),
        _post(
            "/close_session",
            routes_sessions.post_close_session,
            "inference",
            own.Closed,
            request=routes_sessions.SessionToClose,
        ),
        _get("/v1/files", routes_files.get_files, "state", own.FileList),
        _post("/v1/files", routes_files.post_file, "state", File, form_data=routes_files.FORM),
        _get("/v1/files/{file_id}", routes_files.get_file, "state", File),
        _delete("/v1/files/{file_id}", routes_files.delete_file, own.Deleted),
        _get("/v1/files/{file_id}/content", routes_files.get_content, "state", media=(BYTES,)),
        _get("/v1/batches", routes_batches.get_batches, "state", own.BatchList),
        _post(
            "/v1/batches",
            routes_batches.post_batch,
            "state",
            StoredBatch,
            request=routes_batches.BatchRequest,
        ),
        _get("/v1/batches/{batch_id}", routes_batches.get_batch, "state", StoredBatch),
        _post("/v1/batches/{batch_id}/cancel", routes_batches.post_cancel, "state", StoredBatch),
        _get(RESPONSE, routes_responses.get_response, "state", Response, events=RESPONSE_EVENTS),
        _delete(RESPONSE, routes_responses.delete_response, own.Deleted),
        _post(f"{RESPONSE}/cancel", routes_responses.post_response_cancel, "state", Response),
        _get(f"{RESPONSE}/input_items", routes_responses.get_input_items, "state", ItemList),
        *(_generates(path, said) for path, said in GENERATES.items()),
        *(_public(path, *health) for path, health in routes_peers.HEALTH.items()),
        *(
            _get(path, handler, "inference", answer, is_health=path.endswith("/ready"))
            for path, (handler, answer) in routes_peers.GET.items()
        ),
        _post(
            "/apply-template",
            routes_peers.post_apply_template,
            "inference",
            peers.RenderedPrompt,
            request=routes_peers.TemplateRequest,
        ),
        *(_spoken(path, render(said), said, openai.Rendered) for path, said in RENDERS.items()),
        *(_spoken(path, count(said), said, openai.InputTokens) for path, said in COUNTS.items()),
        *STATE,
    )
)
"""What clients may ask for, and which scope their key needs."""

ADMIN_ROUTES = (
    RouteSpec("POST", "/reset_prefix_cache", routes_admin.post_reset_prefix_cache, "admin"),
    RouteSpec("POST", "/flush_cache", routes_admin.post_reset_prefix_cache, "admin"),
    RouteSpec("POST", "/reset_mm_cache", routes_admin.post_reset_mm_cache, "admin"),
    RouteSpec("POST", "/engine/swap", routes_admin.post_engine_swap, "admin"),
    RouteSpec("POST", "/sleep", routes_admin.post_sleep, "admin"),
    RouteSpec("POST", "/wake_up", routes_admin.post_wake_up, "admin"),
    RouteSpec("GET", "/is_sleeping", routes_admin.get_is_sleeping, "admin"),
    RouteSpec("POST", "/pause", routes_admin.post_pause, "admin"),
    RouteSpec("POST", "/resume", routes_admin.post_resume, "admin"),
    RouteSpec("GET", "/is_paused", routes_admin.get_is_paused, "admin"),
    RouteSpec("POST", "/abort_requests", routes_admin.post_abort_requests, "admin"),
    RouteSpec("POST", "/api/pull", routes_library.post_pull, "admin", form=error_of),
    RouteSpec("POST", "/api/create", routes_library.post_create, "admin", form=error_of),
    RouteSpec("POST", "/api/copy", routes_library.post_copy, "admin", form=error_of),
    RouteSpec("DELETE", "/api/delete", routes_library.delete_model, "admin", form=error_of),
    RouteSpec("GET", "/keys", routes_keys.get_keys, "admin"),
    RouteSpec("POST", "/keys", routes_keys.post_key, "admin"),
    RouteSpec("POST", "/keys/{key_id}/rotate", routes_keys.post_rotation, "admin"),
    RouteSpec("DELETE", "/keys/{key_id}", routes_keys.delete_key, "admin"),
)
"""What only the operator may ask for, elsewhere: on a port or a socket of its own."""


def build_app(service: Service) -> Router:
    """What listens for clients, as an ASGI application."""
    plane = client_plane(service)
    none = Endpoint(service, routes_info.not_found, plane, "any")
    compact = Route(COMPACT, none, methods=["POST"])
    if not service.options.web:
        return _router(ROUTES, service, plane, compact)
    to_page = Endpoint(service, routes_web.to_page, plane, "public")
    home = routes_web.BrowserRoute("/", to_page, methods=["GET"])
    return _router((*ROUTES, *routes_web.PageRoutes().specs()), service, plane, home, compact)


def build_admin(service: Service) -> Router:
    """What listens on the admin port."""
    return _router(ADMIN_ROUTES, service, admin_plane(service))


def build_admin_socket(service: Service) -> Router:
    """What listens on the admin socket."""
    return _router(ADMIN_ROUTES, service, admin_socket_plane(service))


def _router(
    specs: Sequence[RouteSpec], service: Service, plane: Plane, *before: BaseRoute
) -> Router:
    """What no route takes is answered with 404 or 405, after authentication. ``before``: routes
    that are looked at first."""
    endpoint = partial(Endpoint, service, plane=plane)
    routes: list[BaseRoute] = [
        *before,
        *(
            Route(
                spec.path,
                endpoint(spec.handler, access=spec.access, form=spec.form),
                methods=[spec.method],
            )
            for spec in specs
        ),
    ]
    for path in dict.fromkeys(spec.path for spec in specs):
        own = [spec for spec in specs if spec.path == path]
        access: Access = "public" if own[0].access == "public" else "any"
        only = routes_info.only(*(spec.method for spec in own))
        routes.append(Route(path, endpoint(only, access=access, form=own[0].form)))
    default = endpoint(routes_info.not_found, access="any")
    return Router(routes, default=default, redirect_slashes=False)
