"""Options that are read again: what can change takes hold, the rest is named, and nothing changes
when something of it cannot be."""

from __future__ import annotations

import logging
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from kvasir.config.options import EngineOptions
from kvasir.config.serving import ServeOptions
from kvasir.core.errors import ConfigError
from kvasir.serve.reload import RELOADED, Current, OptionValues

AT_START = OptionValues(ServeOptions(), EngineOptions())


class File:
    """What the options come from."""

    def __init__(self) -> None:
        self.values = AT_START
        self.error: ConfigError | None = None

    def read(self) -> OptionValues:
        if self.error is not None:
            raise self.error
        return self.values


@pytest.fixture
def file() -> File:
    return File()


@pytest.fixture
def heard(file: File) -> tuple[Current, list[ServeOptions]]:
    current, found = Current(AT_START, file.read), []
    current.follow(found.append)
    return current, found


Heard = tuple[Current, list[ServeOptions]]


def test_what_changed_takes_hold_and_the_rest_is_named(
    file: File, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    current, told = heard
    assert told == [AT_START.serve]
    served = replace(AT_START.serve, max_requests=7, body_timeout=3, port=9000, api_key="secret")
    file.values = OptionValues(served, replace(AT_START.engine, threads=3))
    with caplog.at_level(logging.INFO):
        current.reload()
    assert current.options == replace(AT_START.serve, max_requests=7, body_timeout=3)
    assert told[1:] == [current.options]
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "the options were read again: body_timeout = 3, max_requests = 7"
    assert said[1].startswith("api_key, port, threads changed too, and hold from the next start on")
    assert "secret" not in caplog.text


def test_nothing_changes_when_something_cannot_be(
    file: File, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    current, told = heard
    for wrong in ({"max_requests": -1}, {"max_body_bytes": 2**40}, {"strict": "perhaps"}):
        values = replace(AT_START.serve, max_queued_tokens=5, **wrong)
        file.values = OptionValues(values, AT_START.engine)
        current.reload()
        assert current.options == AT_START.serve and len(told) == 1
    file.error = ConfigError("serve.toml:3: there is no option prot")
    current.reload()
    assert current.options == AT_START.serve and len(told) == 1
    assert caplog.records[-1].getMessage().endswith("; the options stay as they were")


def test_without_a_change_nobody_is_told(heard: Heard) -> None:
    current, told = heard
    current.reload()
    assert len(told) == 1
    Current(AT_START).reload()  # nor where they come from nowhere


def test_what_can_change_are_options_that_are_no_secrets() -> None:
    secrets = {each.name for each in fields(ServeOptions) if each.metadata["is_secret"]}
    assert {each.name for each in fields(ServeOptions)} >= RELOADED
    assert not RELOADED & secrets


def test_the_page_names_what_can_change() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    found = page.partition("These can change:")[2].partition("Rates and limits")[0]
    assert set(re.findall(r"`(\w+)`", found)) == RELOADED
