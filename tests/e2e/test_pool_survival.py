"""Vectors and what is made of them outlive an engine: the answer after a replay is, but for ids and
times, byte by byte that of an engine that lives."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import tiny
from tests.e2e.asked import Asked, ask
from tests.e2e.conftest import StartServer
from tests.e2e.harness import Server, canaries, n_known, running_server, wait_until
from tests.e2e.test_survival import is_ready, n_deaths
from tests.e2e.toy_model import write_toy_model
from tests.gguf_writer import write_safetensors

SLOW = {"seconds": 0.02}
"""Of a step: what is asked takes dozens."""
N_KILLS = 2
TEXTS = [f"text {i}: " + "of many words " * 100 for i in range(4)]
PAIRS = {"query": TEXTS[0], "documents": TEXTS[1:], "return_documents": True}
ASKED: tuple[Asked, ...] = (
    *(("/v1/embeddings", {"input": TEXTS, "pooling": kind}) for kind in ("mean", "last", "cls")),
    ("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"}),
    ("/pooling", {"input": TEXTS[1]}),
    ("/embedding", {"content": TEXTS}),
    ("/api/embed", {"input": TEXTS}),
    ("/v1/rerank", {**PAIRS, "method": "cosine"}),
    ("/rerank", {"query": TEXTS[0], "texts": TEXTS[1:], "method": "cosine"}),
    ("/v1/score", {"text_1": TEXTS[0], "text_2": TEXTS[1:], "method": "cosine"}),
)


def check(running: Server, asked: tuple[Asked, ...]) -> None:
    """Engines are killed while all of ``asked`` is computed."""
    replays = "kvasir_requests_replayed_total"
    with ThreadPoolExecutor(len(asked)) as pool:
        alone = [ask(running, each) for each in asked]
        for _ in range(N_KILLS):
            before, deaths = running.metric(replays), n_deaths(running)
            # Each under a salt of its own: nothing that was computed before is found.
            salted = [(path, {**body, "cache_salt": str(before)}) for path, body in asked]
            heard = [pool.submit(ask, running, each) for each in salted]
            wait_until(lambda: n_known(running) >= len(asked) - 1)
            os.kill(running.engine_pid(), signal.SIGKILL)
            wait_until(lambda deaths=deaths: n_deaths(running) > deaths)
            assert [each.result() for each in heard] == alone
            assert running.metric(replays) > before


@pytest.mark.parametrize("executor", ["fake", "native"])
def test_vectors_and_scores_after_a_death(server: StartServer, executor: str) -> None:
    with server(faults=SLOW, executor=executor) as running, canaries(running):
        check(running, ASKED)


def write_classifier(folder: Path) -> Path:
    """The toy with a head for two labels in the place of its LM head."""
    write_toy_model(folder, {"seconds": 0.05})  # there is less to compute
    config = json.loads((folder / "config.json").read_text())
    labels: dict[str, Any] = {"architectures": ["LlamaForSequenceClassification"]}
    labels["id2label"] = {"0": "no", "1": "yes"}
    (folder / "config.json").write_text(json.dumps({**config, **labels}))
    model = tiny.llama("toy", vocab_size=256, max_position_embeddings=4096)
    tensors = {name: x for name, x in model.tensors.items() if name != "lm_head.weight"}
    width = config["hidden_size"]
    tensors["score.weight"] = tiny.uniform("score", (2, width), 1.0)
    write_safetensors(folder / "model.safetensors", tensors, "F32")
    return folder


def test_labels_after_a_death(tmp_path: Path) -> None:
    asked: tuple[Asked, ...] = (
        ("/v1/classify", {"input": TEXTS}),
        ("/classify", {"input": TEXTS[0]}),
        ("/v1/rerank", {**PAIRS, "method": "classifier"}),
    )
    with running_server(write_classifier(tmp_path / "toy"), executor="native") as running:
        check(running, asked)
        wait_until(lambda: is_ready(running) and n_known(running) == 0)
