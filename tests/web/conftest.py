"""A browser, a server, and a tab that shows its page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.harness import Server, running_server
from tests.e2e.toy_model import write_toy_model
from tests.web.tab import CHROMIUM, Tab


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = write_toy_model(tmp_path_factory.mktemp("page"))
    with running_server(folder) as server:
        yield server


@pytest.fixture
def tab(browser: Any, served: Server) -> Iterator[Tab]:
    tab = Tab(browser, served)
    yield tab
    tab.end()
