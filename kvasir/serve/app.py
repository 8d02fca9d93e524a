"""The routes. Every route is an ``Endpoint``, so that none can be reached around authentication."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from starlette.routing import BaseRoute, Route, Router

from kvasir.serve import routes_admin, routes_generate, routes_info, routes_timeline, routes_tokens
from kvasir.serve.endpoint import Endpoint, Handler
from kvasir.serve.origins import admin_guards, guards
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
    public = partial(Endpoint, service, key=None)
    closed = partial(Endpoint, service, key=service.options.api_key, guards=guards(service.options))
    routes = [
        *_routes("GET", PUBLIC, public),
        *_routes("GET", GET, closed),
        *_routes("POST", POST, closed),
    ]
    return _router(routes, closed)


def build_admin(service: Service) -> Router:
    """What only the operator may ask for: on a port of its own, with a key of its own."""
    options = service.options
    closed = partial(Endpoint, service, key=options.admin_key, guards=admin_guards(options))
    return _router(_routes("POST", ADMIN_POST, closed), closed)


def _routes(
    method: str, handlers: Mapping[str, Handler], endpoint: Callable[[Handler], Endpoint]
) -> list[BaseRoute]:
    """Per path its handler, and the answer to other methods."""
    only = routes_info.only(method)
    return [
        route
        for path, handler in handlers.items()
        for route in (
            Route(path, endpoint(handler), methods=[method]),
            Route(path, endpoint(only)),
        )
    ]


def _router(routes: list[BaseRoute], endpoint: Callable[[Handler], Endpoint]) -> Router:
    """What no route takes is answered with 404 or 405, after authentication."""
    default = endpoint(routes_info.not_found)
    return Router(routes, default=default, redirect_slashes=False)
