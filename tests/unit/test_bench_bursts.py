"""What the measurement of bursts makes of the answers and of the server's own figures."""

from __future__ import annotations

import asyncio

import pytest

from bench.serving.bursts import Answer, _read, arriving, lag, late, rate, refusals, sample, told

METRICS = """# TYPE kvasir_event_loop_lag_seconds histogram
kvasir_event_loop_lag_seconds_bucket{le="0.001"} %d
kvasir_event_loop_lag_seconds_bucket{le="0.02"} %d
kvasir_event_loop_lag_seconds_bucket{le="+Inf"} %d
kvasir_num_requests_waiting{model="a"} 7.0
kvasir_num_requests_waiting{model="b"} 2.0
kvasir_num_requests_waiting_more 99.0
"""


def test_series_are_summed_and_lag_is_that_between_two_looks() -> None:
    before, after = METRICS % (10, 20, 20), METRICS % (1000, 1019, 1020)
    assert sample(before, "kvasir_num_requests_waiting") == 9.0
    assert late(lag(before), lag(after), 0.5) == 0.001
    assert late(lag(before), lag(after), 0.999) == 0.02
    assert late(lag(before), lag(after), 1.0) == float("inf")


def test_the_rate_counts_events_of_whole_answers_alone() -> None:
    whole = Answer(0.0, 200, events=[0.5, 1.0, 1.5, 2.0])
    cut = Answer(0.0, 200, events=[1.0], error="the stream ended early")
    assert rate([whole, cut, Answer(0.0, 429)], 1.0, 2.0) == 2.0


def test_a_refusal_is_held_against_when_there_was_room() -> None:
    waiting = [(0.0, 5.0), (1.0, 10.0), (2.0, 10.0), (5.0, 9.0), (9.0, 3.0)]
    refused = [Answer(1.0, 429, seconds, ended=1.1) for seconds in (1, 4, 9)]
    found = refusals([*refused, Answer(1.0, 200)], waiting, full=10.0)
    assert found == {"n": 3, "within_2x": 0.3333, "least": 0.25, "most": 2.25}
    assert refusals([], waiting, 10.0)["within_2x"] is None


def test_answers_are_told_by_status() -> None:
    found = told([Answer(0.0, 200), Answer(0.0, 429, 1), Answer(0.0, 200, error="cut")])
    assert found == {
        "requests": 3,
        "statuses": {"200": 2, "429": 1},
        "errors": {"cut": 1},
    }


def read(data: bytes) -> Answer:
    async def run() -> Answer:
        reader, answer = asyncio.StreamReader(), Answer(0.0)
        reader.feed_data(data)
        reader.feed_eof()
        await _read(reader, answer)
        return answer

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("data", "status", "n_events", "error"),
    [
        (b'data: {"choices":[]}\n\ndata: {"choices":[]}\n\n\r\n0\r\n\r\n', 200, 2, ""),
        (b'data: {"choices":[]}\n\n', 200, 1, "the stream ended early"),
        (b'data: {"error":{"code":"engine_down"}}\n\n\r\n0\r\n\r\n', 200, 0, "engine_down"),
        (b'{"error":{}}', 429, 0, ""),
    ],
)
def test_a_stream_is_whole_when_it_ends_without_an_error(
    data: bytes, status: int, n_events: int, error: str
) -> None:
    answer = read(b"HTTP/1.1 %d X\r\nretry-after: 3\r\n\r\n" % status + data)
    assert (answer.status, len(answer.events), answer.retry_after) == (status, n_events, 3)
    assert error in answer.error and bool(error) == bool(answer.error)


def test_an_event_that_comes_in_two_pieces_counts_once() -> None:
    async def run(cut: int) -> Answer:
        reader, answer = asyncio.StreamReader(), Answer(0.0)
        data = b'HTTP/1.1 200 OK\r\n\r\ndata: {"choices":[{}]}\n\n\r\n0\r\n\r\n'
        reading = asyncio.create_task(_read(reader, answer))
        for piece in (data[:cut], data[cut:]):
            reader.feed_data(piece)
            for _ in range(3):
                await asyncio.sleep(0)
        await reading
        return answer

    for cut in range(1, 48):
        answer = asyncio.run(run(cut))
        assert len(answer.events) == 1 and answer.is_whole, cut


def test_no_answer_is_an_error() -> None:
    answer = read(b"")
    assert answer.status == 0 and "no answer" in answer.error and not answer.is_whole


def test_requests_arrive_at_the_rate_of_each_phase() -> None:
    """Poisson: 20 and 100 are expected, with deviations of 4.5 and 10."""
    sent = []

    async def ask() -> Answer:
        sent.append(1)
        return Answer(0.0, 200)

    answers = asyncio.run(arriving(ask, ((200.0, 0.1), (1000.0, 0.1))))
    assert len(answers) == len(sent)
    assert 70 < len(answers) < 170
