"""What streams lose that keep to schemas of others, each to another one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from bench.experiments.grammar_cost import compare
from bench.experiments.programs import Vocabulary
from bench.schemas.cases import Case
from kvasir.core.errors import KvasirError
from kvasir.offline.llm import LLM
from kvasir.validation.sampling import SamplingParams, StructuredOutputs

STREAMS = {1: 8, 64: 64}
"""Schemas, by how many answers there are at a time."""

Json = dict[str, Any]


def endless(llm: LLM, cases: Sequence[Case]) -> list[Json]:
    """Lists of what each schema says, which no answer ends; without those that speak of their own
    root, and those that are refused. All are compiled."""
    found = []
    for case in cases:
        schema = case.schema
        if not isinstance(schema, dict) or any(x in json.dumps(schema) for x in ("$ref", "$id")):
            continue
        one = {name: said for name, said in schema.items() if name != "$schema"}
        many = {"type": "array", "items": one, "minItems": 1000}
        asked = SamplingParams(max_tokens=1, structured_outputs=StructuredOutputs(json=many))
        try:
            llm.generate(["x"], asked, use_tqdm=False)
        except KvasirError:
            continue
        found.append(many)
    return found


def costs(llm: LLM, cases: Sequence[Case], n_out: int, n_runs: int) -> Json:
    schemas = endless(llm, cases)
    words = Vocabulary(llm.get_tokenizer())
    points = []
    for n_streams, n_schemas in STREAMS.items():
        step = max(len(schemas) // n_schemas, 1)
        points.append(compare(llm, words, schemas[::step][:n_schemas], n_streams, n_out, n_runs))
        print({name: x for name, x in points[-1].items() if name != "runs"}, flush=True)
    return {"schemas": len(schemas), "outputs": n_out, "points": points}
