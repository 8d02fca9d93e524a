"""Answers under grammars of the library, however they are computed: the bits of each alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from kvasir.core.params import TokenParams, mask_words
from kvasir.core.request import EngineRequest
from kvasir.exec.fake import FakeExecutor
from kvasir.grammar.constraint import (
    choice_grammar,
    lark_grammar,
    regex_grammar,
    schema_grammar,
)
from kvasir.grammar.masks import GrammarMasks
from kvasir.grammar.matcher import Matcher
from kvasir.grammar.thinking import Limited, ThinkingLimit
from tests import exactness
from tests.byte_grammar import EOS, byte_tokens
from tests.drafting import Drafts
from tests.exactness import Answer, Sizes, Variant, baseline, run

SIZES = Sizes(vocab_size=EOS + 1)
SCHEMA = {
    "type": "object",
    "properties": {"first": {"type": "integer"}, "second": {"enum": ["x", "yy", None]}},
    "required": ["first", "second"],
    "additionalProperties": False,
}
THINKING = ThinkingLimit(
    begin=("<t>",), end=("</t>",), close=tuple(b"</t>"), is_open=True, budget=9
)
CONSTRAINTS = (
    schema_grammar(SCHEMA).text,
    regex_grammar("[a-c]{3}(/|\n)[0-9]{1,9}x").text,
    choice_grammar(["yes", "no", 'say "no"']).text,
    lark_grammar('start: a "endend"\na[max_tokens=4]: /[a-z]*/').text,
    Limited(THINKING, lark_grammar("start: T /[a-z]{4,9}!/\nT: /(.|\\n)*<\\/t>/").text).text(),
    "",
)
VARIANTS = (
    Variant("all at once", n_seqs=32),
    Variant("overlapped, chunks of 7", overlap=True, chunk=7, order=1),
    Variant("forks", forks=True, n_seqs=16, order=2),
    Variant("forks, overlapped, preempted", forks=True, overlap=True, n_spare_blocks=0, order=3),
    Variant("forks, cache, preempted", forks=True, cache=True, n_spare_blocks=1, order=4),
    Variant("forks, tree drafts", forks=True, drafts=Drafts(6, 1), overlap=True, stagger=3),
    Variant("preempted", n_seqs=8, n_spare_blocks=1, order=5),
    Variant(
        "tree drafts, overlapped, preempted", drafts=Drafts(6, 1), overlap=True, n_spare_blocks=1
    ),
    Variant("chain drafts, wrong at depth 2", drafts=Drafts(5, 0, frozenset({2}))),
    *(
        Variant(f"replayed after {n}", replay_after=n, overlap=True, order=n)
        for n in (1, 40, 150, 260)
    ),
    Variant("replayed, forks, tree drafts", replay_after=70, forks=True, drafts=Drafts(6, 1)),
    Variant("replayed, preempted", replay_after=110, n_spare_blocks=1),
    Variant("without jumping", jump_ahead=False, overlap=True),
)


def requests() -> list[EngineRequest]:
    """Some begin alike."""
    found = []
    for i in range(18):
        prompt = (*range(40, 40 + 5 * (i % 4)), *range(i % 3, 20))
        params = TokenParams(
            seed=i,
            max_tokens=36,
            stop_ids=(EOS,),
            temperature=(0.0, 1.0)[i % 2],
            n_logprobs=(-1, 2)[i % 5 == 0],
            constraint=CONSTRAINTS[i % len(CONSTRAINTS)],
        )
        found.append(EngineRequest(i, prompt, params))
    return found


@pytest.fixture(scope="module")
def alone() -> dict[int, Answer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exactness, "Ring", lambda n_ids: GrammarMasks(byte_tokens))
        return baseline(FakeExecutor, requests(), SIZES).answers


def test_answers_are_as_their_grammars_have_them(alone: dict[int, Answer]) -> None:
    ended = [i for i, answer in alone.items() if answer.tokens[-1] == EOS]
    assert len(ended) > 6
    assert not [answer for answer in alone.values() if answer.error_code]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_rows_under_grammars_change_with_nothing(
    variant: Variant, alone: dict[int, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exactness, "Ring", lambda n_ids: GrammarMasks(byte_tokens))
    outcome = run(FakeExecutor, requests(), SIZES, variant, alone)
    assert outcome.answers == alone
    assert bool(outcome.stats.n_preemptions) == (variant.n_spare_blocks is not None)


N_THREADS = 12


def walked(texts: Sequence[str], seed: int) -> list[tuple[int, bytes]]:
    """Tokens and masks along answers of ``texts``; matchers are compiled, copied and left."""
    draw, found = random.Random(seed), []
    bits = np.zeros(mask_words(SIZES.vocab_size), np.uint32)
    for text in texts:
        base = byte_tokens().compile(text)
        for _ in range(3):
            matcher = base.copy()
            for _ in range(30):
                bits[:] = 0
                matcher.fill((), bits)
                flags = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
                token = int(draw.choice(list(flags)))
                found.append((token, bits.tobytes()))
                if token == EOS:
                    break
                path = (token,)
                bits[:] = 0
                matcher.fill(path, bits)
                found.append((-1, bits.tobytes()))
                matcher.consume(path)
    return found


def test_threads_that_share_the_library_and_its_vocabulary() -> None:
    """Each compiles, copies, consumes and asks at once with the others; errors among them."""
    texts = [one for one in CONSTRAINTS[:4] if one]
    expected = [walked(texts, seed) for seed in range(N_THREADS)]
    begin = threading.Barrier(N_THREADS)

    def work(seed: int) -> list[tuple[int, bytes]]:
        begin.wait(30)
        if seed % 3 == 0:
            with pytest.raises(ValueError, match=r"."):
                byte_tokens().compile(texts[0]).consume(b"}")
        return walked(texts, seed)

    with ThreadPoolExecutor(N_THREADS) as pool:
        assert list(pool.map(work, range(N_THREADS))) == expected


def test_copies_of_one_matcher_in_several_threads() -> None:
    """As answers of one grammar have them, some of which end while others begin."""
    base = byte_tokens().compile(CONSTRAINTS[0])
    text = b'{"first":-17,"second":"yy"}'

    def masks(matcher: Matcher, n: int) -> list[bytes]:
        made = matcher.copy()
        found = []
        for i in range(n):
            bits = np.zeros(mask_words(SIZES.vocab_size), np.uint32)
            made.fill((), bits)
            found.append(bits.tobytes())
            made.consume(text[i : i + 1])
        return found

    whole = masks(base, len(text))
    with ThreadPoolExecutor(N_THREADS) as pool:
        lengths = [len(text) - i % 9 for i in range(200)]
        for n, found in zip(lengths, pool.map(partial(masks, base), lengths), strict=True):
            assert found == whole[:n]
