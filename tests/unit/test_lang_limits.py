"""A chat template that never ends is stopped, whoever renders it: an LLM, or a program over it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import kvasir.lang as sgl
from kvasir import LLM, SamplingParams
from kvasir.core.errors import RequestError
from tests.e2e.toy_model import write_toy_model
from tests.unit.test_chat_sandbox import HOSTILE


@pytest.mark.parametrize("name", ["long range", "doubling text"])
def test_a_hostile_template_of_a_model(tmp_path: Path, name: str) -> None:
    folder = write_toy_model(tmp_path / "toy", template=HOSTILE[name])
    llm = LLM(str(folder), threads=1, max_model_len=256, kv_memory="64MiB")

    @sgl.function
    def talk(s: Any) -> None:
        s += sgl.user("hi")
        s += sgl.assistant(sgl.gen("x", max_tokens=2))

    def chat() -> object:
        return llm.chat([{"role": "user", "content": "hi"}], SamplingParams(max_tokens=2))

    def program() -> object:
        return talk.run(backend=llm)["x"]

    for ask in (chat, program):
        began = time.process_time()
        with pytest.raises(RequestError, match="template was stopped") as stopped:
            ask()
        assert stopped.value.code == "chat_template_limit"
        assert time.process_time() - began < 8
    (after,) = llm.generate("x", SamplingParams(max_tokens=2), use_tqdm=False)
    assert len(after.outputs[0].token_ids) == 2
    llm.close()
