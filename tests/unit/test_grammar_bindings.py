"""The library by its C interface and by its Python one: the same masks, endings and errors."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from kvasir.core.errors import RequestError
from kvasir.core.params import mask_words
from kvasir.grammar import c_binding, python_binding
from kvasir.grammar.binding import Library, TokenSpellings
from kvasir.grammar.constraint import (
    Constraint,
    choice_grammar,
    lark_grammar,
    regex_grammar,
    schema_grammar,
    text_grammar,
)
from kvasir.grammar.errors import InvalidGrammar
from kvasir.grammar.masks import check_compiles
from kvasir.grammar.matcher import GrammarTokens, Matcher
from kvasir.grammar.vocabulary import Vocabulary
from kvasir.sampling.masks import Bits

LIBRARY = c_binding.library()
pytestmark = pytest.mark.skipif(
    LIBRARY is None, reason="the C interface of the installed llguidance is not known"
)

WORDS = (b'{"', b'":', b"name", b"tru", b"e}", "é".encode(), "é".encode()[:1], b"  ", b"0.5", b"")
N_IDS = 300
"""More than have a meaning."""
ENDS = (257, 259)
SPECIAL = (256, *ENDS)
TOKENS = [*(bytes([i]) for i in range(256)), b"<call>", b"<eos>", *WORDS[:1], b"<end>", *WORDS[1:]]
GRAMMARS = (
    schema_grammar(
        {
            "type": "object",
            "properties": {"name": {"type": "string"}, "b": {"enum": [True, "yé", 0.5]}},
            "required": ["name"],
        }
    ),
    schema_grammar({"type": "array", "items": {"type": "number", "minimum": 0.5}}, spaces=None),
    text_grammar('root ::= "a" [0-9]{2,3} ("b" "é")*'),
    lark_grammar("start: /[a-z]*/ <call> /.*/"),
)
REFUSED = (
    lark_grammar("start: missing"),
    lark_grammar('start: "a'),
    schema_grammar({"type": "string", "pattern": "(?=a)"}),
)


BARREN = (
    regex_grammar(r"a[^\s\S]b"),
    lark_grammar('start: start "a"'),
    text_grammar("root ::= [^\\x00-\\U0010FFFF]"),
)


def encode(text: str) -> list[int]:
    """The longest token first, as a greedy tokenizer has it."""
    data, ids = text.encode(), []
    spelled = {token: i for i, token in enumerate(TOKENS) if i not in SPECIAL and token}
    while data:
        n = next(n for n in range(len(data), 0, -1) if data[:n] in spelled)
        ids.append(spelled[data[:n]])
        data = data[n:]
    return ids


def tokens(library: Callable[[TokenSpellings], Library]) -> GrammarTokens:
    return GrammarTokens(Vocabulary(TOKENS, frozenset(SPECIAL), ENDS, encode), N_IDS, library)


def by_c(table: TokenSpellings) -> Library:
    assert LIBRARY is not None
    return c_binding.CLibrary(LIBRARY, table)


@cache
def both() -> tuple[GrammarTokens, GrammarTokens]:
    return tokens(by_c), tokens(python_binding.PythonLibrary)


def mask(matcher: Matcher, path: tuple[int, ...] = ()) -> Bits:
    bits = np.zeros(mask_words(N_IDS), np.uint32)
    matcher.fill(path, bits)
    return bits


def allowed(bits: Bits) -> list[int]:
    flags = np.unpackbits(bits.view(np.uint8), bitorder="little")
    return [int(i) for i in np.flatnonzero(flags)]


def test_the_known_interface_is_taken() -> None:
    vocabulary = Vocabulary(TOKENS, frozenset(SPECIAL), ENDS, encode)
    made = GrammarTokens(vocabulary, N_IDS).compile(GRAMMARS[0].text)
    assert isinstance(made._stand, c_binding.CStand)


def test_another_version_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_binding, "library", lambda: None)
    vocabulary = Vocabulary(TOKENS, frozenset(SPECIAL), ENDS, encode)
    made = GrammarTokens(vocabulary, N_IDS).compile(GRAMMARS[0].text)
    assert isinstance(made._stand, python_binding.PythonStand)


@pytest.mark.parametrize("version", ["llguidance@1.7.6", "llguidance@2.8.0", "llguidance@1.80.0"])
def test_versions_that_are_not_known(version: str) -> None:
    assert not c_binding.KNOWN.search(version)


@pytest.mark.parametrize("grammar", GRAMMARS, ids=["object", "array", "gbnf", "special"])
@pytest.mark.parametrize("seed", range(5))
def test_both_say_the_same(grammar: Constraint, seed: int) -> None:
    """Along random answers: masks, masks behind drafts, copies, endings."""
    rng = random.Random(seed)
    ours, theirs = (one.compile(grammar.text).copy() for one in both())
    for _ in range(40):
        bits = mask(ours)
        assert np.array_equal(bits, mask(theirs))
        assert ours.is_accepting == theirs.is_accepting
        choices = allowed(bits)
        assert choices and max(choices) < len(TOKENS)
        token = rng.choice(choices)
        assert np.array_equal(mask(ours, (token,)), mask(theirs, (token,)))
        if rng.random() < 0.2:
            ours, theirs = ours.copy(), theirs.copy()
        goes_on = ours.consume((token,))
        assert goes_on == theirs.consume((token,)) == (token not in ENDS)
        if not goes_on:
            return


def test_both_refuse_the_same_tokens() -> None:
    said = []
    for one in both():
        matcher = one.compile(GRAMMARS[2].text).copy()
        with pytest.raises(ValueError, match=r".") as refused:
            matcher.consume(encode("ax"))
        with pytest.raises(ValueError, match=r".") as again:
            mask(matcher)
        said.append((str(refused.value), str(again.value)))
    assert said[0] == said[1]


@pytest.mark.parametrize("grammar", REFUSED, ids=["missing", "open", "pattern"])
def test_both_refuse_the_same_grammars(grammar: Constraint) -> None:
    said = []
    for one in both():
        with pytest.raises(RequestError) as refused:
            one.compile(grammar.text)
        said.append((refused.value.code, refused.value.message))
    assert said[0] == said[1]


@pytest.mark.parametrize("grammar", BARREN, ids=["regex", "lark", "gbnf"])
def test_a_grammar_without_texts_is_refused_in_our_words(grammar: Constraint) -> None:
    bits = np.zeros(mask_words(N_IDS), np.uint32)
    for one in both():
        with pytest.raises(InvalidGrammar, match="no answer can begin"):
            check_compiles(one, grammar.text, bits)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(RequestError, match="surrogates not allowed"):
        both()[0].compile(schema_grammar({"const": "\ud800"}).text)


@pytest.mark.parametrize("attribute", ["max_tokens=3", 'stop="q"', 'stop=""'])
def test_paths_are_asked_of_copies_where_nothing_is_taken_back(attribute: str) -> None:
    text = lark_grammar(f'start: a "xy"\na[{attribute}]: /[a-z]*/').text
    for one in both():
        matcher = one.compile(text).copy()
        for path in ((), encode("a"), encode("ab"), encode("abcx"), encode("abcxy")):
            behind = matcher.copy()
            try:
                behind.consume(path)
            except ValueError:
                continue
            assert np.array_equal(mask(matcher, tuple(path)), mask(behind))
        matcher.consume(encode("a"))


def test_the_words_alone_cost_no_copies() -> None:
    grammar = choice_grammar(["stop = 3", "max_tokens=4"])
    for one in both():
        assert one.compile(grammar.text)._goes_back


def test_a_vocabulary_without_meaning_is_refused() -> None:
    with pytest.raises(ValueError, match="EOS token ID 9"):
        by_c(TokenSpellings([b"a"], (), (9,), encode))


def test_a_mask_of_another_size_is_refused() -> None:
    matcher = both()[0].compile(GRAMMARS[0].text)
    with pytest.raises(RuntimeError, match="4 bytes"):
        matcher.fill((), np.zeros(1, np.uint32))


def test_an_answer_that_is_too_dear_hurts_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies share nothing: not what is known of words, and not its limit."""
    monkeypatch.setattr(c_binding, "MAX_LEXER_STATES", 400)
    dear = tokens(by_c).compile(lark_grammar("start: /(.*a.{9}b|.*b.{9}a).*/").text)
    one, other = dear.copy(), dear.copy()
    first = mask(other)
    rng = random.Random(0)
    with pytest.raises(ValueError, match=r"."):
        for _ in range(2000):
            one.consume((rng.choice(b"ab"),))
            mask(one)
    assert np.array_equal(mask(other), first)
    other.consume(list(b"ab"))
    mask(other)
    mask(dear.copy())
