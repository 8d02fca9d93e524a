"""Images in the offline class and on the command line: whatever way an image comes, one answer."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kvasir import LLM, BeamSearchParams, SamplingParams
from kvasir.cli.images import spoken
from kvasir.core.errors import RequestError
from kvasir.offline.arguments import split
from tests import tiny, tiny_vision

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
PROMPT = "<|im_start|>User:<image>what is it?<end_of_utterance>\nAssistant:"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vision.write(tiny_vision.smolvlm(), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), max_model_len=256, max_num_seqs=4, threads=1, dtype="float32") as made:
        yield made


def picture(seed: int) -> Image.Image:
    levels = np.random.default_rng(seed).integers(0, 256, (50, 90, 3), dtype=np.uint8)
    return Image.fromarray(levels)


def file_of(seed: int) -> bytes:
    file = io.BytesIO()
    picture(seed).save(file, "PNG")
    return file.getvalue()


def part(seed: int) -> Json:
    data = base64.b64encode(file_of(seed)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def pil(seed: int) -> Json:
    return {"type": "image_pil", "image_pil": picture(seed)}


def talk(*parts: Json) -> list[Json]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "what is it?"}]}]


def words(llm: LLM, *messages: list[Json]) -> list[str]:
    asked: Any = list(messages)
    return [x.outputs[0].text for x in llm.chat(asked, GREEDY, use_tqdm=False)]


def test_one_answer_whatever_way_an_image_comes(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(file_of(1))
    sent, given, other = words(llm, talk(part(1)), talk(pil(1)), talk(pil(2)))
    assert sent == given != other
    prompts = [
        {"prompt": PROMPT, "multi_modal_data": {"image": image}}
        for image in (picture(1), [picture(1)], path)
    ]
    found = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert {output.outputs[0].text for output in found} == {sent}
    assert found[0].prompt == PROMPT
    assert found[0].prompt_token_ids.count(tiny_vision.IMAGE) == 5 * tiny_vision.N_TOKENS


def test_two_images_and_choices(llm: LLM) -> None:
    both = llm.chat(
        talk(part(1), pil(2)),
        SamplingParams(n=2, seed=3, max_tokens=8),
        use_tqdm=False,
    )
    again = llm.chat(
        talk(pil(1), part(2)), SamplingParams(n=2, seed=3, max_tokens=8), use_tqdm=False
    )
    assert [x.text for x in both[0].outputs] == [x.text for x in again[0].outputs]


def test_a_beam_is_the_greedy_answer(llm: LLM) -> None:
    prompt = {"prompt": PROMPT, "multi_modal_data": {"image": picture(1)}}
    asked = BeamSearchParams(beam_width=1, max_tokens=6)
    (found,) = llm.beam_search([prompt], asked)
    (greedy,) = llm.generate(prompt, SamplingParams(temperature=0.0, max_tokens=6), use_tqdm=False)
    assert found.sequences[0].tokens[-6:] == greedy.outputs[0].token_ids
    (wide,) = llm.beam_search([prompt], BeamSearchParams(beam_width=3, max_tokens=6))
    assert len(wide.sequences) == 3


REFUSED: dict[str, tuple[object, str]] = {
    "no placeholder": ({"prompt": "what?", "multi_modal_data": {"image": picture(1)}}, "0 placeh"),
    "two": ({"prompt": PROMPT, "multi_modal_data": {"image": [picture(1)] * 2}}, "1 placeholders"),
    "sound": ({"prompt": PROMPT, "multi_modal_data": {"audio": 1}}, "the key 'image'"),
    "number": ({"prompt": PROMPT, "multi_modal_data": {"image": 5}}, "of type int"),
    "text": ({"prompt": PROMPT, "multi_modal_data": {"image": "a.png"}}, "pathlib.Path"),
    "path": ({"prompt": PROMPT, "multi_modal_data": {"image": Path("/none")}}, "No such file"),
    "folder": ({"prompt": PROMPT, "multi_modal_data": {"image": Path("/")}}, "directory"),
    "broken": ({"prompt": PROMPT, "multi_modal_data": {"image": Path(__file__)}}, "broken"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(llm: LLM, name: str) -> None:
    prompt, why = REFUSED[name]
    with pytest.raises(RequestError, match=why):
        llm.generate(prompt, GREEDY, use_tqdm=False)


def test_nothing_is_fetched_or_cut(llm: LLM) -> None:
    address = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x"}}
    with pytest.raises(RequestError, match="nothing is fetched"):
        llm.chat(talk(address), GREEDY, use_tqdm=False)
    cut = SamplingParams(max_tokens=1, truncate_prompt_tokens=5)
    with pytest.raises(RequestError, match="truncate_prompt_tokens"):
        llm.chat(talk(pil(1)), cut, use_tqdm=False)
    with pytest.raises(RequestError, match="only parts of type text"):
        llm.chat([{"role": "system", "content": [pil(1)]}], GREEDY, use_tqdm=False)
    with pytest.raises(RequestError, match="unknown keys: multi_modal_data"):
        llm.embed({"prompt": PROMPT, "multi_modal_data": {"image": picture(1)}})


def test_a_blind_model_says_so(tmp_path: Path) -> None:
    with LLM(str(tiny.write_hf(tiny.llama(), tmp_path)), max_model_len=64, threads=1) as llm:
        prompt = {"prompt": "x", "multi_modal_data": {"image": picture(1)}}
        with pytest.raises(RequestError, match="reads no images"):
            llm.generate(prompt, GREEDY, use_tqdm=False)


def test_a_limit_of_images_is_told_to_be_without_effect() -> None:
    _, warnings = split("m", {"limit_mm_per_prompt": {"image": 2}})
    assert "the context alone bounds" in warnings[0]


def test_a_message_of_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(file_of(1))
    assert spoken("hello") == {"role": "user", "content": "hello"}
    message = spoken("what is it?", [path])
    head, _, data = message["content"][0]["image_url"]["url"].partition("base64,")
    assert head == "data:image/any;" and base64.b64decode(data) == file_of(1)
    assert message["content"][1] == {"type": "text", "text": "what is it?"}
    with pytest.raises(RequestError, match="give --image a file"):
        spoken("x", [tmp_path])
