"""Answers in an engine keep to their grammars, whatever is computed how."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvasir import LLM, SamplingParams, StructuredOutputs
from kvasir.core.messages import TokenEvent
from kvasir.core.params import TokenParams, mask_words
from kvasir.core.request import EngineRequest
from kvasir.engine.engine import Engine
from kvasir.exec.fake import FakeExecutor
from kvasir.grammar import masks as grammar_masks
from kvasir.grammar.constraint import (
    Constraint,
    choice_grammar,
    lark_grammar,
    regex_grammar,
    schema_grammar,
    text_grammar,
)
from kvasir.grammar.errors import InvalidGrammar, UnsupportedSchema
from kvasir.grammar.masks import GrammarMasks, check_compiles
from kvasir.sampling.masks import allows
from kvasir.sched.scheduler import Scheduler
from tests.byte_grammar import EOS, byte_tokens, takes
from tests.e2e.toy_model import write_toy_model
from tests.oracle_drafts import OracleProposer
from tests.sizes import config_of

VOCAB = EOS + 1
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy", None]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
GRAMMARS = (
    schema_grammar(SCHEMA, spaces=None),
    regex_grammar("[a-c]{3}(/|\n)[0-9]+x"),
    choice_grammar(["yes", "no", 'say "no"']),
    text_grammar('root ::= "a" [0-9]{2,3} ("b" "c")*'),
)
overlaps = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])


def engine(
    *,
    overlap: bool = False,
    n_blocks: int = 200,
    drafts: dict[int, tuple[int, ...]] | None = None,
    jump_ahead: bool = True,
    grammars: Sequence[Constraint] = GRAMMARS,
) -> Engine:
    n_drafts = 0 if drafts is None else 6
    config = config_of(96, 4, 32, n_blocks, 4, vocab_size=VOCAB, max_draft_tokens=n_drafts)
    proposer = None if drafts is None else OracleProposer(drafts, VOCAB, n_siblings=1)
    masks = GrammarMasks(byte_tokens)
    for grammar in grammars:  # requests arrive in their order
        masks.check(grammar.text)
    executor = FakeExecutor(config.sizes)
    scheduler = Scheduler(config, proposer)
    return Engine(executor, scheduler, overlap=overlap, masks=masks, jump_ahead=jump_ahead)


def request(i: int, constraint: str, n_prompt: int = 20) -> EngineRequest:
    params = TokenParams(seed=i, max_tokens=60, stop_ids=(EOS,), constraint=constraint)
    return EngineRequest(i, tuple(range(i, i + n_prompt)), params)


REQUESTS = [request(i, GRAMMARS[i % 4].text) for i in range(12)]


def answers(made: Engine, requests: Sequence[EngineRequest]) -> dict[int, tuple[int, ...]]:
    """Ids of each, the end included; nothing is left behind."""
    made.submit(requests)
    events: dict[int, list[TokenEvent]] = {}
    while made.has_work:
        for event in made.step().events:
            assert event.error is None, event.error
            events.setdefault(event.id, []).append(event)
        made.check()
    made.close()
    found = {}
    for i, said in events.items():
        end = (EOS,) if said[-1].finish == "stop" else ()
        found[i] = (*(token for event in said for token in event.tokens if token != EOS), *end)
    return found


@overlaps
def test_answers_keep_to_their_grammar(overlap: bool) -> None:
    found = answers(engine(overlap=overlap), REQUESTS)
    n_ended = 0
    for one in REQUESTS:
        ids = found[one.id]
        if ids[-1] == EOS:
            n_ended += 1
            assert takes(GRAMMARS[one.id % 4], bytes(ids[:-1]).decode())
    assert n_ended >= 6
    assert json.loads(bytes(found[8][:-1]))["b"] in ("x", "yy", None)


@overlaps
def test_together_alone_drafted_and_preempted(overlap: bool) -> None:
    alone = {}
    for one in REQUESTS:
        alone |= answers(engine(jump_ahead=False), [one])
    together = engine(overlap=overlap)
    assert answers(together, REQUESTS) == alone
    assert together.stats().n_forced > 20  # fewer where masks are late
    assert answers(engine(overlap=overlap, drafts=dict(alone)), REQUESTS) == alone
    assert answers(engine(overlap=overlap, n_blocks=24), REQUESTS) == alone
    tight = engine(overlap=overlap, n_blocks=30, jump_ahead=False)
    assert answers(tight, REQUESTS) == alone
    assert tight.stats().n_preemptions > 0


COUNTING = (
    lark_grammar('start: a "xyzxyz"\na[max_tokens=3]: /[a-z]*/'),
    lark_grammar('start: a "end of it"\na[stop="q"]: /[a-f]{1,9}/'),
    lark_grammar('start: "say " a "!"\na[max_tokens=2, stop=""]: /[a-z]*/'),
)


@overlaps
def test_rules_that_count_tokens_give_the_same_with_drafts(overlap: bool) -> None:
    """The library takes nothing back there: what comes behind drafts is asked of copies."""
    requests = [request(i, COUNTING[i % 3].text) for i in range(6)]

    def made(**how: Any) -> Engine:
        return engine(overlap=overlap, grammars=COUNTING, **how)

    plain = answers(made(jump_ahead=False), requests)
    assert all(ids[-1] == EOS for ids in plain.values())
    jumping = made()
    assert answers(jumping, requests) == plain
    assert jumping.stats().n_forced > 10
    assert answers(made(drafts=dict(plain)), requests) == plain
    assert answers(made(n_blocks=22), requests) == plain


def test_an_answer_goes_on_where_another_engine_stopped() -> None:
    """As after a replay: the outputs so far are told at the opening."""
    masks, path = GrammarMasks(byte_tokens), b'{"a":1'
    masks.open(0, GRAMMARS[0].text, tuple(path))
    bits = np.zeros(mask_words(VOCAB), np.uint32)
    masks.fill(0, (), bits)
    assert allows(bits, ord(",")) and not allows(bits, ord("}"))
    bits[:] = 0
    masks.fill(0, tuple(b',"b":"'), bits)
    assert [chr(i) for i in range(256) if allows(bits, i)] == ["x", "y"]
    bits[:] = 0
    masks.fill(0, (), bits)
    assert allows(bits, ord("5"))
    with pytest.raises(ValueError, match=r"."):
        masks.accept(0, tuple(b"}"))


def test_compiled_grammars_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_masks, "MAX_COMPILED", 3)
    masks = GrammarMasks(byte_tokens)
    for i in range(10):
        masks.prepare(regex_grammar(f"a{{{i + 1}}}").text)
    assert masks.n_compiled == 3
    monkeypatch.setattr(grammar_masks, "MAX_COMPILED_BYTES", 150)
    masks.prepare(regex_grammar("b" * 100).text)
    assert masks.n_compiled == 1


def test_what_waits_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many others come meanwhile: nothing is compiled inside of a step."""
    monkeypatch.setattr(grammar_masks, "MAX_COMPILED", 2)
    masks, made = GrammarMasks(byte_tokens), list[str]()
    compile_one = masks._compile
    monkeypatch.setattr(masks, "_compile", lambda text: made.append(text) or compile_one(text))
    texts = [regex_grammar(f"a{{{i + 1}}}").text for i in range(6)]
    waiting = [masks.prepare(text) for text in texts]
    for slot, text in enumerate(texts):
        masks.open(slot, text, ())
    assert made == texts and all(is_ready() for is_ready in waiting)
    del waiting
    masks.check(texts[0])
    assert made == [*texts, texts[0]]


