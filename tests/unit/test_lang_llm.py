"""Programs over an ``LLM``: what is computed once, and that nothing else changes an answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvasir.lang as sgl
from kvasir import LLM, SamplingParams
from kvasir.core.errors import RequestError
from kvasir.lang.seeds import seed_of
from tests.e2e.toy_model import END, write_toy_model
from tests.lang_programs import everything, extract_info, json_generation, multi_perspective

WORDS = "What now? <|im_end|>"


def opened(folder: Path, **options: Any) -> LLM:
    return LLM(str(folder), threads=1, max_model_len=2048, kv_memory="64MiB", **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_model(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with opened(folder) as made:
        yield made


@sgl.function
def text_program(s: sgl.ProgramState, begin: str, n: int = 20) -> None:
    s += begin
    s += " and"
    s += sgl.gen("x", max_tokens=n, ignore_eos=True)


@sgl.function
def three_ways(s: sgl.ProgramState, begin: str, order: int = 1, n: int = 8) -> list[str]:
    s += begin
    forks = s.fork(3)
    for i in list(range(3))[::order]:
        forks[i] += f"<{i}>" + sgl.gen("x", max_tokens=n, ignore_eos=True)
    return [fork["x"] for fork in forks]


@sgl.function
def ended_structure(s: sgl.ProgramState, late: dict[str, Any]) -> None:
    s += "begin " + sgl.gen("x", regex="abc", **late)
    s += " and" + sgl.gen("y", max_tokens=4, ignore_eos=True)


def test_text_is_that_of_generate(llm: LLM) -> None:
    state = text_program.run("one", backend=llm, seed=3)
    params = SamplingParams(max_tokens=20, seed=seed_of(3, (0,)), ignore_eos=True)
    (output,) = llm.generate("one and", params, use_tqdm=False)
    assert state["x"] == output.outputs[0].text
    assert list(state.answer("x").token_ids) == output.outputs[0].token_ids


def test_turns_are_those_of_chat(llm: LLM) -> None:
    """Whose words name a special token, which stays words."""

    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += sgl.system("Be good.") + sgl.user(WORDS) + sgl.assistant(sgl.gen("x", max_tokens=9))

    state = program.run(backend=llm)
    messages = [{"role": "system", "content": "Be good."}, {"role": "user", "content": WORDS}]
    params = SamplingParams(max_tokens=9, seed=seed_of(0, (0,)))
    (output,) = llm.chat(messages, params, use_tqdm=False)
    assert state["x"] == output.outputs[0].text
    assert state.answer("x").counts.n_prompt == len(output.prompt_token_ids)


def test_what_was_drawn_is_not_tokenized_again(llm: LLM) -> None:
    """The second call goes on from the ids of the first, its end token left out."""

    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += "begin"
        s += sgl.gen("x", max_tokens=8, logit_bias={END: 100.0}, min_tokens=3)
        s += sgl.gen("y", max_tokens=8, ignore_eos=True)

    state = program.run(backend=llm)
    x, y = state.answer("x"), state.answer("y")
    assert (x.finish_reason, len(x.token_ids), x.token_ids[-1]) == ("stop", 4, END)
    prompt = [*llm.get_tokenizer().encode("begin"), *x.token_ids[:-1]]
    params = SamplingParams(max_tokens=8, seed=seed_of(0, (1,)), ignore_eos=True)
    (output,) = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)
    assert list(y.token_ids) == output.outputs[0].token_ids


@pytest.mark.parametrize(
    "late", [{}, {"ignore_eos": True}, {"min_tokens": 3}, {"min_tokens": 8}, {"max_tokens": 3}]
)
def test_a_structure_keeps_its_last_token(llm: LLM, late: dict[str, Any]) -> None:
    """Also where it ends without one that only ends it."""
    state = ended_structure.run(late, backend=llm)
    assert state["x"] == "abc" and state.answer("y").counts.n_prompt == len("begin abc and")


def test_order_and_company_change_nothing(llm: LLM) -> None:
    alone = [three_ways.run(f"begin {i}", backend=llm, seed=5 + i) for i in range(6)]
    arguments = [{"begin": f"begin {i}", "order": -1} for i in range(6)]
    assert three_ways.run_batch(arguments, backend=llm, seed=5) == alone
    assert three_ways.run_batch(arguments, backend=llm, seed=5, num_threads=1) == alone
    assert len({text for texts in alone for text in texts}) == 18


@pytest.mark.parametrize("caches", [True, False])
def test_a_fork_computes_what_is_shared_once(folder: Path, caches: bool) -> None:
    with opened(folder, enable_prefix_caching=caches) as llm:
        trace = sgl.Trace()
        begin = "x" * 200
        texts = three_ways.run(begin, backend=llm, trace=trace)
        first, *branches = trace.records
        assert (first.kind, first.n_computed) == ("fork", 199)
        computed = [record.n_computed for record in branches]
        # Two branches begin alike: who comes late may find what the other has computed.
        assert all(n <= 4 for n in computed) if caches else computed == [4, 4, 4]
        prompts = [f"{begin}<{i}>" for i in range(3)]
        params = [
            SamplingParams(max_tokens=8, seed=seed_of(0, (0, i, 0)), ignore_eos=True)
            for i in range(3)
        ]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert texts == [output.outputs[0].text for output in outputs]


def test_a_program_gives_back_what_it_held(folder: Path) -> None:
    with opened(folder, enable_prefix_caching=False) as llm:
        three_ways.run("x" * 100, backend=llm)
        text_program.run("y", backend=llm)  # the session does what waits
        llm.generate("z", SamplingParams(max_tokens=1), use_tqdm=False)
        stats = llm._has().built.engine.stats()
        assert stats.blocks_free == stats.blocks_total


def test_choices_are_scored_as_prompts_are(llm: LLM) -> None:
    choices = ["yes", "no", "perhaps not"]

    @sgl.function
    def program(s: sgl.ProgramState, method: Any) -> Any:
        s += "Shall we? "
        s += sgl.select("c", choices, method)
        return s.answer("c")

    def logprobs(text: str, n: int) -> list[float]:
        params = SamplingParams(max_tokens=1, prompt_logprobs=0)
        (output,) = llm.generate(text, params, use_tqdm=False)
        entries = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
        return [e[i].logprob if e is not None else 0.0 for i, e in list(entries)[-n:]]

    given = [logprobs(f"Shall we? {choice}", len(choice)) for choice in choices]
    alone = [logprobs(choice, len(choice)) for choice in choices]
    for method in (
        sgl.token_length_normalized,
        sgl.greedy_token_selection,
        sgl.unconditional_likelihood_normalized,
    ):
        trace = sgl.Trace()
        answer = program.run(method, backend=llm, trace=trace)
        scores = method.scores(given, alone)
        assert list(answer.scores) == scores
        assert answer.text == choices[scores.index(max(scores))]
    counts = program.run(sgl.token_length_normalized, backend=llm).counts
    assert counts.n_prompt - counts.n_cached <= 9 + sum(map(len, choices))


def test_the_programs_of_a_tutorial_run(llm: LLM) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "scores": {"type": "array", "items": {"enum": [1, 2.5]}, "maxItems": 3},
        },
        "required": ["name", "scores"],
        "additionalProperties": False,
    }
    sgl.set_default_backend(llm)
    try:
        result = extract_info.run(text="John Smith, 35, john@example.com")
        made = json_generation.run(schema=schema)
        final = multi_perspective.run(question="Is it so?")
    finally:
        sgl.set_default_backend(None)
    assert list(result) == ["name", "age", "email"] and "\n" not in result["name"]
    assert re.fullmatch(r"\d+", result["age"])
    assert re.match(r"[\w.-]+", result["email"])
    assert isinstance(made["name"], str) and set(made["scores"]) <= {1, 2.5}
    assert final


def test_forms_are_kept_to(llm: LLM) -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> tuple[object, ...]:
        s += "x" + sgl.gen("i", dtype=int) + "y" + sgl.gen("b", dtype=bool)
        s += sgl.gen("g", grammar='root ::= "a" [0-9]{2}')
        return s.value("i"), s.value("b"), s["g"]

    i, b, g = program.run(backend=llm)
    assert isinstance(i, int) and isinstance(b, bool) and re.fullmatch("a[0-9]{2}", g)


def test_errors_name_what_is_wrong(llm: LLM) -> None:
    def program(body: Any) -> Any:
        return sgl.function(body).run(backend=llm)

    def text_between(s: sgl.ProgramState) -> None:
        s += sgl.user("a")
        s += "b"

    def late_turn(s: sgl.ProgramState) -> None:
        s += "a"
        s += sgl.user("b")

    def call_of_the_user(s: sgl.ProgramState) -> None:
        s += sgl.user(sgl.gen("x"))

    with pytest.raises(RequestError, match="text stands between two turns"):
        program(text_between)
    with pytest.raises(RequestError, match="a turn begins after text without turns"):
        program(late_turn)
    with pytest.raises(RequestError, match="a call stands outside the turns of the assistant"):
        program(call_of_the_user)
    with pytest.raises(RequestError, match="max_tokens"):
        text_program.run("a", 5000, backend=llm)


def test_a_timeout_reaches_the_engine(llm: LLM) -> None:
    trace = sgl.Trace()
    with pytest.raises(sgl.ProgramTimeout):
        text_program.run("a", 1900, backend=llm, timeout=0.05, trace=trace)
    assert trace.records == ()
    llm.generate("z", SamplingParams(max_tokens=1), use_tqdm=False)
    stats = llm._has().built.engine.stats()
    assert (stats.n_running, stats.n_waiting) == (0, 0)


def test_a_closed_llm_is_named(folder: Path) -> None:
    llm = opened(folder)
    llm.close()
    with pytest.raises(RequestError, match="this LLM is closed"):
        text_program.run("a", backend=llm)


def test_streams_tell_what_runs_tell(llm: LLM) -> None:
    stream = everything.stream(WORDS, backend=llm, seed=2)
    told: dict[str, str] = {}
    for name, text in stream:
        told[name] = told.get(name, "") + text
    state = everything.run(WORDS, backend=llm, seed=2)
    assert stream.result.text() == state.text()
    for name in ("first", "number", "choice", "other", "third", "last"):
        assert told[name] == state[name]
