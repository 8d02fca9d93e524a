"""A GGUF file and its tower over HTTP: the answer about an image is that of the folder."""

from __future__ import annotations

from pathlib import Path

from kvasir import LLM, SamplingParams
from tests.e2e.harness import running_server
from tests.e2e.test_images import SIZES, ask, chat, image, text, words
from tests.unit.test_mmproj import both


def test_a_server_with_a_tower_and_without(tmp_path: Path) -> None:
    folder, file = both("idefics3", tmp_path)
    tower = file.parent / "mmproj.gguf"
    named = tower.rename(tmp_path / "tower.gguf")
    said = [{"role": "user", "content": [image(3), text("what is it?")]}]
    with LLM(str(folder), threads=1, **SIZES) as llm:
        asked = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
        (expected,) = llm.chat(said, asked, use_tqdm=False)
    with running_server(file, executor="cpu", engine={**SIZES, "mmproj": str(named)}) as server:
        found = ask(server, image(3), text("what is it?"), ignore_eos=True)
        assert words(found) == expected.outputs[0].text
    with running_server(file, executor="cpu", engine=SIZES) as server:
        answer = server.post("/v1/chat/completions", chat(image(3)))
        assert answer.status_code == 400
        assert "reads no images" in answer.json()["error"]["message"]