@overlaps
def test_an_end_before_min_tokens(overlap: bool) -> None:
    """Nothing but its end is left: that beats them, drafted or not."""
    params = TokenParams(
        seed=4, max_tokens=60, min_tokens=30, stop_ids=(EOS,), constraint=GRAMMARS[2].text
    )
    one = EngineRequest(0, tuple(range(20)), params)
    plain = answers(engine(overlap=overlap), [one])
    assert bytes(plain[0][:-1]).decode() in ("yes", "no", 'say "no"')
    assert answers(engine(overlap=overlap, drafts=plain), [one]) == plain


def test_ten_thousand_choices() -> None:
    words = [f"value number {i}" for i in range(10_000)]
    grammar = choice_grammar(words)
    check_compiles(byte_tokens(), grammar.text, np.zeros(mask_words(VOCAB), np.uint32))
    assert takes(grammar, "value number 99") and takes(grammar, "value number 9999")
    assert not takes(grammar, "value number 10000")
    with pytest.raises(InvalidGrammar, match="10001"):
        choice_grammar([*words, "one more"])


def test_objects_of_many_optional_properties_hold_or_are_refused_at_once() -> None:
    """More may follow their brace than begins them; each name costs a time that grows with them."""
    bits = np.zeros(mask_words(VOCAB), np.uint32)

    def wide(n: int) -> Constraint:
        return schema_grammar({"properties": {f"p{i}": {"type": "null"} for i in range(n)}})

    check_compiles(byte_tokens(), wide(400).text, bits)
    assert takes(wide(400), '{"p7":null,"p399":null}')
    with pytest.raises(UnsupportedSchema, match=r"at #/properties is .* 600 optional"):
        wide(600)


