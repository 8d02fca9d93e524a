"""Images over HTTP, on the native executor: dialects, the cache, refusals, an engine's death."""

from __future__ import annotations

import base64
import io
import json
import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests import tiny_gemma_vision, tiny_vision
from tests.e2e.harness import Server, running_server, wait_until
from tests.forms import n_of
from tests.fuzz_images import mutated, written

SIZES = {"max_model_len": 512, "dtype": "float32"}
Json = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tiny_vision.write(tiny_vision.smolvlm(), tmp_path_factory.mktemp("model"))
    with running_server(folder, executor="cpu", engine=SIZES, limit_mm_per_prompt="image=2") as own:
        yield own


def file_of(seed: int, size: tuple[int, int] = (90, 50)) -> str:
    """Random pixels as PNG in base64."""
    levels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def image(seed: int) -> Json:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{file_of(seed)}"}}


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def chat(*parts: Json, **fields: Any) -> Json:
    said = [{"role": "user", "content": list(parts)}]
    return {"messages": said, "max_tokens": 12, "temperature": 0, **fields}


def ask(server: Server, *parts: Json, **fields: Any) -> Json:
    answer = server.post("/v1/chat/completions", chat(*parts, **fields))
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def words(answer: Json) -> str:
    return str(answer["choices"][0]["message"]["content"])


def cached(answer: Json) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_another_image_is_another_answer_and_the_words_before_it_are_shared(
    server: Server,
) -> None:
    ahead = text("the quick brown fox jumps over the lazy dog ")
    one, other, again = (ask(server, ahead, image(seed)) for seed in (1, 2, 1))
    assert words(one) == words(again) != words(other)
    ids = server.post("/v1/chat/completions/render", chat(ahead, image(1))).json()
    prompt = ids["prompt_token_ids"][0]
    before = prompt.index(tiny_vision.IMAGE)
    assert one["usage"]["prompt_tokens"] == len(prompt)
    assert cached(other) == before
    assert cached(again) == len(prompt) - 1
    salted = ask(server, ahead, image(1), cache_salt="another")
    assert (cached(salted), words(salted)) == (0, words(one))


def test_every_dialect_gives_the_same_answer(server: Server) -> None:
    expected = words(ask(server, image(3), text("what is it?")))
    asked = {"max_tokens": 12, "temperature": 0}
    source = {"type": "base64", "media_type": "image/png", "data": file_of(3)}
    blocks = [{"type": "image", "source": source}, text("what is it?")]
    body = {"messages": [{"role": "user", "content": blocks}], **asked}
    found = server.post("/v1/messages", body).json()
    assert found["content"][0]["text"] == expected
    url = image(3)["image_url"]["url"]
    parts = [
        {"type": "input_image", "image_url": url},
        {"type": "input_text", "text": "what is it?"},
    ]
    item = {"role": "user", "content": parts}
    body = {"input": [item], "max_output_tokens": 12, "temperature": 0, "store": False}
    found = server.post("/v1/responses", body).json()
    assert found["output"][0]["content"][0]["text"] == expected
    said = {"role": "user", "content": "what is it?", "images": [file_of(3)]}
    options = {"num_predict": 12, "temperature": 0, "repeat_penalty": 1.0}
    body = {"messages": [said], "stream": False, "options": options}
    found = server.post("/api/chat", body).json()
    assert found["message"]["content"] == expected


def test_choices_share_an_image(server: Server) -> None:
    both = ask(server, image(4), n=2, seed=7, temperature=1.0)["choices"]
    alone = ask(server, image(4), seed=7, temperature=1.0)
    assert both[0]["message"]["content"] == words(alone)
    assert both[1]["message"]["content"] != words(alone)


def test_beams_of_an_image(server: Server) -> None:
    """As many as one beam is the greedy answer; pixels of another request come between rounds."""
    asked = {"use_beam_search": True, "max_tokens": 6}
    greedy = ask(server, image(5), max_tokens=6)
    assert words(ask(server, image(5), n=1, **asked)) == words(greedy)
    alone = [ask(server, image(seed), n=3, **asked)["choices"] for seed in (5, 6)]
    assert alone[0] != alone[1]
    with ThreadPoolExecutor(3) as pool:
        both = pool.map(lambda seed: ask(server, image(seed), n=3, **asked)["choices"], (5, 6, 5))
        assert list(both) == [alone[0], alone[1], alone[0]]


