"""One turn of OpenVINO GenAI: ``python -m bench.peers.openvino_child MODEL SHAPES``.

For the Python that has openvino-genai. Prints the version and the rates as JSON.

MODEL is a folder written by optimum-cli, or a GGUF file.
"""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import openvino
import openvino_genai

from bench.peers.shapes import Prompts, Shapes, measure_calls

CACHE_GIB = 2


def main() -> None:
    model, shapes = sys.argv[1], Shapes.decode(sys.argv[2])
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GIB
    scheduler.max_num_seqs = shapes.batch[0]
    scheduler.max_num_batched_tokens = 2048
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    options = {"INFERENCE_NUM_THREADS": shapes.threads, "scheduler_config": scheduler}
    pipeline = openvino_genai.LLMPipeline(model, "CPU", **options)

    def generate(prompts: Prompts, n_out: int) -> None:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = n_out
        config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
        ids = openvino.Tensor(np.array(prompts, np.int64))
        mask = openvino.Tensor(np.ones_like(ids.data))
        tokens = pipeline.generate(openvino_genai.TokenizedInputs(ids, mask), config).tokens
        lengths = [len(row) for row in tokens]
        if lengths != [n_out] * len(prompts):
            raise SystemExit(f"outputs of {sorted(set(lengths))} tokens, not {n_out}")

    rates = measure_calls(generate, shapes)
    version = f"OpenVINO GenAI {openvino_genai.__version__}"
    print(json.dumps({"version": version, "rates": rates}), flush=True)
    os._exit(0)  # its threads may outlive an orderly exit


main()