def test_wide_objects_are_refused_wherever_they_stand() -> None:
    """What is taken is followed to its end, at every level."""

    def names(letter: str, n: int) -> dict[str, Any]:
        return {f"{letter}{i}": {"type": "null"} for i in range(n)}

    def of(*letters: str, n: int, **more: object) -> list[dict[str, Any]]:
        return [{"type": "object", "properties": names(one, n), **more} for one in letters]

    def cases(n: int) -> list[tuple[dict[str, Any], str]]:
        half, third = n // 2, n // 3
        return [
            ({"properties": {"a": of("p", n=n)[0]}}, '{"a":{'),
            ({"items": of("p", n=n)[0], "type": "array"}, "[{"),
            ({"properties": {"a": {"anyOf": of("p", "q", n=half)}}}, '{"a":{'),
            ({"properties": {"a": {"allOf": of("p", "q", n=half)}}}, '{"a":{'),
            (
                {"$defs": {"d": of("p", n=n)[0]}, "additionalProperties": {"$ref": "#/$defs/d"}},
                '{"x":{',
            ),
            (of("p", n=n + third, required=[f"p{third - 1}"])[0], f'{{"p{third - 1}":null,'),
        ]

    bits = np.zeros(mask_words(VOCAB), np.uint32)
    for schema, begin in cases(486):
        matcher = byte_tokens().compile(schema_grammar({"type": "object", **schema}).text).copy()
        matcher.fill(tuple(begin.encode()), bits)
    for schema, _ in cases(498):
        with pytest.raises(UnsupportedSchema, match="optional ones may come next, 490 at most"):
            schema_grammar(schema)
    narrow = of(*map(chr, range(0x41, 0x5B)), n=60)
    for one in narrow:  # the first property tells them apart
        name = next(iter(one["properties"]))
        one["required"] = [name]
    schema_grammar({"items": {"anyOf": narrow}, "type": "array"})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (regex_grammar("(?=a)b").text, "look-around"),
        (regex_grammar("(" * 3000 + ")" * 3000).text, "regex"),
        (lark_grammar('start: foo "a"').text, "unknown name"),
        (lark_grammar("start: " + "(" * 30_000 + '"a"' + ")" * 30_000).text, "nested"),
        (schema_grammar({"type": "array", "items": False, "minItems": 1}).text, "nsatisfiable"),
    ],
)
def test_what_does_not_compile(text: str, why: str) -> None:
    bits = np.zeros(mask_words(VOCAB), np.uint32)
    with pytest.raises(InvalidGrammar, match=why) as caught:
        check_compiles(byte_tokens(), text, bits)
    assert len(caught.value.message) < 600


def test_left_recursion() -> None:
    grammar = lark_grammar('start: start "," item | item\nitem: /[a-z]+/')
    assert takes(grammar, "a," * 500 + "b") and not takes(grammar, "a,,b")


def test_bad_gbnf() -> None:
    with pytest.raises(InvalidGrammar):
        text_grammar("root ::= (((")
    with pytest.raises(InvalidGrammar, match="1 to 10000"):
        choice_grammar([])
    with pytest.raises(InvalidGrammar, match="empty string"):
        choice_grammar(["a", ""])


def test_gbnf_is_told_by_its_rules() -> None:
    """Whatever else looks like a rule of Lark."""
    assert takes(text_grammar('root ::= a | b\na ::= "a"\nb ::= "b" root'), "bba")
    assert takes(text_grammar('# start: one\nroot ::= "a"'), "a")
    assert takes(text_grammar('start: "::="'), "::=")


def test_an_llm_keeps_to_them(tmp_path: Path) -> None:
    params = {"max_tokens": 60, "seed": 3}
    with LLM(str(write_toy_model(tmp_path)), max_model_len=128, kv_memory="1MiB") as llm:
        asked = StructuredOutputs(json=SCHEMA, disable_any_whitespace=True)
        (answer,) = llm.generate("x", SamplingParams(structured_outputs=asked, **params))
        assert list(json.loads(answer.outputs[0].text)) == ["a", "b"]
        with pytest.raises(InvalidGrammar, match="look-around"):
            llm.generate("x", SamplingParams(structured_outputs=StructuredOutputs(regex="(?=a)")))
