"""Priority, class and tenant of a request, as clients write them."""

from __future__ import annotations

import pytest

from kvasir.config.options import EngineOptions
from kvasir.config.sharing import parse_sharing
from kvasir.core.errors import ConfigError, RequestError
from kvasir.serve.protocol.completions import CompletionRequest
from kvasir.serve.protocol.sampling import standing_of
from kvasir.validation.standing import check_priorities, check_priority


def standing(**fields: object) -> tuple[int, str, str]:
    found = standing_of(CompletionRequest(prompt="x", **fields))
    return found.priority, found.priority_class, found.tenant


def test_fields_become_a_standing() -> None:
    assert standing() == (0, "standard", "")
    assert standing(priority=-3, user="alice") == (-3, "standard", "alice")
    assert standing(priority_class="batch") == (0, "batch", "")
    assert standing(service_tier="auto", priority_class="realtime") == (0, "realtime", "")
    assert standing(safety_identifier="alice") == (0, "standard", "alice")
    assert standing(safety_identifier="alice", user="bob") == (0, "standard", "alice")
    tiers = [standing(service_tier=tier)[1] for tier in ("auto", "default", "priority", "flex")]
    assert tiers == ["standard", "standard", "realtime", "batch"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"priority_class": "urgent"}, "priority_class"),
        ({"service_tier": "scale"}, "service_tier"),
        ({"service_tier": "flex", "priority_class": "realtime"}, "priority_class"),
        ({"priority": 2**63}, "priority"),
        ({"priority": -(2**63)}, "priority"),
        ({"user": "x" * 257}, "user"),
        ({"user": "\ud800"}, "user"),
        ({"safety_identifier": "x" * 257}, "safety_identifier"),
    ],
)
def test_what_is_unknown_or_too_large_is_refused(fields: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        standing(**fields)
    assert caught.value.param == param


def test_a_list_of_priorities_has_one_for_each_prompt() -> None:
    assert check_priorities(None, 2) == [0, 0]
    assert check_priorities([3, -1], 2) == [3, -1]
    with pytest.raises(RequestError, match="1 priorities for 2 prompts"):
        check_priorities([1], 2)
    with pytest.raises(RequestError, match="a whole number, not bool"):
        check_priority(True)


def test_weights_are_read_from_text() -> None:
    options = EngineOptions(
        priority_weights="8, 4,0.5", tenant_weights="alice=2,b=c=0.5", preemption_threshold_ms=50
    )
    sharing = parse_sharing(options)
    assert sharing.priority_weights == (8.0, 4.0, 0.5)
    assert sharing.tenant_weights == (("alice", 2.0), ("b=c", 0.5))
    assert sharing.preemption_threshold == 0.05


@pytest.mark.parametrize(
    "fields",
    [
        {"priority_weights": "1,2"},
        {"priority_weights": "1,2,0"},
        {"priority_weights": "1,2,nan"},
        {"tenant_weights": "alice"},
        {"tenant_weights": "alice=1,alice=2"},
        {"tenant_weights": "alice=-1"},
    ],
)
def test_weights_that_are_none_are_refused(fields: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        parse_sharing(EngineOptions(**fields))
