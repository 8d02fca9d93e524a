"""Measuring what clients of one server see of each other: the arithmetic, without a server."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from bench.peers import poisson
from bench.serving.mixes import EACH, FIELDS, SIZES, draw
from bench.serving.reach import N_TURNS, Heard, judge, newest
from bench.serving.tenants import ks
from kvasir.serve.protocol.completions import CompletionRequest
from tests.endurance import clock
from tests.endurance.load import corpus, share
from tests.endurance.requests import _told


def test_ks_of_equal_and_of_separate_samples() -> None:
    assert ks([1, 2, 3, 4], [1, 2, 3, 4]) == 1.0
    assert ks(range(100), range(1000, 1100)) < 1e-30
    # D = 0.2, root = sqrt(50), so that x = 1.4414: the series is 2 (e^-4.155 - e^-16.6 ...).
    assert ks(range(100), range(20, 120)) == pytest.approx(0.0314, abs=2e-4)


def test_ks_of_one_distribution_is_uniform() -> None:
    rng = random.Random(3)

    def sample() -> list[float]:
        return [rng.random() for _ in range(200)]

    found = [ks(sample(), sample()) for _ in range(300)]
    assert 0.01 < sum(p < 0.05 for p in found) / 300 < 0.10
    assert 0.35 < sum(p < 0.5 for p in found) / 300 < 0.6


def test_a_trace_of_the_peers_is_the_same_for_all() -> None:
    asked = poisson.trace(4.0, 7)
    assert asked == poisson.trace(4.0, 7) != poisson.trace(4.0, 8)
    assert len(asked) == 64 and {len(x.prompt) for x in asked} == {200}
    assert len({tuple(x.prompt[:150]) for x in asked}) == 1
    assert len({tuple(x.prompt[150:]) for x in asked}) == 64
    assert 8 < asked[-1].at < 32, "four a second"


def test_times_of_streams_are_summed_up() -> None:
    heard = [poisson.Heard([0.1, 0.2, 0.4], 64), poisson.Heard([0.3, 0.4, 0.5], 64)]
    found = poisson.summarize(heard)
    assert found["ttft"] == {"p50": 200.0, "p99": 298.0}
    assert found["itl"] == {"p50": 100.0, "p99": 197.0}
    assert found["tpot"] == {"p50": 3.97, "p99": 4.75}
    with pytest.raises(SystemExit, match="1 requests failed: 3"):
        poisson.summarize([poisson.Heard([0.1], 3)])


def test_mixes_name_what_they_are_and_use_fields_that_exist() -> None:
    known = {info.encode_name for info in msgspec.structs.fields(CompletionRequest)}
    assert {*FIELDS, *EACH} <= known
    assert {name for size in SIZES.values() for name in size} <= known
    assert draw(random.Random(5)) == draw(random.Random(5))
    found = [draw(random.Random(seed)) for seed in range(300)]
    paths = Counter(mix.path for mix in found)
    assert paths.keys() == {
        "/v1/completions",
        "/v1/embeddings",
        "/v1/chat/completions",
        "/v1/messages",
        "/v1/responses",
        "/api/chat",
    }
    used = {name for mix in found for name in mix.body}
    assert {*FIELDS, *EACH} <= used


def test_growth_is_the_slope_after_the_warm_up() -> None:
    rss = [0, 500, 1000, 1010, 1020, 1030]
    size = {"files": 9, "threads": 3}
    samples = [{"n": 10 * i, "api": {"rss": x, **size}} for i, x in enumerate(rss)]
    found = _told(samples[2:], "api")
    assert found["bytes_per_request"] == 1.0
    assert (found["files"], found["threads"]) == ([9, 9], [3, 3])


def test_the_load_of_an_hour_has_every_kind_streamed_and_whole() -> None:
    asked = corpus()
    paths = {path for path, _ in asked}
    assert {"/v1/messages", "/v1/responses", "/api/chat", "/v1/chat/completions"} <= paths
    assert {body.get("stream") for _, body in asked} == {True, False, None}
    assert sum("use_beam_search" in body for _, body in asked) == 4
    assert share([3.0, 1.0, 2.0], 0.5) == 2.0
    assert share([], 0.5) == 0.0


def test_time_in_which_everything_was_stopped_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter([100.0, 100.5, 160.5, 161.0])
    monkeypatch.setattr(clock.time, "monotonic", lambda: next(now))
    run = clock.RunClock()
    for _ in range(3):
        run.look()
    assert (run.seconds, run.stopped) == (1.0, 60.0)


def test_the_worst_of_all_parts_is_judged_in_turns_with_plain_streams() -> None:
    asked: list[str] = []

    class Stage:
        def beside(self, mix: str, n_songs: int, n_tokens: int) -> tuple[Heard, str]:
            asked.append(mix)
            slower = 1.0 if mix == "plain" else 1.5
            return Heard([0.2], [0.01 * slower] * (n_songs * n_tokens)), ""

    each = [{"seed": i, "p99": float(i), "longest": 9.0 - i, "first": float(i)} for i in range(5)]
    found = judge(Stage(), each)  # type: ignore[arg-type]
    assert asked == ["plain", "0", "1", "3", "4"] * N_TURNS
    assert [x["seed"] for x in found["judged"]] == [0, 1, 3, 4]
    assert found["worst"]["p99"]["ratio"] == found["worst"]["longest"]["ratio"] == 1.5
    assert found["worst"]["first"]["ratio"] == 1.0


def test_what_is_heard_of_a_mix_again_counts() -> None:
    first, other, again = ({"mix": mix, "p99": p99} for mix, p99 in (("a", 9), ("b", 2), ("a", 1)))
    assert newest([{"each": [first, other]}, {"each": [again]}]) == [again, other]
