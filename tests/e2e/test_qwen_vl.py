"""Images of any size over HTTP, on the native executor: a chat, its cache, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import tiny_qwen_vl
from tests.e2e.harness import Server, running_server
from tests.e2e.test_images import SIZES, Json, ask, cached, chat, file_of, text, words


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tiny_qwen_vl.write(tiny_qwen_vl.qwen3_vl(), tmp_path_factory.mktemp("model"))
    with running_server(folder, executor="cpu", engine=SIZES) as own:
        yield own


def image(seed: int, width: int, height: int) -> Json:
    url = f"data:image/png;base64,{file_of(seed, (width, height))}"
    return {"type": "image_url", "image_url": {"url": url}}


def test_images_of_two_shapes(server: Server) -> None:
    wide, high, question = image(1, 40, 16), image(1, 16, 40), text("what is it?")
    one, other, again = (ask(server, x, question) for x in (wide, high, wide))
    assert words(one) == words(again) != words(other)
    assert cached(again) == one["usage"]["prompt_tokens"] // 16 * 16
    prompt = server.post("/v1/chat/completions/render", chat(wide, question)).json()
    ids = prompt["prompt_token_ids"][0]
    assert ids.count(tiny_qwen_vl.IMAGE) == 10  # 5 x 2
    first = ids.index(tiny_qwen_vl.IMAGE)
    assert (ids[first - 1], ids[first + 10]) == (tiny_qwen_vl.IMAGE + 2, tiny_qwen_vl.IMAGE + 3)


def test_what_is_refused(server: Server) -> None:
    answer = server.post("/v1/chat/completions", chat(image(1, 900, 3)))
    assert answer.status_code == 400
    assert "200 to 1" in answer.json()["error"]["message"]
