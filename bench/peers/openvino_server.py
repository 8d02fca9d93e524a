"""OpenVINO behind a port, which its package does not bring: ``python openvino_server.py MODEL PORT
THREADS``, for the Python that has openvino-genai and aiohttp.

``POST /v1/completions`` with ids as prompt, greedy, streamed. One thread steps the pipeline and
hands tokens to the event loop.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai
from aiohttp import web

CACHE_GIB = 2
MAX_REQUESTS = 64
BATCH_TOKENS = 2048

News = asyncio.Queue[tuple[list[int], bool]]
"""New tokens, and whether they are the last."""


class Pipeline:
    def __init__(self, model: str, threads: int) -> None:
        config = genai.SchedulerConfig()
        config.cache_size = CACHE_GIB
        config.max_num_seqs = MAX_REQUESTS
        config.max_num_batched_tokens = BATCH_TOKENS
        config.dynamic_split_fuse = True
        config.enable_prefix_caching = True
        settings = {"INFERENCE_NUM_THREADS": threads}
        self._pipe = genai.ContinuousBatchingPipeline(model, config, "CPU", settings)
        self.tokenizer = self._pipe.get_tokenizer()
        self._wanted = threading.Condition()
        self._new: list[tuple[News, Any, Any]] = []
        self._n = 0

    def add(self, ids: list[int], n_out: int) -> News:
        config = genai.GenerationConfig()
        config.max_new_tokens = n_out
        config.do_sample = False
        config.ignore_eos = True
        config.apply_chat_template = False
        news: News = asyncio.Queue()
        with self._wanted:
            tensor = openvino.Tensor(np.array([ids], dtype=np.int64))
            self._new.append((news, tensor, config))
            self._wanted.notify()
        return news

    def run(self, loop: asyncio.AbstractEventLoop) -> None:
        live: dict[int, tuple[Any, News]] = {}
        while True:
            with self._wanted:
                while not self._new and not live:
                    self._wanted.wait()
                new, self._new = self._new, []
            for news, tensor, config in new:
                self._n += 1
                live[self._n] = self._pipe.add_request(self._n, tensor, config), news
            self._pipe.step()
            for number, (handle, news) in list(live.items()):
                tokens = _read(handle)
                is_last = handle.get_status() != genai.GenerationStatus.RUNNING
                if tokens or is_last:
                    loop.call_soon_threadsafe(news.put_nowait, (tokens, is_last))
                if is_last:
                    del live[number]


def _read(handle: Any) -> list[int]:
    tokens: list[int] = []
    while handle.can_read():
        for output in handle.read().values():
            tokens += output.generated_ids
    return tokens


async def complete(request: web.Request) -> web.StreamResponse:
    pipeline: Pipeline = request.app["pipeline"]
    asked = await request.json()
    news = pipeline.add(asked["prompt"], asked["max_tokens"])
    answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await answer.prepare(request)
    is_last, n = False, 0
    while not is_last:
        tokens, is_last = await news.get()
        n += len(tokens)
        reason = "length" if is_last else None
        text = pipeline.tokenizer.decode(tokens) if tokens else ""
        event = {
            "choices": [{"index": 0, "text": text, "finish_reason": reason}],
            "usage": {"completion_tokens": n},
        }
        await answer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    await answer.write(b"data: [DONE]\n\n")
    await answer.write_eof()
    return answer


async def start(app: web.Application) -> None:
    loop = asyncio.get_running_loop()
    threading.Thread(target=app["pipeline"].run, args=(loop,), daemon=True).start()


def main() -> None:
    model, port, threads = sys.argv[1:]
    app = web.Application()
    app["pipeline"] = Pipeline(model, int(threads))
    app.router.add_post("/v1/completions", complete)
    app.on_startup.append(start)
    web.run_app(app, host="127.0.0.1", port=int(port), print=None)


if __name__ == "__main__":
    main()
