"""Heads on the rows of their target: they draft what their papers say, and change no answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs

from kvasir.config.options import EngineOptions
from kvasir.core.plan import Row, SlotOpen, StepPlan
from kvasir.engine.build import BuiltEngine, build_engine
from tests import tiny
from tests.answers import Answer
from tests.draft_heads import mtp_of, target, with_mtp, write_eagle
from tests.draft_pair import answers_of
from tests.headed import METHODS, SIZES, Headed, K, headed
from tests.loading import GREEDY, reference_logits
from tests.planned import placed, step_plan
from tests.request_sets import make_requests, make_sharing_requests
from tests.tiny_latent import deepseek_v3

PROMPT = tuple((7 * i * i + 3 * i + 5) % tiny.VOCAB for i in range(21))
BLOCKS = (tuple(range(6)),)


@pytest.fixture(scope="module", params=METHODS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Headed:
    return headed(request.param, tmp_path_factory.mktemp(request.param))


def test_each_drafts_what_its_paper_says(made: Headed) -> None:
    """A prompt in two chunks, drafts that are wrong, and one that is right: by both executors."""
    first = int(reference_logits(made.model, PROMPT)[-1].argmax())
    known = (*PROMPT, first)
    second = int(reference_logits(made.model, known)[-1].argmax())
    third = int(reference_logits(made.model, (*known, second))[-1].argmax())
    wrong = (third + 1) % tiny.VOCAB
    steps = [
        Row(0, 0, PROMPT[:9], n_logits=0),
        Row(0, 9, PROMPT[9:], n_logits=1, n_drafts=K),
        Row(0, 21, (first, second, wrong), n_logits=3, out_index=1, n_drafts=K),
        Row(0, 23, (third,), n_logits=1, out_index=3, n_drafts=1),
    ]
    expected = [
        made.drafts(known),
        made.drafts((*known, second, third)),
        made.drafts((*known, second, third, fourth_of(made, (*known, second, third))))[:1],
    ]
    for executor in ("cpu", "reference"):
        options = made.options(
            speculative_config=made.config,
            executor=executor,
            dtype="float32",
            async_scheduling=False,
        )
        assert found_by(build_engine(options), steps) == expected


def fourth_of(made: Headed, known: tuple[int, ...]) -> int:
    return int(reference_logits(made.model, known)[-1].argmax())


def found_by(built: BuiltEngine, rows: list[Row]) -> list[tuple[int, ...]]:
    """What is drafted behind each of them that asks."""
    found = []
    for i, row in enumerate(rows):
        opens = () if i else (SlotOpen(0, GREEDY, PROMPT),)
        plan: StepPlan = step_plan(i, (placed(*structs.astuple(row)[:3], BLOCKS),), opens)
        plan = structs.replace(plan, rows=(row,))
        result = built.executor.run(plan)
        found += [drafts for drafts in result.drafts if drafts]
    built.engine.close()
    return found


REQUESTS = [
    *make_requests(10, tiny.VOCAB, seed=6, max_prompt=40, max_tokens=30),
    *make_sharing_requests(10, tiny.VOCAB, seed=7, max_prompt=40, max_tokens=30),
]
REQUESTS = [structs.replace(request, id=i) for i, request in enumerate(REQUESTS)]


@pytest.fixture(scope="module")
def expected(made: Headed) -> dict[int, Answer]:
    return answers_of(made.options(), REQUESTS)[0]


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("overlap", [True, False])
def test_answers_are_those_of_the_target_alone(
    overlap: bool, adaptive: bool, made: Headed, expected: dict[int, Answer]
) -> None:
    config = json.dumps({**json.loads(made.config), "adaptive": adaptive})
    options = made.options(speculative_config=config, async_scheduling=overlap)
    found, stats = answers_of(options, REQUESTS)
    assert found == expected
    if not adaptive:
        assert stats.n_drafted > 200 and stats.draft_seconds > 0
        assert stats.n_accepted > 0 or made.method != "eagle", "its layer is the target's first"


@pytest.mark.parametrize("adaptive", [True, False])
def test_beside_what_stood_in_texts(
    adaptive: bool, made: Headed, expected: dict[int, Answer]
) -> None:
    """A head reads what others drafted, too."""
    own = {**json.loads(made.config), "adaptive": adaptive}
    lookup = {"method": "ngram", "prompt_lookup_max": 1, "adaptive": adaptive}
    options = made.options(speculative_config=json.dumps([own, lookup]))
    found, stats = answers_of(options, REQUESTS)
    assert found == expected
    assert adaptive or (stats.n_accepted > 0 and stats.n_drafted > 100)


def test_with_few_blocks_requests_give_way_and_come_back(
    made: Headed, expected: dict[int, Answer]
) -> None:
    few = {"kv_memory": None, "max_total_tokens": 96, "max_num_seqs": 6}
    found, stats = answers_of(made.options(speculative_config=made.config, **few), REQUESTS)
    assert found == expected
    assert stats.n_preemptions > 0


def test_a_gguf_file_that_holds_such_layers(tmp_path: Path) -> None:
    whole, found = with_mtp(), []
    for path in (
        tiny.write_hf(whole, tmp_path / "folder"),
        tiny.write_gguf_model(whole, tmp_path / "file.gguf"),
    ):
        config = json.dumps({"method": "mtp", "adaptive": False})
        options = EngineOptions(model=str(path), speculative_config=config, **SIZES)
        answers, stats = answers_of(options, REQUESTS[:6])
        found.append((answers, stats.n_drafted, stats.n_accepted))
    assert found[0] == found[1]


def test_a_quantized_target_shares_what_it_has_with_its_head(tmp_path: Path) -> None:
    whole = target()
    path = tiny.write_gguf_model(whole, tmp_path / "target.gguf", "Q8_0")
    head = write_eagle(tmp_path / "head", whole)
    expected = answers_of(EngineOptions(model=str(path), **SIZES), REQUESTS[:8])[0]
    config = json.dumps({"method": "eagle", "model": str(head), "adaptive": False})
    options = EngineOptions(model=str(path), speculative_config=config, **SIZES)
    found, stats = answers_of(options, REQUESTS[:8])
    assert found == expected
    assert stats.n_drafted > 50
    built = build_engine(options)
    assert built.config.model.dtype == "auto"
    built.engine.close()


def test_experts_and_latents_of_a_checkpoint(tmp_path: Path) -> None:
    """DeepSeek V3's layer that guesses is like its others."""
    path = tiny.write_hf(mtp_of(deepseek_v3(num_hidden_layers=4)), tmp_path)
    options = EngineOptions(model=str(path), **SIZES)
    expected = answers_of(options, REQUESTS[:6])[0]
    config = json.dumps({"method": "mtp", "adaptive": False})
    options = EngineOptions(model=str(path), speculative_config=config, **SIZES)
    found, stats = answers_of(options, REQUESTS[:6])
    assert found == expected
    assert stats.n_drafted > 50
