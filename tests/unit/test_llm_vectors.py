"""Vectors and scores of the offline class."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from kvasir import LLM, SamplingParams
from kvasir.checkpoints import config_from
from kvasir.checkpoints.vectors import vector_facts
from kvasir.core.errors import ModelError, RequestError
from kvasir.weights.source import open_model
from tests import tiny, tiny_encoders

PROMPTS = ["one two three", "four", "one two three"]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tiny.write_hf(tiny.llama(), tmp_path_factory.mktemp("model"))
    with LLM(str(folder), max_model_len=96, max_num_seqs=4, threads=1) as made:
        yield made


def test_embeddings(llm: LLM) -> None:
    outputs = llm.embed(PROMPTS)
    tokenizer = llm.get_tokenizer()
    assert [x.prompt_token_ids for x in outputs] == [tokenizer.encode(x) for x in PROMPTS]
    vectors = [x.outputs.embedding for x in outputs]
    assert vectors[0] == vectors[2] != vectors[1]
    assert [len(vector) for vector in vectors] == [64] * 3
    assert math.isclose(math.fsum(x * x for x in vectors[0]), 1.0, rel_tol=1e-6)
    assert llm.embed(outputs[0].prompt_token_ids)[0].outputs.embedding == vectors[0]
    assert llm.embed("four", dimensions=64)[0].outputs.embedding == vectors[1]


def test_each_pooling_is_what_it_says(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    ids = llm.get_tokenizer().encode(PROMPTS[0])
    rows = [llm.encode(ids[: i + 1])[0].outputs.data for i in range(len(ids))]
    assert rows[0].dtype == np.float32
    mean = np.add.reduce([row.astype(np.float64) for row in rows]) / len(rows)
    assert np.array_equal(llm.encode(ids, pooling="last")[0].outputs.data, rows[-1])
    with caplog.at_level(logging.WARNING, "kvasir"):
        assert np.array_equal(llm.encode(ids, pooling="cls")[0].outputs.data, rows[0])
    assert "sees no other" in caplog.text
    found = llm.encode(ids, pooling="mean")[0].outputs.data
    assert np.array_equal(found, mean.astype(np.float32))
    (plain,) = llm.embed(ids, pooling="mean", normalize=False)
    assert plain.outputs.embedding == found.tolist()


def test_scores(llm: LLM) -> None:
    scores = [x.outputs.score for x in llm.score("one", ["two", "one"], method="cosine")]
    assert scores[1] == pytest.approx(1.0)
    a, b = (np.array(x.outputs.embedding) for x in llm.embed(["one", "two"]))
    assert scores[0] == pytest.approx(float(a @ b), abs=1e-6)
    assert llm.score(["one", "one"], ["two", "one"], method="cosine")[0].outputs.score == scores[0]
    assert llm.score("one", "two", method="cosine")[0].outputs.method == "cosine"


def test_truncation(llm: LLM) -> None:
    ids = list(range(3, 90)) * 2
    with pytest.raises(RequestError, match="174"):
        llm.embed(ids)
    for limit, kept in ((-1, ids[-96:]), (5, ids[-5:]), (200, None)):
        if kept is None:
            with pytest.raises(RequestError, match="174"):
                llm.embed(ids, truncate_prompt_tokens=limit)
        else:
            cut = llm.embed(ids, truncate_prompt_tokens=limit)
            assert cut[0].outputs.embedding == llm.embed(kept)[0].outputs.embedding


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"pooling": "max"}, "pooling"),
        ({"dimensions": 8}, "dimensions"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ],
)
def test_what_cannot_be_meant_is_refused(llm: LLM, fields: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        llm.embed("one", **fields)
    assert caught.value.param == param


def test_sides_of_unequal_length_and_unknown_methods_are_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="2 texts on one side and 3 on the other"):
        llm.score(["a", "b"], ["a", "b", "c"])
    with pytest.raises(RequestError, match="no classifier head"):
        llm.score("a", "b", method="classifier")
    with pytest.raises(RequestError, match="'guess'"):
        llm.score("a", "b", method="guess")


def test_an_interrupted_call_leaves_the_engine_whole(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = llm.embed(PROMPTS[0])[0].outputs.embedding
    has = llm._has()
    step, calls = has.built.engine.step, iter(range(2))

    def interrupted() -> object:
        if next(calls, None) == 0:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(has.built.engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.embed(PROMPTS)
    monkeypatch.undo()
    assert llm.embed(PROMPTS[0])[0].outputs.embedding == expected
    params = SamplingParams(max_tokens=4, seed=1)
    assert llm.generate("x", params, use_tqdm=False)[0].outputs[0].finish_reason is not None


def test_an_encoder_makes_vectors_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of all tokens unless told otherwise; its first token sees the others."""
    folder = tiny.write_hf(tiny_encoders.bert(), tmp_path / "bert")
    prompts = [[7, 8, 9], [7, 8, 10]]
    with LLM(str(folder), dtype="float32", threads=1, max_model_len=64) as llm:
        means = [output.outputs.embedding for output in llm.embed(prompts)]
        assert means == [output.outputs.embedding for output in llm.embed(prompts, pooling="mean")]
        firsts = [output.outputs.data for output in llm.encode(prompts, pooling="cls")]
        assert "sees no other" not in caplog.text
        assert not np.array_equal(*firsts)
        with pytest.raises(RequestError, match="makes vectors or labels of texts and writes none"):
            llm.generate(prompts)


