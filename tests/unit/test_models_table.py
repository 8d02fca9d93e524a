"""Names that clients may ask for: entries of one table, with labels of their own."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kvasir.config.options import EngineOptions
from kvasir.config.serving import ServeOptions
from kvasir.core.errors import RequestError
from kvasir.core.messages import DiskStats, EngineStats
from kvasir.core.request import Context
from kvasir.serve.bodies import BodyBudget
from kvasir.serve.client import AsyncClient
from kvasir.serve.lifecycle import Lifecycle
from kvasir.serve.metrics import Metrics
from kvasir.serve.reload import Current, OptionValues
from kvasir.serve.served import Served, ServedResponses
from kvasir.serve.service import Model, Service
from tests.fake_run import idle_compiler

NO_STATE: Any = None


def made() -> Service:
    """Two engines; the first has an alias and an adapter."""
    metrics = Metrics()

    def model(name: str) -> Model:
        client = AsyncClient(
            max_requests=9, stream_buffer=9, max_queued_requests=9, max_queued_tokens=9
        )
        text: Any = None
        measured = metrics.of(name, EngineStats)
        return Model(name, name, client, text, Lifecycle(client), measured, idle_compiler())

    one, other = model("one"), model("other")
    tuned = replace(one, name="tuned", context=Context(adapter="hash"))
    entries = (one, replace(one, name="alias"), tuned, other)
    return Service(
        current=Current(OptionValues(ServeOptions(), EngineOptions())),
        bodies=BodyBudget(9, 9, patience=1),
        lifecycle=one.lifecycle,
        metrics=metrics,
        models={entry.name: entry for entry in entries},
        state=NO_STATE,
        draw_seed=lambda: 1,
        created=0,
    )


def test_names_lead_to_engines_and_contexts() -> None:
    async def run() -> None:
        service = made()
        one, other = service.check_model("one"), service.check_model("other")
        alias = service.check_model("alias")
        assert (alias.name, alias.root, alias.client) == ("alias", "one", one.client)
        assert service.clients == (one.client, other.client)
        assert service.model_of(None) is service.default is one
        for name, message in ((None, "is missing"), ("none", "'none' does not exist")):
            with pytest.raises(RequestError, match=f"the model {message}: use one of one, alias"):
                service.check_model(name)
        assert service.check_model("tuned").context == Context(adapter="hash")

    asyncio.run(run())


def test_what_is_measured_of_a_model_has_its_name() -> None:
    metrics = Metrics()
    one = metrics.of("one", lambda: EngineStats(n_running=1))
    metrics.of("other", lambda: EngineStats(n_running=2, disk=DiskStats(n_bytes=5)))
    one.cancelled()
    text = metrics.text().decode()
    assert 'kvasir_num_requests_running{model_name="one"} 1.0' in text
    assert 'kvasir_num_requests_running{model_name="other"} 2.0' in text
    assert 'kvasir_requests_cancelled_total{model_name="one"} 1.0' in text
    assert 'kvasir_kv_disk_bytes{model_name="other"} 5.0' in text
    assert 'kvasir_kv_disk_bytes{model_name="one"}' not in text
    assert text.count("# TYPE kvasir_num_requests_running gauge") == 1


def test_ids_of_two_engines_are_not_confused() -> None:
    served = ServedResponses()
    served.add(Served("cmpl-a", 1, 2, b"", "one"))
    served.add(Served("cmpl-b", 1, 1, b"", "other"))
    assert served.names(b"", "one").name(2) == "cmpl-a/1"
    assert served.names(b"", "other").name(1) == "cmpl-b"
