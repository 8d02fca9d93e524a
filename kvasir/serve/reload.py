"""Options of a running server: SIGHUP reads them again, and what can change takes hold."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import NamedTuple

from kvasir.config.options import EngineOptions, check
from kvasir.config.pixels import pixel_bounds
from kvasir.config.serving import (
    ServeOptions,
    check_body_memory,
    check_keys,
    image_limit,
    media_domains,
)
from kvasir.core.errors import KvasirError

logger = logging.getLogger("kvasir.server")

RELOADED = frozenset(
    {
        *("strict", "drain_delay", "shutdown_timeout", "health_probe_ms", "request_timeout"),
        *("max_body_bytes", "max_body_memory", "max_header_bytes", "max_headers"),
        *("header_timeout", "body_timeout", "body_rate", "write_timeout", "max_connections"),
        *("max_requests", "max_queued_requests", "max_queued_tokens", "max_answer_logprobs"),
        *("ttft_target_ms", "stream_buffer", "state_entries", "state_bytes", "max_file_bytes"),
    }
)
"""Names of the options that may change while the server runs."""

Follower = Callable[[ServeOptions], None]


class OptionValues(NamedTuple):
    """What file, environment and command line say together."""

    serve: ServeOptions
    engine: EngineOptions


def checked(said: OptionValues) -> OptionValues:
    """Raises ConfigError on what cannot be."""
    check(said.serve)
    check(said.engine)
    pixel_bounds(said.engine.mm_processor_kwargs)
    check_body_memory(said.serve)
    image_limit(said.serve.limit_mm_per_prompt)
    media_domains(said.serve.allowed_media_domains)
    check_keys(said.serve)
    return said


class Current:
    """The options that hold now. Who keeps what one of them says follows them."""

    def __init__(self, said: OptionValues, read: Callable[[], OptionValues] | None = None) -> None:
        """``read`` says them again; without it they stay."""
        self.options = said.serve
        self._engine = said.engine
        self._read = read
        self._followers: list[Follower] = []

    @property
    def model(self) -> str | None:
        """Where the engine finds its model, also when it is started again; None: the default."""
        return self._engine.model

    def follow(self, follower: Follower) -> None:
        """Calls ``follower`` with the options, now and after each change."""
        self._followers.append(follower)
        follower(self.options)

    def reload(self) -> None:
        """Takes what can change and names the rest in the log; nothing changes when something of
        it cannot be."""
        if self._read is None:
            return
        try:
            said = checked(self._read())
        except KvasirError as error:
            logger.error("%s; the options stay as they were", error.message)
            return
        others = _changed(self.options, said.serve)
        taken = {name: value for name, value in others.items() if name in RELOADED}
        if taken:
            self.options = replace(self.options, **taken)  # type: ignore[arg-type]
            for follower in self._followers:
                follower(self.options)
        logger.info("the options were read again: %s", _listed(taken) or "none changed")
        left = [*(others.keys() - taken.keys()), *_changed(self._engine, said.engine)]
        if left:
            logger.warning(
                "%s changed too, and hold from the next start on (those of an engine also from "
                "POST /engine/swap on)",
                ", ".join(sorted(left)),
            )


def _changed(
    old: ServeOptions | EngineOptions, new: ServeOptions | EngineOptions
) -> dict[str, object]:
    """What ``new`` says otherwise, by name."""
    before = asdict(old)
    return {name: value for name, value in asdict(new).items() if value != before[name]}


def _listed(values: dict[str, object]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in sorted(values.items()))
