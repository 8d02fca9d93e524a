"""Requests that ask for everything, alone and with prompts that share beginnings."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from kvasir.core.params import SAMPLERS, TokenParams
from kvasir.core.request import (
    NO_DRAWS,
    PRIORITY_CLASSES,
    Context,
    EngineRequest,
    PoolKind,
    Standing,
)
from kvasir.kv.fork import common_prefix


def make_requests(
    n: int, vocab_size: int, *, seed: int = 0, max_prompt: int = 40, max_tokens: int = 24
) -> list[EngineRequest]:
    """A mix of what requests can ask for: greedy, seeded, filtered, penalised, stopped, scored,
    restricted, in stages of their own, constrained."""
    rng = random.Random(seed)
    requests = []
    for i in range(n):
        prompt = tuple(rng.randrange(vocab_size) for _ in range(rng.randint(1, max_prompt)))
        params = TokenParams(seed=rng.getrandbits(64), max_tokens=rng.randint(1, max_tokens))
        kind = KINDS[i % len(KINDS)]
        requests.append(EngineRequest(i, prompt, kind(params, rng, vocab_size)))
    return requests


def make_sharing_requests(
    n: int, vocab_size: int, *, seed: int = 0, max_prompt: int = 60, max_tokens: int = 24
) -> list[EngineRequest]:
    """As ``make_requests``, with prompts that branch off each other, at block borders and inside
    blocks, and some that are equal; in two salts."""
    rng = random.Random(seed)
    trunks = [tuple(rng.randrange(vocab_size) for _ in range(max_prompt)) for _ in range(3)]
    requests: list[EngineRequest] = []
    for request in make_requests(n, vocab_size, seed=seed + 1, max_tokens=max_tokens):
        common = rng.choice((0, 5, 16, 17, 31, 32, 33, 48, max_prompt))
        tail = request.prompt[: rng.choice((0, 1, 3, 16, 20))]
        prompt = (rng.choice(trunks)[:common] + tail)[:max_prompt] or request.prompt
        salt = rng.choice(("", "", "", "another tenant"))
        if requests and rng.random() < 0.2:
            prompt = rng.choice(requests).prompt
        requests.append(replace(request, prompt=prompt, context=Context(salt)))
    return requests


def next_turns(
    requests: Sequence[EngineRequest], outputs: Mapping[int, tuple[int, ...]], max_prompt: int
) -> list[EngineRequest]:
    """The same requests again, after their prompts and what was answered; ids go on."""
    turns = []
    for i, request in enumerate(requests):
        told = request.prompt + outputs[request.id]
        prompt = (told + request.prompt[:1])[:max_prompt]
        turns.append(replace(request, id=len(requests) + i, prompt=prompt))
    return turns


def wanting(
    requests: Sequence[EngineRequest], outputs: Mapping[int, tuple[int, ...]]
) -> list[EngineRequest]:
    """A third of them with no drafts, another with at most two tokens in a step; one of two
    predicts its output but for some tokens."""
    found = []
    for i, request in enumerate(requests):
        params = replace(request.params, max_drafts=(-1, 0, 2)[i % 3])
        told = outputs[request.id] if i % 2 else ()
        prediction = tuple(token if j % 9 != 8 else 0 for j, token in enumerate(told))
        found.append(replace(request, params=params, prediction=prediction))
    return found


def pooling(requests: Sequence[EngineRequest]) -> list[EngineRequest]:
    """Two of three want a vector of their prompt instead; the others generate beside them."""
    kinds: tuple[PoolKind | None, ...] = (None, "mean", "last", None, "mean", "cls", None, "last")
    found = []
    for i, request in enumerate(requests):
        kind = kinds[i % len(kinds)]
        found.append(replace(request, pooling=kind, params=NO_DRAWS) if kind else request)
    return found


def forking(arriving: Sequence[EngineRequest]) -> list[EngineRequest]:
    """Each with the earlier request as parent whose prompt begins most alike."""
    found: list[EngineRequest] = []
    for request in arriving:
        parent, longest = -1, 0
        for earlier in found:
            n = common_prefix(request.prompt, earlier.prompt, len(request.prompt))
            if n > longest:
                parent, longest = earlier.id, n
        found.append(replace(request, parent=parent, hold_seconds=600.0))
    return found


Kind = Callable[[TokenParams, random.Random, int], TokenParams]


def _greedy(p: TokenParams, rng: random.Random, vocab: int) -> TokenParams:
    return replace(p, temperature=0.0)


def _sampled(p: TokenParams, rng: random.Random, vocab: int) -> TokenParams:
    return replace(p, temperature=rng.uniform(0.3, 1.5), n_logprobs=rng.choice((-1, 0, 3)))


def _filtered(p: TokenParams, rng: random.Random, vocab: int) -> TokenParams:
    return replace(
        p, top_k=rng.randint(0, vocab), top_p=rng.uniform(0.2, 1), min_p=rng.uniform(0, 0.2)
    )


def _penalised(p: TokenParams, rng: random.Random, vocab: int) -> TokenParams:
    return replace(
        p,
        temperature=rng.choice((0.0, 0.8)),
        repetition_penalty=rng.uniform(1, 1.6),
        presence_penalty=rng.uniform(-1, 2),
        frequency_penalty=rng.uniform(-1, 2),
        n_logprobs=2,
    )


def _stopping(p: TokenParams, rng: random.Random, vocab: int) -> TokenParams:
    stops = tuple(sorted(rng.sample(range(vocab), max(1, vocab // 8))))
    return replace(p, stop_ids=stops, min_tokens=rng.randint(0, 4), n_logprobs=1)


def _biased(p: TokenParams, rng: random.Random, vocab: int) -> TokenParams:
    bias = tuple((token, rng.uniform(-5, 5)) for token in sorted(rng.sample(range(vocab), 5)))
    return replace(p, logit_bias=bias)


def _scored(p: TokenParams, rng: random.Random, vocab: int) -> TokenParams:
    return replace(p, n_prompt_logprobs=rng.randint(0, 3), n_logprobs=0)


def _scored_only(p: TokenParams, rng: random.Random, vocab: int) -> TokenParams:
    return replace(p, n_prompt_logprobs=1, max_tokens=0)


def _constrained(p: TokenParams, rng: random.Random, vocab: int) -> TokenParams:
    """For engines whose masks are those of ``tests.automaton``."""
    return replace(
        p,
        constraint=rng.choice(("3:1", "7:3", "6:5!")),
        temperature=rng.choice((0.0, 1.0)),
        top_k=rng.choice((0, 5)),
        frequency_penalty=rng.choice((0.0, 0.5)),
        stop_ids=(rng.randrange(vocab),),
        n_logprobs=rng.choice((-1, 2)),
    )


def _restricted(p: TokenParams, rng: random.Random, vocab: int) -> TokenParams:
    """Half of the tokens, and of those some not after others."""
    allowed = np.zeros(-(-vocab // 32) * 32, np.uint8)
    kept = rng.sample(range(vocab), vocab // 2)
    allowed[kept] = 1
    words = [tuple(rng.choices(kept[:4], k=rng.randint(1, 3))) for _ in range(12)]
    return replace(
        p,
        temperature=rng.choice((0.0, 0.3)),
        allowed=np.packbits(allowed, bitorder="little").tobytes(),
        bad_words=tuple(words),
        logit_bias=tuple((token, 6.0) for token in sorted(kept[:4])),
        logprob_ids=tuple(kept[:3]),
        n_logprobs=0,
    )


def _ordered(p: TokenParams, rng: random.Random, vocab: int) -> TokenParams:
    """Stages in some order, penalties over the newest tokens."""
    return replace(
        p,
        samplers=tuple(rng.sample(SAMPLERS, rng.randint(1, len(SAMPLERS)))),
        temperature=rng.uniform(0.2, 1.5),
        top_k=rng.randint(1, vocab),
        top_p=rng.uniform(0.3, 1),
        typical_p=rng.uniform(0.2, 1),
        frequency_penalty=rng.uniform(-1, 2),
        repetition_penalty=rng.uniform(1, 1.6),
        repeat_last_n=rng.choice((-1, 1, 3, 16)),
    )


FREE: tuple[Kind, ...] = (
    _greedy,
    _sampled,
    _filtered,
    _penalised,
    _stopping,
    _biased,
    _scored,
    _scored_only,
)
"""What the random operations of ``tests.engine_world`` draw from."""
KINDS = (*FREE, _constrained, _restricted, _ordered)


def mixed(i: int, request: EngineRequest) -> EngineRequest:
    """``request`` in one of three classes, of one of two tenants, with a priority."""
    return replace(request, standing=Standing(PRIORITY_CLASSES[i % 3], "ab"[i % 2], -(i % 5)))
