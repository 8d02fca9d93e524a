"""A token that the native executor makes NaN of, over HTTP: one request fails, and the streams
beside it do not notice."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests import tiny
from tests.damage import poisoned
from tests.e2e.harness import canaries, last_event, running_server

BAD = 200
PROMPT = list(range(3, 60))
ENGINE = {"max_model_len": 256, "kv_memory": "16MiB", "threads": 1}


@pytest.mark.parametrize("overlap", [True, False], ids=["overlapped", "plain"])
def test_r71_nan_of_the_native_executor(tmp_path: Path, overlap: bool) -> None:
    folder = tiny.write_hf(poisoned(tiny.llama(), BAD, math.nan), tmp_path)
    asked = {"prompt": [*PROMPT, BAD], "max_tokens": 9, "seed": 1}
    drawn = {"prompt": PROMPT, "max_tokens": 9, "logit_bias": {str(BAD): 100}}
    engine = {**ENGINE, "async_scheduling": overlap}
    with running_server(folder, executor="cpu", engine=engine) as server, canaries(server):
        for i, body in enumerate((asked, drawn, asked)):
            assert server.metric("kvasir_request_errors_total", code="model_numerics") == 2 * i
            refused = server.post("/v1/completions", body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (500, "model_numerics")
            assert '"model_numerics"' in last_event(server, body)
