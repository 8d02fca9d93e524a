"""The routes. Every route is an ``Endpoint``, so that none can be reached around authentication."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.routing import BaseRoute, Route, Router

from kvasir.serve import routes_admin, routes_generate, routes_info, routes_timeline, routes_tokens
from kvasir.serve.endpoint import Endpoint, Handler
from kvasir.serve.service import Service

PUBLIC: dict[str, Handler] = {
    "/health": routes_info.get_health,
    "/live": routes_info.get_live,
    "/ready": routes_info.get_ready,
}
GET: dict[str, Handler] = {
    "/metrics": routes_info.get_metrics,
    "/version": routes_info.get_version,
    "/v1/models": routes_info.get_models,
    "/v1/models/{model:path}": routes_info.get_model,
    "/v1/requests/{request_id}/timeline": routes_timeline.get_request_timeline,
    "/v1/timeline": routes_timeline.get_timeline,
    "/v1/kv_cache": routes_timeline.get_kv_cache,
}
POST: dict[str, Handler] = {
    "/v1/completions": routes_generate.post_completions,
    "/v1/chat/completions": routes_generate.post_chat_completions,
    "/tokenize": routes_tokens.post_tokenize,
    "/detokenize": routes_tokens.post_detokenize,
}


ADMIN_POST: dict[str, Handler] = {"/reset_prefix_cache": routes_admin.post_reset_prefix_cache}


def build_app(service: Service) -> Router:
    """What clients may ask for, as an ASGI application."""
    key = service.options.api_key
    routes = [
        *_routes(service, "GET", PUBLIC, None),
        *_routes(service, "GET", GET, key),
        *_routes(service, "POST", POST, key),
    ]
    return _router(service, routes, key)


def build_admin(service: Service) -> Router:
    """What only the operator may ask for: on a port of its own, with a key of its own."""
    key = service.options.admin_key
    return _router(service, _routes(service, "POST", ADMIN_POST, key), key)


def _routes(
    service: Service, method: str, handlers: Mapping[str, Handler], key: str | None
) -> list[BaseRoute]:
    """Per path its handler, and the answer to other methods."""
    only = routes_info.only(method)
    return [
        route
        for path, handler in handlers.items()
        for route in (
            Route(path, Endpoint(service, handler, key), methods=[method]),
            Route(path, Endpoint(service, only, key)),
        )
    ]


def _router(service: Service, routes: list[BaseRoute], key: str | None) -> Router:
    """What no route takes is answered with 404 or 405, after authentication."""
    default = Endpoint(service, routes_info.not_found, key)
    return Router(routes, default=default, redirect_slashes=False)