@pytest.mark.parametrize("make", [tiny_encoders.jina_v2, tiny_encoders.modern_bert])
def test_texts_have_the_bits_that_each_has_alone(
    make: Callable[[], tiny.TinyModel], tmp_path: Path
) -> None:
    """Of a model whose scores lean, and of one with windows; within a tile and over its end."""
    prompts = [[(7 * i + n) % tiny.VOCAB for i in range(n)] for n in (3, 64, 90, 17, 65)]
    with LLM(str(tiny.write_hf(make(), tmp_path)), threads=2, max_model_len=96) as llm:
        together = llm.encode(prompts)
        for prompt, output in zip(prompts, together, strict=True):
            alone = llm.encode(prompt)[0].outputs.data
            assert np.array_equal(output.outputs.data, alone)


SAID: dict[str, object] = {"prompts": {"query": "ask: ", "document": ""}}


def told(folder: Path, **said: object) -> Path:
    """A folder of sentence-transformers, with prompts."""
    path = tiny.write_hf(tiny_encoders.bert(), folder)
    (path / "config_sentence_transformers.json").write_text(json.dumps({**SAID, **said}))
    return path


def test_prompts_that_the_folder_names(tmp_path: Path) -> None:
    folder = told(tmp_path, default_prompt_name="query")
    with LLM(str(folder), threads=1, max_model_len=64) as llm:
        vectors = {
            text: llm.embed(text, prompt_name="document")[0].outputs.embedding
            for text in ("one", "ask: one")
        }
        assert vectors["one"] != vectors["ask: one"]
        named = llm.embed(["one", {"prompt": "one"}], prompt_name="query")
        assert [x.outputs.embedding for x in named] == [vectors["ask: one"]] * 2
        assert llm.embed("one")[0].outputs.embedding == vectors["ask: one"], "the folder's own"
        ids = llm.get_tokenizer().encode("one")
        assert llm.embed([ids])[0].outputs.embedding == vectors["one"]
        data = llm.encode("one", prompt_name="query")[0].outputs.data
        assert np.array_equal(data, llm.encode("ask: one", prompt_name="document")[0].outputs.data)
        assert math.isclose(llm.score("one", "one")[0].outputs.score, 1.0, rel_tol=1e-6)
        assert llm.score(ids, "one")[0].outputs.score < 0.9999, "ids stay as they are"
        for prompts, name in (("one", "passage"), ([ids], "query"), ([ids, "one"], "query")):
            with pytest.raises(RequestError, match=r"has query, document|send no ids"):
                llm.embed(prompts, prompt_name=name)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"prompts": ["query"]}, "prompts is .* expected texts by name"),
        ({"prompts": {"query": 1}}, "prompts is .* expected texts by name"),
        ({"prompts": {"query": "\ud800"}}, "prompts is .* expected texts by name"),
        ({"default_prompt_name": "passage"}, "is 'passage', expected one of query, document"),
        ({"default_prompt_name": 1}, "default_prompt_name is '1'"),
    ],
)
def test_prompts_that_are_none_are_refused(
    said: dict[str, object], why: str, tmp_path: Path
) -> None:
    source = open_model(told(tmp_path, **said))
    with pytest.raises(ModelError, match=why):
        vector_facts(source, config_from(source))


def test_a_pooling_that_leaves_prompts_out_is_refused(tmp_path: Path) -> None:
    folder = told(tmp_path)
    (folder / "1_Pooling").mkdir()
    pooling = {"pooling_mode_mean_tokens": True, "include_prompt": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    source = open_model(folder)
    with pytest.raises(ModelError, match="leaves prompts out"):
        vector_facts(source, config_from(source))