REFUSED: dict[str, tuple[tuple[Json, ...], Json, str]] = {
    "address": (
        ({"type": "image_url", "image_url": {"url": "http://127.0.0.1/x"}},),
        {},
        "--allowed-media-domains",
    ),
    "broken": (({"type": "image_url", "image_url": "data:image/png;base64,AAAA"},), {}, "broken"),
    "many": ((image(1), image(2), image(3)), {}, "--limit-mm-per-prompt"),
    "cut": ((image(1),), {"truncate_prompt_tokens": 9}, "truncate_prompt_tokens"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(server: Server, name: str) -> None:
    parts, fields, why = REFUSED[name]
    answer = server.post("/v1/chat/completions", chat(*parts, **fields))
    assert answer.status_code == 400, answer.text
    assert why in answer.json()["error"]["message"]


def test_a_model_without_a_tower_reads_no_images(toy: Server) -> None:
    answer = toy.post("/v1/chat/completions", chat(image(1)))
    assert answer.status_code == 400
    assert "reads no images" in answer.json()["error"]["message"]


def test_text_alone_is_answered_and_fetches_nothing(server: Server) -> None:
    """An image in Markdown is words."""
    answer = ask(server, text("![x](http://127.0.0.1:9/x.png)"))
    assert answer["usage"]["prompt_tokens"] < 60
    said = [{"role": "user", "content": "![x](http://127.0.0.1:9/x.png)"}]
    plain = server.post("/v1/chat/completions", {**chat(), "messages": said}).json()
    assert words(plain) == words(answer)


@pytest.mark.parametrize("part", range(8))
def test_hostile_files_hurt_nobody(server: Server, part: int) -> None:
    """A 400 of one line, or an answer; ``make test-long`` sends ten thousand."""
    canary = words(ask(server, image(1), text("go on")))
    for seed in range(1250 * part, 1250 * part + n_of(6, 1250)):
        draw = random.Random(seed)
        data = base64.b64encode(mutated(written(draw), draw)).decode()
        hostile = {"type": "image_url", "image_url": f"data:image/png;base64,{data}"}
        answer = server.post("/v1/chat/completions", chat(hostile, max_tokens=1))
        assert answer.status_code in (200, 400), (seed, answer.text)
        if answer.status_code == 400:
            said = answer.json()["error"]["message"]
            assert said.startswith("messages[0].content[0].image_url ") and "\n" not in said, seed
    assert words(ask(server, image(1), text("go on"))) == canary


def test_a_death_of_the_engine_changes_no_byte(server: Server) -> None:
    fields = {"max_tokens": 300, "ignore_eos": True, "stream": True}
    body = {"model": server.model, **chat(image(5), text("go on"), **fields)}
    expected = deltas(server, body, kill=False)
    assert len(expected) > 50
    assert deltas(server, body, kill=True) == expected
    assert server.metric("kvasir_engine_deaths_total") == 1


def deltas(server: Server, body: Json, *, kill: bool) -> str:
    found = ""
    with server.http.stream("POST", server.url + "/v1/chat/completions", json=body) as stream:
        for line in stream.iter_lines():
            if kill:
                os.kill(server.engine_pid(), signal.SIGKILL)
                kill = False
            if line.startswith("data: {"):
                choices = json.loads(line[6:])["choices"]
                found += choices[0]["delta"].get("content", "") if choices else ""
    wait_until(lambda: server.get("/ready").status_code == 200)
    return found


def test_images_whose_tokens_see_each_other(tmp_path: Path) -> None:
    """Steps of few tokens, in which others go on: answers are those of one alone."""
    model = tiny_gemma_vision.gemma3_vision(final_logit_softcapping=2.0)
    folder = tiny_gemma_vision.write(model, tmp_path)
    sizes = {**SIZES, "max_num_batched_tokens": 8, "max_num_seqs": 4}

    def drawn(seed: int, salt: str) -> list[float]:
        more = {"temperature": 1.0, "seed": 7, "logprobs": True, "cache_salt": salt}
        answer = ask(own, text("see "), image(seed), text("it"), **more)
        return [token["logprob"] for token in answer["choices"][0]["logprobs"]["content"]]

    with running_server(folder, executor="cpu", engine=sizes) as own:
        alone = [drawn(seed, "alone") for seed in (1, 2)]
        assert alone[0] != alone[1]
        with ThreadPoolExecutor() as pool:
            asked = [pool.submit(drawn, 1 + i % 2, str(i)) for i in range(6)]
            assert [each.result() for each in asked] == alone * 3
        again = ask(own, text("see "), image(1), text("it"), cache_salt="alone")
        assert cached(again) == again["usage"]["prompt_tokens"] - 1
