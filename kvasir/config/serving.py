"""What the user may say about the HTTP server; declared like ``EngineOptions``."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir.config.options import option
from kvasir.core.errors import ConfigError

MAX_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Sizes are bytes, times seconds. The address is private by default: vLLM's default is
    0.0.0.0."""

    host: str = option(
        "127.0.0.1", "text", "Address to listen on; 0.0.0.0 opens the server to the network."
    )
    port: int = option(
        8000, "int", "Port to listen on; 0 takes a free one.", minimum=0, maximum=MAX_PORT
    )
    uds: str | None = option(None, "text", "Listen on this Unix socket instead of a port.")
    api_key: str | None = option(
        None, "text", "Clients must send it as a bearer token; health routes stay open."
    )
    allowed_hosts: str | None = option(
        None,
        "text",
        "Host names, comma-separated, that requests may be sent to, beside addresses and "
        "localhost; * is any. Default: any, but none on a loopback address without api_key.",
    )
    admin_port: int | None = option(
        None,
        "int",
        "Port of the admin routes, 0 takes a free one; default: there are no admin routes.",
        minimum=0,
        maximum=MAX_PORT,
    )
    admin_host: str = option("127.0.0.1", "text", "Address that the admin port listens on.")
    admin_key: str | None = option(
        None,
        "text",
        "Bearer token of the admin routes, another one than api_key; only a loopback address does "
        "without.",
    )
    strict: bool = option(
        False, "flag", "Refuse requests with unknown fields instead of warning in the response."
    )
    shutdown_timeout: int = option(
        30, "int", "Seconds that running requests get to finish after SIGTERM.", minimum=0
    )
    max_body_bytes: int = option(16 * 2**20, "int", "Largest request body.")
    max_body_memory: int = option(
        128 * 2**20,
        "int",
        "Bytes of all request bodies above 64 KiB that have arrived and are not parsed; with more, "
        "who has sent for longest gets a 503.",
    )
    max_header_bytes: int = option(32 * 2**10, "int", "Largest request line and headers together.")
    max_headers: int = option(100, "int", "Most headers of one request.")
    header_timeout: int = option(10, "int", "Seconds for the request line and headers to arrive.")
    body_timeout: int = option(
        10,
        "int",
        "Seconds that a request body may fall behind body_rate, rest, or arrive where others need "
        "its memory.",
    )
    body_rate: int = option(
        16 * 2**10, "int", "Slowest request body, bytes per second: a larger body has longer."
    )
    write_timeout: int = option(
        30, "int", "Seconds that a client may leave the server's full write buffer unread."
    )
    max_connections: int = option(
        2048,
        "int",
        "Open connections; beyond it those that wait longest for a request are closed, and with "
        "none only health routes answer.",
    )
    max_requests: int = option(
        1024, "int", "Generation requests at a time, running and queued; more get a 429."
    )
    max_queued_requests: int = option(
        1024, "int", "Choices that wait for others to end; more get a 429."
    )
    max_queued_tokens: int = option(
        2**20, "int", "Prompt tokens that wait for others to end; more get a 429."
    )
    max_answer_logprobs: int = option(
        2**21,
        "int",
        "Tokens and alternatives of one answer, echoes included, over all its choices; always one "
        "full context.",
    )
    request_timeout: int | None = option(
        None, "int", "Seconds that an answer may take, waiting included; default: no limit."
    )
    stream_buffer: int = option(
        8192, "int", "Token events that may wait for a slow client; more after a second cancel it."
    )
    log_level: str = option(
        "info",
        "choice",
        "Least severe messages that are logged.",
        choices=("debug", "info", "warning", "error"),
    )


def check_body_memory(options: ServeOptions) -> None:
    """Raises ConfigError when one body is larger than what all may take."""
    one, most = options.max_body_bytes, options.max_body_memory
    if one > most:
        raise ConfigError(
            f"max_body_bytes is {one}, max_body_memory {most}: the largest body would never be "
            "taken; raise --max-body-memory or lower --max-body-bytes"
        )
