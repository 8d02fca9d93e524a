"""The routes. Every route is an ``Endpoint``, so that none can be reached around authentication."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route, Router

from kvasir.serve import routes_generate, routes_info, routes_timeline, routes_tokens
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
}
POST: dict[str, Handler] = {
    "/v1/completions": routes_generate.post_completions,
    "/v1/chat/completions": routes_generate.post_chat_completions,
    "/tokenize": routes_tokens.post_tokenize,
    "/detokenize": routes_tokens.post_detokenize,
}


def build_app(service: Service) -> Router:
    """An ASGI application. What no route takes is answered with 404 or 405, after
    authentication."""
    routes: list[BaseRoute] = []
    for method, handlers, public in (
        ("GET", PUBLIC, True),
        ("GET", GET, False),
        ("POST", POST, False),
    ):
        for path, handler in handlers.items():
            routes.append(Route(path, Endpoint(service, handler, public=public), methods=[method]))
            other = Endpoint(service, routes_info.only(method), public=public)
            routes.append(Route(path, other))
    default = Endpoint(service, routes_info.not_found)
    return Router(routes, default=default, redirect_slashes=False)
