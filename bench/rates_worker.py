"""One version of Kvasir that measures what it is told to, a line at a time.

Runs in the environment of that version, by the path of this file: it may know nothing but `LLM`.
Reads a JSON line `{"n": requests, "prompt": tokens, "output": tokens, "seed": int}`, runs as many
requests of random tokens, and writes a JSON line of their seconds and of all their tokens' hash.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from typing import Any

from kvasir import LLM, SamplingParams

MAX_ID = 10_000
"""Ids below are in every vocabulary that this is used with."""


def run(llm: LLM, load: dict[str, Any]) -> dict[str, Any]:
    draws = random.Random(load["seed"])
    prompts = [
        {"prompt_token_ids": [draws.randrange(100, MAX_ID) for _ in range(load["prompt"])]}
        for _ in range(load["n"])
    ]
    params = SamplingParams(temperature=0, max_tokens=load["output"], ignore_eos=True)
    began = time.perf_counter()
    answers = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - began
    ids = [list(answer.outputs[0].token_ids) for answer in answers]
    digest = hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16]
    return {"seconds": seconds, "tokens": digest}


def main() -> None:
    llm = LLM(sys.argv[1], threads=int(sys.argv[2]), max_model_len=4096)
    for line in sys.stdin:
        print(json.dumps(run(llm, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
