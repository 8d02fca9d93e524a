"""Beam search against an exhaustive one over the reference model's own probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from kvasir import LLM, BeamSearchParams, SamplingParams
from kvasir.core.errors import KvasirError, RequestError
from kvasir.engine.beam import Beam
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


def _search(llm: LLM, width: int, depth: int) -> list[tuple[tuple[int, ...], float]]:
    """Beam search as it is written in books, one request for each beam."""
    beams: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for _ in range(depth):
        grown = [
            (total + value, index, token)
            for index, (tokens, total) in enumerate(beams)
            for token, value in _next(llm, [*PROMPT, *tokens], 2 * width)
        ]
        grown.sort(key=lambda item: (-item[0], item[1], item[2]))
        beams = [((*beams[i][0], token), total) for total, i, token in grown[:width]]
    return beams


@pytest.mark.parametrize("width", [1, 3])
def test_the_beams_are_those_of_the_plain_search(llm: LLM, width: int) -> None:
    params = BeamSearchParams(beam_width=width, max_tokens=5, ignore_eos=True)
    (output,) = llm.beam_search({"prompt_token_ids": PROMPT}, params)
    found = [(tuple(x.tokens[len(PROMPT) :]), x.cum_logprob) for x in output.sequences]
    assert found == _search(llm, width, 5)
    assert {x.finish_reason for x in output.sequences} == {"length"}


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


def test_the_end_token_ends_a_beam(llm: LLM) -> None:
    ended = Beam((4, 2), -1.0, is_ended=True)
    assert ended.score(1.0) == -1.0
    assert Beam((4, 2), -1.0).score(1.0) == -0.5
    assert Beam((4, 2), -1.0).score(0.0) == -1.0


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
