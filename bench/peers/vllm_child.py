"""One turn of vLLM on a CPU: ``python -m bench.peers.vllm_child MODEL SHAPES``.

For the Python that has vllm. MODEL is a Hugging Face folder; bfloat16, everything in this process,
which is fastest on few cores. Prints the version and the rates as JSON.
"""

from __future__ import annotations

import json
import os
import sys

from bench.peers.shapes import Prompts, Shapes, measure_calls

CACHE_GIB = 2


def main() -> None:
    model, shapes = sys.argv[1], Shapes.decode(sys.argv[2])
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{shapes.threads - 1}" if shapes.threads > 1 else "0",
        "OMP_NUM_THREADS": str(shapes.threads),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    import vllm  # reads the environment when it is imported

    llm = vllm.LLM(
        model,
        dtype="bfloat16",
        max_model_len=shapes.context,
        max_num_seqs=shapes.batch[0],
        max_num_batched_tokens=4096,
        enable_prefix_caching=False,
        distributed_executor_backend="uni",
    )

    def generate(prompts: Prompts, n_out: int) -> None:
        wanted = [{"prompt_token_ids": ids} for ids in prompts]
        params = vllm.SamplingParams(
            temperature=0, max_tokens=n_out, ignore_eos=True, detokenize=False
        )
        llm.generate(wanted, params, use_tqdm=False)

    rates = measure_calls(generate, shapes)
    print(json.dumps({"version": f"vLLM {vllm.__version__}", "rates": rates}), flush=True)
    os._exit(0)


main()
