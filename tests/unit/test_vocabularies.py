"""What tokens a draft model and its target have in common, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer, decoders, models

from kvasir.checkpoints.loaded import LoadedModel, load_model
from kvasir.core.errors import ConfigError
from kvasir.ir.bundle import bundle
from kvasir.ir.verify import ProgramError, verify
from kvasir.ir.vocabulary import VocabMap, in_target_ids
from kvasir.tokenizer import vocabularies
from kvasir.tokenizer.vocabularies import DraftVocabulary, words_of
from tests import tiny
from tests.loading import load
from tests.other_words import reordered, write_other


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = tiny.write_hf(tiny.llama(), tmp_path_factory.mktemp("target") / "target")
    return load_model(str(path))


def other(folder: Path, order: list[int]) -> LoadedModel:
    return load_model(str(write_other(tiny.llama(), folder / "other", order)))


def draft_vocabulary(
    target: LoadedModel, draft: LoadedModel, *, may_differ: bool
) -> DraftVocabulary:
    both = (words_of(x.source, x.config.vocab_size) for x in (target, draft))
    return vocabularies.draft_vocabulary(*both, may_differ=may_differ)


def found(target: LoadedModel, draft: LoadedModel) -> DraftVocabulary:
    return draft_vocabulary(target, draft, may_differ=True)


def test_equal_ones_need_nothing(target: LoadedModel) -> None:
    for may_differ in (True, False):
        same = draft_vocabulary(target, target, may_differ=may_differ)
        assert same == DraftVocabulary(None, "the target's 320 tokens")


def test_of_another_order_each_has_its_place(target: LoadedModel, tmp_path: Path) -> None:
    order = reordered()
    ids = found(target, other(tmp_path, order)).ids
    assert ids is not None
    assert ids.of_target.tolist() == order
    assert ids.own[order].tolist() == list(range(tiny.VOCAB))


def test_of_what_is_missing_the_longest_end_stands_for_it(
    target: LoadedModel, tmp_path: Path
) -> None:
    vocabulary = found(target, other(tmp_path, reordered(270)))
    assert vocabulary.reason == "270 of its 270 tokens are the target's (100%)"
    assert vocabulary.ids is not None
    pieces, _ = tiny.pieces()
    letters = {piece: i for i, piece in enumerate(pieces[:260])}
    own = vocabulary.ids.own.astype(int)
    for i in range(270, tiny.VOCAB):
        assert own[i] == own[letters[pieces[i][-1]]], pieces[i]


def test_ids_that_differ_are_named(target: LoadedModel, tmp_path: Path) -> None:
    draft = other(tmp_path, reordered())
    with pytest.raises(ConfigError) as raised:
        draft_vocabulary(target, draft, may_differ=False)
    told = str(raised.value)
    assert "target has 320 tokens and the draft model other 320: 316 ids stand for" in told
    assert "(4 is '!' and" in told and "and 313 more)" in told
    assert "use_heterogeneous_vocab" in told


def test_special_tokens_may_have_other_names(target: LoadedModel, tmp_path: Path) -> None:
    path = tiny.write_hf(tiny.llama(), tmp_path / "named")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (path / name).read_text()
        (path / name).write_text(text.replace("<|im_start|>", "<|turn|>"))
    assert draft_vocabulary(target, load_model(str(path)), may_differ=False).ids is None


def test_too_few_in_common(target: LoadedModel, tmp_path: Path) -> None:
    path = tiny.write_hf(tiny.llama(), tmp_path / "foreign")
    pieces, _ = tiny.pieces()
    own = [*pieces[:24], *(f"x{i}x" for i in range(24, tiny.VOCAB))]
    made = Tokenizer(models.BPE({piece: i for i, piece in enumerate(own)}, []))
    made.add_special_tokens(list(tiny.SPECIAL))
    made.decoder = decoders.ByteLevel()
    made.save(str(path / "tokenizer.json"))
    told = r"24 of its 320 tokens are the target's \(8%\), at least 25% are needed"
    with pytest.raises(ConfigError, match=told):
        found(target, load_model(str(path)))


def test_without_tokenizers_counts_are_compared(target: LoadedModel, tmp_path: Path) -> None:
    for size in (320, 300):
        path = tiny.write_hf(tiny.llama("bare", vocab_size=size), tmp_path / f"bare{size}")
        (path / "tokenizer.json").unlink()
        draft = load_model(str(path))
        if size == 320:
            reason = draft_vocabulary(target, draft, may_differ=False).reason
            assert reason == "as many tokens as the target, 320; no tokenizer to compare"
            continue
        with pytest.raises(ConfigError, match="320 tokens and the draft model bare300 300"):
            draft_vocabulary(target, draft, may_differ=False)
        with pytest.raises(ConfigError, match="needs the tokenizers of target and bare300"):
            draft_vocabulary(target, draft, may_differ=True)


def test_ids_beyond_a_table_are_no_program(tmp_path: Path) -> None:
    program = load(tiny.write_hf(tiny.llama(), tmp_path)).program
    own, of_target = np.zeros(9, np.float32), np.arange(tiny.VOCAB, dtype=np.float32)
    with pytest.raises(ProgramError, match=r"ids target_ids beyond the 9 tokens"):
        verify(in_target_ids(program, VocabMap(own, of_target)), "raw")
    fine = in_target_ids(program, VocabMap(np.zeros(400, np.float32), of_target))
    with pytest.raises(ProgramError, match=r"ids target_ids are \(320, 1\), expected \[320\]"):
        verify(replace(fine, constants={**fine.constants, "target_ids": of_target[:, None]}), "raw")
    verify(bundle(program, draft=fine).programs["draft"], "raw")
