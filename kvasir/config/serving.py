"""What the user may say about the HTTP server; declared like ``EngineOptions``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from kvasir.config.options import option
from kvasir.core.errors import ConfigError

MAX_PORT = 65535
TOOL_FORMATS = (
    *("auto", "apertus", "apriel", "command-r7b", "deepseek-v3", "deepseek-v3.1"),
    *("deepseek-v3.2", "deepseek-v4", "functionary-v3.1"),
    *("functiongemma", "gemma-4", "generic", "gigachat3", "gigachat3-header", "glm-4.5"),
    *("glm-4.7", "granite", "harmony", "hermes", "hunyuan-3", "kimi-k2", "lfm2"),
    *("llama3-json", "llama3-pythonic", "minicpm5", "minimax-m1", "minimax-m2"),
    *("mistral-v11", "mistral-v13", "mistral-v3", "nemotron", "olmo-3", "phi-4-mini"),
    *("qwen3-coder", "seed-oss", "solar-open"),
)
"""Those of ``toolcalls.table``."""


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
    handover: str | None = option(
        None,
        "text",
        "Unix socket over which a running server gives its listening sockets to a successor that "
        "is started with the same option, and ends when that is ready.",
    )
    api_key: str | None = option(
        None,
        "text",
        "Clients must send it as a bearer token; health routes stay open.",
        is_secret=True,
    )
    api_key_file: str | None = option(
        None,
        "text",
        "File of API keys, each with scopes, limits and an end of its own; kvasir keys makes it.",
    )
    prefix_sharing: str = option(
        "key",
        "choice",
        "Who may hit a cached prefix: requests of the same API key, or of all; with the same "
        "cache_salt either way. Without keys everybody is one.",
        choices=("key", "all"),
    )
    allowed_hosts: str | None = option(
        None,
        "text",
        "Host names, comma-separated, that requests may be sent to, beside addresses and "
        "localhost; * is any. Default: none on a loopback address, else any.",
    )
    allowed_origins: str | None = option(
        None,
        "text",
        "Origins, comma-separated, of web pages that may use the server from a browser, such as "
        "https://app.example; * is any. Default: none but its own.",
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
        "Bearer token of the admin routes, another one than api_key.",
        is_secret=True,
    )
    admin_uds: str | None = option(
        None,
        "text",
        "Unix socket of the admin routes: for this user and root alone, without a key.",
    )
    strict: bool = option(
        False, "flag", "Refuse requests with unknown fields instead of warning in the response."
    )
    sleep_idle_seconds: int | None = option(
        None,
        "int",
        "Seconds without a request after which the engine process ends and its memory is free; the "
        "next request starts it again. Default: never.",
    )
    drain_delay: int = option(
        0,
        "int",
        "Seconds after SIGTERM that requests are still taken, while /ready says 503 and balancers "
        "turn away.",
        minimum=0,
    )
    health_probe_ms: int = option(
        500,
        "int",
        "Milliseconds that an idle engine may take for the one token that /health asks it for; "
        "always three mean steps.",
    )
    shutdown_timeout: int = option(
        30, "int", "Seconds that running requests get to finish after SIGTERM.", minimum=0
    )
    max_body_bytes: int = option(16 * 2**20, "int", "Largest request body.")
    limit_mm_per_prompt: str = option(
        "image=8", "text", "Most images of one request, as image=N; 0 takes none."
    )
    allowed_media_domains: str | None = option(
        None,
        "text",
        "Domains, comma-separated, that images of requests are fetched from, with a port where it "
        "is not that of the scheme; private addresses and localhost where they are named "
        "themselves. Default: none, images come with the request.",
    )
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
    state_dir: str | None = option(
        None,
        "text",
        "Folder of what outlives a request: files, batches, stored answers. Default: they live "
        "in memory, files in a temporary folder, and end with the server.",
    )
    state_entries: int | None = option(
        None,
        "int",
        "Files, batches and stored answers of one key; more push out the oldest answers, or get a "
        "429. Default: 100,000, and 1,000 of all keys together without state_dir.",
    )
    state_bytes: int | None = option(
        None,
        "int",
        "Bytes of them. Default: 16 GiB for each key, and 1 GiB for all together without "
        "state_dir.",
    )
    state_days: int = option(
        30, "int", "Days until batch files and stored answers expire.", minimum=1, maximum=3650
    )
    batch_lines: int | None = option(
        None,
        "int",
        "Lines of all batches that are computed at a time; default: max_num_seqs.",
    )
    max_file_bytes: int = option(200 * 10**6, "int", "Largest file that is uploaded.")
    web: bool = option(
        True, "flag", "Serve the page for browsers at /ui; data of it need a key as ever."
    )
    metrics_prefix: str = option(
        "both",
        "choice",
        "Names of metrics: kvasir_…, or vllm:… for those that vLLM has, or both.",
        choices=("kvasir", "vllm", "both"),
    )
    tool_format: str = option(
        "auto",
        "choice",
        "How the model writes tool calls; by default its chat template is asked.",
        choices=TOOL_FORMATS,
    )
    reasoning_format: str = option(
        "auto",
        "choice",
        "Where reasoning is told to who does not say: apart (auto, deepseek), in the content as it "
        "was written (none), or in both (deepseek-legacy).",
        choices=("auto", "deepseek", "deepseek-legacy", "none"),
    )
    schema_kilobytes: int = option(
        1024,
        "int",
        "Kilobytes that a schema, expression or grammar may have.",
        minimum=1,
        maximum=8192,
    )
    schema_depth: int = option(
        60, "int", "How deep a schema may be nested.", minimum=1, maximum=100
    )
    schema_values: int = option(
        10_000,
        "int",
        "Values that a schema may list in all, and choices.",
        minimum=1,
        maximum=100_000,
    )
    max_tools: int = option(128, "int", "Tools that a request may have.", minimum=1, maximum=1024)
    grammar_seconds: int = option(
        2, "int", "CPU seconds that a grammar or schema may take to compile.", maximum=60
    )
    grammar_megabytes: int = option(
        128, "int", "Megabytes of memory that a grammar or schema may take to compile.", minimum=16
    )
    log_level: str = option(
        "info",
        "choice",
        "Least severe messages that are logged.",
        choices=("debug", "info", "warning", "error"),
    )
    log_format: str = option(
        "text", "choice", "Lines of the log: for people, or JSON.", choices=("text", "json")
    )
    enable_log_requests: bool | None = option(
        None,
        "flag",
        "Log each answered request: id, route, status, times, tokens; default: with "
        "--log-format json and --log-prompts.",
    )
    ttft_target_ms: int | None = option(
        None,
        "int",
        "Milliseconds in which a first token should come: the log says of requests over it, as of "
        "those over their own ttft_ms, what they waited for; default: of the latter alone.",
        minimum=1,
    )
    otlp_traces_endpoint: str | None = option(
        None,
        "text",
        "URL that takes spans of requests by OTLP over HTTP, such as "
        "http://localhost:4318/v1/traces; needs the extra otel. Default: as OpenTelemetry's own "
        "variables say, else none.",
    )
    log_prompts: bool = option(
        False, "flag", "Log the first 4096 bytes of each request's body with it."
    )


MediaDomains = frozenset[tuple[str, int]]
"""Hosts, each with a port, which is 0 for that of the scheme."""


def image_limit(said: str) -> int:
    """Images of one request: image=N, or JSON as vLLM writes it. Raises ConfigError."""
    found = re.fullmatch(r'\s*(?:image=|\{\s*"image"\s*:\s*)(\d{1,4})\s*\}?\s*', said)
    if found is None:
        raise ConfigError(f"limit_mm_per_prompt is {said[:80]!r}: say image=N, such as image=4")
    return int(found[1])


def media_domains(said: str | None) -> MediaDomains:
    """Of names and addresses, each with a port or without. Raises ConfigError."""
    entries = [x for x in re.split(r"[,\s]+", said or "") if x]
    return frozenset(_media_domain(entry) for entry in entries)


def _media_domain(said: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{said}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or host == "*" or parts.netloc != said or "@" in said or port == 0:
        raise ConfigError(
            f"allowed_media_domains has {said[:80]!r}: name a domain, such as images.example or "
            "images.example:8443"
        )
    return host.lower(), port or 0


def check_body_memory(options: ServeOptions) -> None:
    """Raises ConfigError when one body is larger than what all may take."""
    one, most = options.max_body_bytes, options.max_body_memory
    if one > most:
        raise ConfigError(
            f"max_body_bytes is {one}, max_body_memory {most}: the largest body would never be "
            "taken; raise --max-body-memory or lower --max-body-bytes"
        )


def check_keys(options: ServeOptions) -> None:
    """Raises ConfigError when one key would be two."""
    if options.api_key is not None and options.api_key == options.admin_key:
        raise ConfigError("api_key and admin_key are equal: clients would be operators")
    for name in ("api_key", "admin_key"):
        if getattr(options, name) == "":
            raise ConfigError(f"{name} is empty: leave it out, or name a secret")
