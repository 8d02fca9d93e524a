"""vLLM's engine arguments that mean nothing here: accepted, and answered with a warning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from kvasir.config.options import EngineOptions


@dataclass(frozen=True, slots=True)
class Unused:
    """``instead``: what happens whatever the value; ``silent``: values that ask for just that."""

    instead: str
    silent: tuple[object, ...] = (None,)


_ONE_PROCESS = Unused("the model runs in one process on this machine", (None, 1))
_ONE_TOKENIZER = Unused("the tokenizer of the model file is used", (None, "auto"))
_LOCAL = Unused("the model is read from a local file or folder as it is")
_NO_SWAP = Unused(
    "a CPU has its KV blocks in host memory already; kv_disk keeps on disk what that has no room "
    "for",
    (None, 0),
)
_NO_GRAPHS = Unused("there are no CUDA graphs here", (None, False))
_NO_GPU = Unused("there is no GPU memory to share: kv_memory sets the memory of the KV cache")
_NO_DRAFT = Unused("one token is drawn for each request and step: there is no speculation")

UNUSED: Mapping[str, Unused] = {
    "tensor_parallel_size": _ONE_PROCESS,
    "pipeline_parallel_size": _ONE_PROCESS,
    "data_parallel_size": _ONE_PROCESS,
    "distributed_executor_backend": _ONE_PROCESS,
    "disable_custom_all_reduce": Unused(_ONE_PROCESS.instead, (None, False)),
    "gpu_memory_utilization": _NO_GPU,
    "quantization": Unused("weights keep the format of the model file"),
    "load_format": Unused("the format is read from the model file", (None, "auto")),
    "enable_chunked_prefill": Unused(
        "prompts longer than max_num_batched_tokens are computed in chunks", (None, True)
    ),
    "swap_space": _NO_SWAP,
    "cpu_offload_gb": _NO_SWAP,
    "enforce_eager": _NO_GRAPHS,
    "max_seq_len_to_capture": Unused(_NO_GRAPHS.instead),
    "compilation_config": Unused("nothing is compiled at start"),
    "trust_remote_code": Unused("code from a model folder is never run", (None, False)),
    "device": Unused("the model runs on the CPU", (None, "auto", "cpu")),
    "tokenizer": _ONE_TOKENIZER,
    "tokenizer_mode": _ONE_TOKENIZER,
    "skip_tokenizer_init": Unused(_ONE_TOKENIZER.instead, (None, False)),
    "revision": _LOCAL,
    "tokenizer_revision": _LOCAL,
    "download_dir": _LOCAL,
    "hf_token": _LOCAL,
    "runner": Unused("the model generates text", (None, "auto", "generate")),
    "task": Unused("the model generates text", (None, "auto", "generate")),
    "speculative_model": _NO_DRAFT,
    "num_speculative_tokens": _NO_DRAFT,
    "speculative_config": _NO_DRAFT,
    "enable_lora": Unused("adapters are not loaded", (None, False)),
    "disable_log_stats": Unused("this class logs no statistics", (None, True)),
}


def split(
    model: str | None, arguments: Mapping[str, object]
) -> tuple[EngineOptions, tuple[str, ...]]:
    """The engine's options, and a warning for each argument without effect.

    Raises TypeError for an argument that neither this engine nor vLLM knows.
    """
    known = {item.name for item in fields(EngineOptions)} - {"model"}
    if arguments.get("kv_disk") is None:
        known.remove("swap_space")  # it asks for host memory then
    unknown = sorted(arguments.keys() - known - UNUSED.keys())
    if unknown:
        raise TypeError(f"LLM() got unknown arguments: {', '.join(unknown)}")
    unused = UNUSED.keys() - known
    warnings = tuple(
        f"{name}={value!r} has no effect: {UNUSED[name].instead}"
        for name, value in arguments.items()
        if name in unused and not any(value is s or value == s for s in UNUSED[name].silent)
    )
    chosen = {name: value for name, value in arguments.items() if name in known}
    return EngineOptions(model=model, **chosen), warnings  # type: ignore[arg-type]  # checked by resolve
