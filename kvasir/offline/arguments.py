"""Arguments of other engines: those that mean something here, and those that get a warning."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from kvasir.config.options import EngineOptions, describe
from kvasir.core.errors import ConfigError


class Unused(msgspec.Struct, frozen=True):
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

UNUSED: Mapping[str, Unused] = {
    "tensor_parallel_size": _ONE_PROCESS,
    "pipeline_parallel_size": _ONE_PROCESS,
    "data_parallel_size": _ONE_PROCESS,
    "distributed_executor_backend": _ONE_PROCESS,
    "disable_custom_all_reduce": Unused(_ONE_PROCESS.instead, (None, False)),
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
    "use_v2_block_manager": Unused("there is one block manager", (None, True)),
    "enable_lora": Unused("adapters are not loaded", (None, False)),
    "batching_type": Unused(
        "requests join and leave in every step; scheduling_policy static is there to compare with",
        (None, "inflight", "inflight_fused_batching"),
    ),
    "decoupled": Unused("every request may stream", (None, True)),
    "disable_log_stats": Unused("this class logs no statistics", (None, True)),
}

UNUSED_HERE: Mapping[str, Unused] = {
    **UNUSED,
    "limit_mm_per_prompt": Unused("the context alone bounds the images of a prompt"),
}
"""Those of ``LLM``; a server has a use for some."""


class KvCacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The KV cache in TensorRT-LLM's words, for ``LLM(kv_cache_config=…)``."""

    free_gpu_memory_fraction: float | None = None
    max_tokens: int | None = None
    enable_block_reuse: bool = True
    dtype: str = "auto"

    def options(self) -> dict[str, object]:
        """In names of ``EngineOptions``: the fields that differ from their defaults, which are the
        engine's."""
        values = {
            "free_gpu_memory_fraction": self.free_gpu_memory_fraction,
            "max_total_tokens": self.max_tokens,
            "enable_prefix_caching": None if self.enable_block_reuse else False,
            "kv_cache_dtype": None if self.dtype == "auto" else self.dtype,
        }
        return {name: value for name, value in values.items() if value is not None}


def split(
    model: str | None, arguments: Mapping[str, object]
) -> tuple[EngineOptions, tuple[str, ...]]:
    """The engine's options, and a warning for each argument without effect.

    Raises TypeError for an argument that neither this engine nor another knows, ConfigError for one
    that is given under two names.
    """
    arguments = _named(arguments)
    known = {info.name for info in describe()} - {"model"}
    if arguments.get("kv_disk") is None:
        known.remove("swap_space")  # it asks for host memory then
    unknown = sorted(arguments.keys() - known - UNUSED_HERE.keys())
    if unknown:
        raise TypeError(f"LLM() got unknown arguments: {', '.join(unknown)}")
    unused = {name: value for name, value in arguments.items() if name not in known}
    chosen = {name: value for name, value in arguments.items() if name in known}
    return EngineOptions(model=model, **chosen), unused_warnings(unused)  # type: ignore[arg-type]  # checked by resolve


def unused_warnings(arguments: Mapping[str, object]) -> tuple[str, ...]:
    """One for each of ``UNUSED_HERE`` that asks for something."""
    return tuple(
        f"{name}={value!r} has no effect: {UNUSED_HERE[name].instead}"
        for name, value in arguments.items()
        if not any(value is s or value == s for s in UNUSED_HERE[name].silent)
    )


def _named(arguments: Mapping[str, object]) -> dict[str, object]:
    """``arguments`` under the names of ``EngineOptions``."""
    names = {alias: info.name for info in describe() for alias in info.aliases}
    pairs = [(names.get(name, name), value) for name, value in arguments.items()]
    for i, (name, value) in enumerate(pairs):
        if name == "kv_cache_config":
            if not isinstance(value, KvCacheConfig):
                raise TypeError(f"kv_cache_config is {value!r}: use kvasir.KvCacheConfig")
            pairs[i : i + 1] = value.options().items()
            break
    named = dict(pairs)
    for name in ("speculative_config", "mm_processor_kwargs"):
        if isinstance(asked := named.get(name), dict | list):
            named[name] = json.dumps(asked)
    if len(named) != len(pairs):
        twice = sorted({name for name, _ in pairs if [n for n, _ in pairs].count(name) > 1})
        raise ConfigError(f"{', '.join(twice)} is given under two names: give one of them")
    return named
