"""The token log and the keys that guard a replay."""

from __future__ import annotations

import pytest
from msgspec import structs
from msgspec.structs import replace

from kvasir.core.errors import KvasirError
from kvasir.core.messages import TokenEvent
from kvasir.core.params import DRAWS, TokenParams
from kvasir.core.request import Context, EngineRequest, Standing
from kvasir.core.sizes import EngineSizes
from kvasir.core.tiles import media_at
from kvasir.engine.engine import Engine
from kvasir.engine.keys import key_root
from kvasir.exec.fake import FakeExecutor
from kvasir.sched.scheduler import Scheduler
from kvasir.serve.tokenlog import ReplayError, TokenLog, decode, encode, open_log, replay
from tests.sizes import config_of

SIZES = EngineSizes(101, 256, 4, 32, 40, 16)
ROOT = key_root("weights", "test", SIZES, "bf16", "rope")
REQUEST = EngineRequest(
    5,
    tuple(range(30)),
    TokenParams(seed=3, max_tokens=20, frequency_penalty=0.7, n_logprobs=2, n_prompt_logprobs=1),
)


def make_engine(n_tokens: int = 32) -> Engine:
    """Of steps of at most ``n_tokens``."""
    config = config_of(256, 4, n_tokens, 40, 16)
    return Engine(FakeExecutor(SIZES), Scheduler(config))


def run(engine: Engine, request: EngineRequest, log: TokenLog, n: int = 1000) -> TokenLog:
    engine.add(request)
    while engine.has_work and len(log.emitted) < n:
        for event in engine.step().events:
            log.record(event)
            log = decode(encode(log))
    engine.close()
    return log


def new_log() -> TokenLog:
    return open_log(REQUEST, key_root=ROOT, numerics_id="test")


@pytest.mark.parametrize("n", [1, 7, 19])
def test_half_a_run_and_its_replay_give_the_bytes_of_a_whole_run(n: int) -> None:
    whole = run(make_engine(), REQUEST, new_log())
    half = run(make_engine(), REQUEST, new_log(), n)
    assert len(half.emitted) == n
    again = replay(half, key_root=ROOT, numerics_id="test")
    assert again.emitted == tuple(whole.emitted[:n])
    assert encode(run(make_engine(), again, half)) == encode(whole)


def test_a_log_before_the_first_token_replays_the_prompt_scores_too() -> None:
    whole = run(make_engine(), REQUEST, new_log())
    again = replay(new_log(), key_root=ROOT, numerics_id="test")
    assert encode(run(make_engine(), again, new_log())) == encode(whole)


def test_scores_that_were_told_are_not_told_again() -> None:
    """All prompt tokens but the last are computed, and nothing is drawn yet."""
    whole = run(make_engine(), REQUEST, new_log())
    log, engine = new_log(), make_engine(29)
    engine.add(REQUEST)
    log.record(engine.step().events[0])
    engine.close()
    assert (log.emitted, log.n_scored) == ([], 29)
    again = replay(log, key_root=ROOT, numerics_id="test")
    assert encode(run(make_engine(), again, log)) == encode(whole)


def test_another_key_root_or_numerics_is_refused() -> None:
    with pytest.raises(ReplayError, match="ran with key root"):
        replay(
            new_log(), key_root=key_root("other", "test", SIZES, "bf16", "rope"), numerics_id="test"
        )
    with pytest.raises(ReplayError, match="numerics 'test', the engine has 'fast'"):
        replay(new_log(), key_root=ROOT, numerics_id="fast")
    log = new_log()
    log.version = 1
    with pytest.raises(ReplayError, match="version 1, this is version 2"):
        replay(log, key_root=ROOT, numerics_id="test")


def test_a_log_of_another_sampler_is_refused() -> None:
    log = new_log()
    log.draws = 1
    with pytest.raises(ReplayError, match=f"drawn by sampler 1, the engine has {DRAWS}"):
        replay(decode(encode(log)), key_root=ROOT, numerics_id="test")


def test_a_replay_loses_nothing_of_its_request() -> None:
    request = EngineRequest(
        5,
        (1, 2),
        TokenParams(seed=3, max_tokens=20, max_drafts=2),
        Context("salt", "adapter"),
        Standing("batch", "alice", 5, ttft_by=1.0, answer_by=2.0),
        emitted=(7,),
        n_scored=1,
        parent=4,
        hold_seconds=9.0,
        pooling="mean",
        second=1,
        media=(media_at(1, 1, bytes(12)),),
        prediction=(7, 8),
        is_resumed=True,
    )
    defaults = {field.name: field.default for field in structs.fields(request)}
    assert all(getattr(request, name) != default for name, default in defaults.items())
    log = decode(encode(open_log(request, key_root=ROOT, numerics_id="test")))
    assert replay(log, key_root=ROOT, numerics_id="test") == request
    log.record(TokenEvent(5, tokens=(8,)))
    again = replay(log, key_root=ROOT, numerics_id="test")
    assert again == structs.replace(request, emitted=(7, 8))


def test_a_finished_choice_is_not_replayed() -> None:
    log = new_log()
    log.record(TokenEvent(5, tokens=(1,), finish="stop"))
    with pytest.raises(ReplayError, match="ended with 'stop'"):
        replay(log, key_root=ROOT, numerics_id="test")
    with pytest.raises(KvasirError, match="which ended with 'stop'"):
        log.record(TokenEvent(5, tokens=(1,)))
    with pytest.raises(KvasirError, match="event of request 6 in the log of 5"):
        log.record(TokenEvent(6))


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x81\xa4type\xa9token_log", b"{}"])
def test_bytes_that_are_no_log_are_refused(data: bytes) -> None:
    with pytest.raises(ReplayError, match="not a token log"):
        decode(data)


def test_the_key_root_depends_on_all_that_changes_bits() -> None:
    roots = {
        ROOT,
        key_root("other", "test", SIZES, "bf16", "rope"),
        key_root("weights", "test", SIZES, "f32", "rope"),
        key_root("weights", "test", SIZES, "bf16", "rope2"),
        key_root("weights", "test", replace(SIZES, block_size=32), "bf16", "rope"),
        key_root("weights", "x", SIZES, "bf16", "rope"),
    }
    assert len(roots) == 6
    assert (
        key_root("weights", "test", replace(SIZES, n_blocks=99, max_num_seqs=1), "bf16", "rope")
        == ROOT
    )
    assert len(ROOT) == 64
