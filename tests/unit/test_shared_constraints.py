"""A constraint is there once for all prompts and choices of a request: in what is kept, in what is
sent, and in the engine."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from kvasir.core.errors import CapacityError
from kvasir.core.params import TokenParams
from kvasir.core.request import EngineRequest
from kvasir.serve import frames, framing
from kvasir.serve.choices import choices
from kvasir.serve.errands import Errands
from kvasir.serve.link import Link
from kvasir.serve.messages import Submit
from kvasir.serve.resolved import Envelope, Job, Resolved
from kvasir.serve.state.kept import OWN, Kept, decode
from kvasir.serve.texts import LONG, PLACES
from kvasir.serve.wanted import MAX_BYTES, Size, check_bytes
from kvasir.validation.params import other_prompt
from kvasir.validation.sampling import SamplingParams

TEXT = "start: /" + "x" * 100_000 + "/"
FIRST = TokenParams(
    seed=1, max_tokens=9, temperature=0.5, logit_bias=((7, 1.0),), stop_ids=(2,), constraint=TEXT
)


class Wire:
    """A link whose frames an engine takes."""

    def __init__(self) -> None:
        self.n_bytes = 0
        self.requests: list[EngineRequest] = []
        engine: Any = SimpleNamespace(submit=self.requests.extend)
        nothing: Any = None
        self.errands = Errands(engine, nothing)
        writer: Any = SimpleNamespace(write=self._write)
        self.link = Link(nothing, writer)

    def _write(self, frame: bytes) -> None:
        self.n_bytes += len(frame)
        self.errands.take(frames.decode_to_engine(frame[framing.LENGTH.size :]))


def params_of(n_prompts: int) -> tuple[TokenParams, ...]:
    params = SamplingParams(max_tokens=None)
    others = (
        other_prompt(FIRST, params, seed=i + 5, n_prompt=i, max_model_len=500)
        for i in range(1, n_prompts)
    )
    return FIRST, *others


def test_an_answer_is_kept_with_its_constraint_once() -> None:
    resolved = params_of(50)
    job = Job(((7,),) * 50, SamplingParams(), resolved)
    kept = Kept(Resolved(dialect="d", model="m", fingerprint="f", job=job), Envelope("id", 1), "r")
    data = kept.encode()
    assert len(data) < 1.1 * len(TEXT)
    again = decode(data)
    assert again == kept
    found = again.resolved.job.resolved
    assert len({id(x.constraint) for x in found}) == len({id(x.logit_bias) for x in found}) == 1


def test_prompts_of_a_request_differ_in_what_is_kept_of_each() -> None:
    first, other = params_of(2)
    names = first.__struct_fields__
    differ = {name for name in names if getattr(first, name) != getattr(other, name)}
    assert {"seed", "max_tokens"} <= differ <= set(OWN)


def test_many_prompts_and_choices_bring_their_constraint_once() -> None:
    wire = Wire()
    sent = [EngineRequest(i, (7,), x) for i, x in enumerate(params_of(50))]
    sent += [structs.replace(x, id=50 + x.id) for x in choices(sent[0], 50)]  # of a replay
    for request in sent:
        wire.link.send(Submit(request))
    wire.errands.run(10.0, is_idle=False)
    assert wire.n_bytes < 1.2 * len(TEXT)
    assert wire.requests == sent
    assert len({id(x.params.constraint) for x in wire.requests}) == 1


def test_every_request_gets_its_own_constraint_whatever_was_sent_before() -> None:
    wire, rng = Wire(), random.Random(5)
    texts = ["", "short", *(f"{i:0{LONG}}" for i in range(2 * PLACES))]
    params = [TokenParams(seed=i, max_tokens=1, constraint=rng.choice(texts)) for i in range(500)]
    sent = [EngineRequest(i, (7,), x) for i, x in enumerate(params)]
    for request in sent:
        wire.link.send(Submit(request))
    wire.errands.run(10.0, is_idle=False)
    assert wire.requests == sent


def test_constraints_of_all_requests_are_bounded() -> None:
    some = Size(1, 1, 1, n_bytes=MAX_BYTES)
    check_bytes(some, ())
    with pytest.raises(CapacityError, match="grammars"):
        check_bytes(Size(200, 1, 200, n_bytes=1), (some,))
