"""Beam search against one written from the definition of vLLM's ``LLM.beam_search``, over the
engine's own probabilities and over toy models."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from kvasir import LLM, BeamSearchParams, SamplingParams
from kvasir.core.errors import KvasirError, RequestError
from kvasir.core.messages import TokenEvent, TokenLogprob
from kvasir.text.beam import Beam, Search
from tests import tiny

PROMPT = [5, 9, 2, 7, 1, 3, 8, 4, 6, 2, 9, 1, 7, 3, 5, 8, 2, 4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_hf(tiny.llama(), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), max_model_len=96, max_num_seqs=8, threads=1) as made:
        yield made


def _next(llm: LLM, tokens: list[int], n: int) -> list[tuple[int, float]]:
    """The ``n`` likeliest next tokens."""
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=n, ignore_eos=True)
    (output,) = llm.generate({"prompt_token_ids": tokens}, params, use_tqdm=False)
    (found,) = output.outputs[0].logprobs
    ranked = sorted(found.items(), key=lambda item: item[1].rank)
    return [(token, value.logprob) for token, value in ranked[:n]]


Next = Callable[[list[int], int], list[tuple[int, float]]]
"""The n likeliest tokens after some, likeliest first."""


def _score(tokens: list[int], total: float, eos: int, penalty: float) -> float:
    """All tokens count, those of the prompt too; an end token at the end does not."""
    length = len(tokens) - 1 if tokens[-1] == eos else len(tokens)
    return total / length**penalty


def _search(
    next_tokens: Next, prompt: list[int], params: BeamSearchParams, eos: int
) -> list[tuple[list[int], float]]:
    """What vLLM finds: beams with the prompt, and the sums of their log probabilities."""

    def key(beam: tuple[list[int], float]) -> float:
        return _score(*beam, eos, params.length_penalty)

    beams: list[tuple[list[int], float]] = [(prompt, 0.0)]
    completed: list[tuple[list[int], float]] = []
    for _ in range(params.max_tokens):
        new = []
        for tokens, total in beams:
            for token, value in next_tokens(tokens, 2 * params.beam_width):
                ends = token == eos and not params.ignore_eos
                (completed if ends else new).append(([*tokens, token], total + value))
        beams = sorted(new, key=key, reverse=True)[: params.beam_width]
    return sorted([*completed, *beams], key=key, reverse=True)[: params.beam_width]


@pytest.mark.parametrize("ignore_eos", [True, False])
@pytest.mark.parametrize("penalty", [1.0, 0.0, 2.5])
def test_the_beams_are_those_of_the_definition(llm: LLM, ignore_eos: bool, penalty: float) -> None:
    params = BeamSearchParams(
        beam_width=3, max_tokens=5, ignore_eos=ignore_eos, length_penalty=penalty
    )
    (output,) = llm.beam_search({"prompt_token_ids": PROMPT}, params)
    found = [(x.tokens, x.cum_logprob) for x in output.sequences]
    assert found == _search(lambda tokens, n: _next(llm, tokens, n), PROMPT, params, tiny.EOS)


class Toy:
    """A model of few tokens, whose log probabilities are drawn for each pair of tokens. With
    ``n_levels`` many are equal."""

    def __init__(self, seed: int, n_tokens: int, n_levels: int) -> None:
        self.rng = random.Random(seed)
        self._known: dict[tuple[int, ...], list[tuple[int, float]]] = {}
        self._n_tokens, self._n_levels = n_tokens, n_levels

    def next(self, tokens: list[int], n: int) -> list[tuple[int, float]]:
        key = tuple(tokens[-2:])
        if key not in self._known:
            values = [-self.rng.randint(1, self._n_levels) / 3.0 for _ in range(self._n_tokens)]
            self._known[key] = sorted(enumerate(values), key=lambda item: -item[1])
        return self._known[key][:n]


def _run(search: Search, toy: Toy) -> list[tuple[list[int], float]]:
    ids = count(1)
    while search.is_open:
        news = []
        for request in search.requests(ids):
            top = tuple(toy.next(list(request.prompt), request.params.n_logprobs))
            chosen = TokenLogprob(token=top[0][0], logprob=top[0][1], rank=1, top=top)
            news.append(TokenEvent(id=request.id, tokens=(top[0][0],), logprobs=(chosen,)))
        search.grow(news)
    return [([*search.prompt, *beam.tokens], beam.cum_logprob) for beam in search.best()]


def test_toy_models_give_the_beams_of_the_definition() -> None:
    penalties = (-1.0, 0.0, 0.3, 1.0, 2.0, 10.0)
    n_ended = 0
    for seed in range(600):
        toy = Toy(seed, n_tokens=2 + seed % 7, n_levels=3 if seed % 3 else 10**6)
        params = BeamSearchParams(
            beam_width=toy.rng.randint(1, 4),
            max_tokens=toy.rng.randint(1, 7),
            ignore_eos=seed % 4 == 0,
            length_penalty=toy.rng.choice(penalties),
        )
        prompt = [toy.rng.randrange(2 + seed % 7) for _ in range(toy.rng.randint(1, 6))]
        expected = _search(toy.next, prompt, params, eos=1)
        assert _run(Search(tuple(prompt), params, (1,)), toy) == expected, seed
        n_ended += sum(tokens[-1] == 1 for tokens, _ in expected)
    assert n_ended > 300


def test_one_beam_is_the_greedy_answer(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=1, max_tokens=8)
    (beam,) = llm.beam_search({"prompt_token_ids": PROMPT}, params)[0].sequences
    greedy = SamplingParams(temperature=0.0, max_tokens=8)
    (output,) = llm.generate({"prompt_token_ids": PROMPT}, greedy, use_tqdm=False)
    assert beam.tokens == PROMPT + output.outputs[0].token_ids


@pytest.mark.parametrize("cache", [True, False])
def test_prompts_together_give_what_each_gives_alone(folder: Path, cache: bool) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=6)
    prompts = [{"prompt_token_ids": PROMPT[:n]} for n in (3, 17, 18)]
    options = {"max_model_len": 96, "threads": 1, "enable_prefix_caching": cache}
    with LLM(str(folder), **options) as llm:
        alone = [llm.beam_search(prompt, params)[0] for prompt in prompts]
        assert llm.beam_search(prompts, params) == alone
        stats = llm._has().built.engine.stats()
        assert stats.blocks_free + stats.blocks_cached == stats.blocks_total


def test_the_prompt_counts_and_an_end_token_does_not() -> None:
    """Five tokens of prompt: -1.2 / 7 is better than -1.1 / 5, and -1.2 / 1 is worse than -1.1."""
    for penalty, order in ((1.0, [(7, 8), (9,)]), (0.0, [(9,), (7, 8)])):
        params = BeamSearchParams(beam_width=2, max_tokens=2, length_penalty=penalty)
        search = Search((1, 2, 3, 4, 5), params, (9,))
        search.ended = [Beam((9,), -1.1, is_ended=True)]
        search.beams = [Beam((7, 8), -1.2)]
        assert search.score(search.ended[0]) == -1.1 / 5**penalty
        assert search.score(search.beams[0]) == -1.2 / 7**penalty
        assert [beam.tokens for beam in search.best()] == order


def test_bad_parameters_are_refused(llm: LLM) -> None:
    bad = (
        {"beam_width": 0, "max_tokens": 1},
        {"beam_width": 17, "max_tokens": 1},
        {"beam_width": 1, "max_tokens": 0},
        {"beam_width": 1, "max_tokens": 1, "length_penalty": float("nan")},
        {"beam_width": 1, "max_tokens": 90},
    )
    for values in bad:
        with pytest.raises(RequestError):
            llm.beam_search({"prompt_token_ids": PROMPT}, BeamSearchParams(**values))


@pytest.mark.parametrize("error", [KvasirError("a beam failed"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", ["add", "step"])
def test_a_search_that_fails_leaves_nothing_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch, at: str, error: BaseException
) -> None:
    """In the middle of a token, when some of its beams are queued and their parents are held."""
    params = BeamSearchParams(beam_width=3, max_tokens=6, ignore_eos=True)
    with LLM(str(folder), max_model_len=96, threads=1, enable_prefix_caching=False) as llm:
        expected = llm.beam_search({"prompt_token_ids": PROMPT}, params)
        engine = llm._has().built.engine
        calls, plain = count(), getattr(engine, at)

        def failing(*args: object) -> object:
            if next(calls) == 5:
                raise error
            return plain(*args)

        with monkeypatch.context() as patch:
            patch.setattr(type(engine), at, lambda self, *args: failing(*args))
            with pytest.raises(type(error)):
                llm.beam_search({"prompt_token_ids": PROMPT}, params)
        assert not engine.has_work
        stats = engine.stats()
        assert stats.blocks_free == stats.blocks_total
        assert llm.beam_search({"prompt_token_ids": PROMPT}, params) == expected


def test_early_stopping_ends_with_the_first_beams_that_ended() -> None:
    n_steps = []
    for early in (False, True):
        params = BeamSearchParams(beam_width=2, max_tokens=30, early_stopping=early)
        search = Search((1, 2, 3), params, (1,))
        found = _run(search, Toy(5, 6, 4))
        assert len(found) == 2 and search.is_open is False
        n_steps.append(max(len(beam.tokens) for beam in search.beams))
    assert n_steps[1] < n_steps[0] == 30
