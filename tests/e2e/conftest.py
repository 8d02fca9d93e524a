"""Servers for the end-to-end tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Server, running_server
from tests.e2e.toy_model import write_toy_model

StartServer = Callable[..., AbstractContextManager[Server]]


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_model(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="session")
def toy(toy_folder: Path) -> Iterator[Server]:
    """One server on the fake executor that the tests of a session share."""
    limits = {"header_timeout": 1, "body_timeout": 1, "max_body_bytes": 2**20}
    with running_server(toy_folder, **limits) as server:
        yield server


@pytest.fixture(scope="session")
def native_toy(toy_folder: Path) -> Iterator[Server]:
    """The same on the native executor."""
    limits = {"header_timeout": 1, "body_timeout": 1, "max_body_bytes": 2**20}
    with running_server(toy_folder, executor="native", **limits) as server:
        yield server


@pytest.fixture
def server(toy_folder: Path, tmp_path: Path) -> StartServer:
    """``server(model=…, executor=…, faults={…}, **serve_options)`` is a server of the test's
    own."""

    def start(
        model: Path | None = None, *, faults: dict[str, Any] | None = None, **options: Any
    ) -> AbstractContextManager[Server]:
        if faults is not None:
            model = write_toy_model(tmp_path / "faulty", faults)
        return running_server(model or toy_folder, **options)

    return start
