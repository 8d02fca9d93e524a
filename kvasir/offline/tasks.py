"""From what a caller of ``LLM`` asks to what the engine is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import msgspec

from kvasir.core.errors import RequestError
from kvasir.grammar.ends import refuse_ends
from kvasir.grammar.structured import grammar_of
from kvasir.offline.batch import Task
from kvasir.offline.opened import Opened, check_ids
from kvasir.offline.prompts import Prompt
from kvasir.text.prediction import check_length, why_useless
from kvasir.validation.names import Names
from kvasir.validation.params import check, resolve_choices, truncate_prompt
from kvasir.validation.sampling import SamplingParams
from kvasir.validation.speculative import check_method, rule_notes, speculative_notes


def new_task(
    has: Opened, prompt: Prompt, params: SamplingParams, priority: int = 0, predicted: str = ""
) -> Task:
    """Of one prompt. Any thread; waits until a grammar is compiled. Raises RequestError."""
    check_writes(has)
    sizes = has.sizes
    if params.seed is None:
        params = msgspec.structs.replace(params, seed=has.draw_seed())
    check(params, vocab_size=sizes.vocab_size, max_model_len=sizes.max_model_len, n_prompt=0)
    check_method(params.speculative, has.built.drafter)
    if prompt.media and params.truncate_prompt_tokens is not None:
        raise RequestError("images do not go together with truncate_prompt_tokens: leave one out")
    prompt = replace(prompt, ids=truncate_prompt(prompt.ids, params))
    check_ids(has, prompt)
    constraint = ""
    if params.structured_outputs is not None:
        refuse_ends(params.structured_outputs.grammar or "", has.tokenizer.ends)
        constraint = grammar_of(params.structured_outputs).text
        has.built.grammars.check(constraint)
    choices = resolve_choices(
        params,
        vocab_size=sizes.vocab_size,
        max_model_len=sizes.max_model_len,
        n_prompt=len(prompt.ids),
        eos_ids=has.tokenizer.eos_ids,
        names=Names(prompt=prompt.name),
        constraint=constraint,
        encode=partial(has.tokenizer.encode, add_special=False),
    )
    ids: tuple[int, ...] = ()
    if predicted and not why_useless(has.built.drafter, choices[0].max_drafts):
        ids = tuple(has.tokenizer.encode(predicted, add_special=False))
        check_length(len(ids), sizes.max_model_len)
    return Task(next(has.numbers), prompt, params, choices, priority, ids)


def notes_on(has: Opened, tasks: Sequence[Task], predicted: Sequence[str]) -> list[str]:
    """Each once. ``predicted``: of each the text that is expected."""
    drafter, follows = has.built.drafter, has.built.follows_drafts
    notes: dict[str, None] = {}
    for task, text in zip(tasks, predicted, strict=True):
        useless = why_useless(drafter, task.choices[0].max_drafts) if text else ""
        notes |= dict.fromkeys([useless] if useless else [])
        notes |= dict.fromkeys(speculative_notes(task.params.speculative, drafter))
        notes |= dict.fromkeys(rule_notes(task.choices[0], follows_drafts=follows))
    return list(notes)


def check_writes(has: Opened) -> None:
    """Raises RequestError for a model that gives labels."""
    if not has.vectors.writes:
        raise RequestError(
            "this model makes vectors or labels of texts and writes none: use embed or classify"
        )
