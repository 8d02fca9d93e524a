"""What the user may say about an engine: each option once, for CLI, docs and defaults alike."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

import msgspec

from kvasir.core.errors import ConfigError
from kvasir.core.kvtypes import KV_OPTIONS

Kind = Literal["text", "int", "size", "share", "choice", "flag", "backend"]
"""backend: one of ``exec.backends``, which this layer does not know."""


class OptionInfo(msgspec.Struct, frozen=True):
    """One option, as the command line and the docs show it."""

    name: str
    flag: str
    """``--max-model-len``; the model itself is positional and its flag is the bare word."""
    kind: Kind
    default: str | int | bool | None
    help: str
    choices: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int | None = None
    aliases: tuple[str, ...] = ()
    """Names of the same option in other engines; with a dash in front, flags alone."""
    is_secret: bool = False
    """Shown to nobody."""


def option(
    default: object,
    kind: Kind,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    minimum: int = 1,
    maximum: int | None = None,
    aliases: tuple[str, ...] = (),
    is_secret: bool = False,
) -> Any:
    return field(
        default=default,
        metadata={
            "kind": kind,
            "help": help,
            "choices": choices,
            "minimum": minimum,
            "maximum": maximum,
            "aliases": aliases,
            "is_secret": is_secret,
        },
    )


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """None and "auto" leave the decision to ``resolve``. Names are vLLM's where vLLM has one."""

    model: str | None = option(
        None, "text", "GGUF file or Hugging Face folder; without it the default model is used."
    )
    served_model_name: str | None = option(
        None, "text", "Name of the model in the API; default: the name of its file or folder."
    )
    dtype: str = option(
        "auto",
        "choice",
        "Arithmetic. auto: int8 activations for quantized weights, else the type of the file.",
        choices=("auto", "float32", "bfloat16"),
    )
    max_model_len: int | None = option(
        None,
        "int",
        "Tokens of one request, prompt and output together; default: the model's context, "
        "as far as the KV memory holds it.",
    )
    max_num_seqs: int | None = option(
        None, "int", "Requests computed in one step; default: 64.", aliases=("max_batch_size",)
    )
    max_num_batched_tokens: int | None = option(
        None, "int", "Tokens computed in one step; longer prompts are cut in chunks; default: 512."
    )
    itl_target_ms: int | None = option(
        None,
        "int",
        "Milliseconds that a step should take while answers stream: prompts are computed in "
        "smaller chunks then, of 16 tokens at least; 0: less than twice as long as a step "
        "without prompts, longer when many wait; default: whatever a full step takes.",
        minimum=0,
    )
    scheduling_policy: str = option(
        "fair",
        "choice",
        "Order of requests. fair: priority classes and tenants share by weights; fcfs: arrival; "
        "static: batches that start together when the last one has ended, to compare with.",
        choices=("fair", "fcfs", "static"),
    )
    priority_weights: str = option(
        "10,5,1", "text", "Shares of the classes realtime, standard and batch."
    )
    tenant_weights: str = option(
        "", "text", "Shares of tenants in their class, e.g. alice=2,bob=0.5; others have 1."
    )
    preemption_threshold_ms: int | None = option(
        None,
        "int",
        "Milliseconds after which a waiting realtime request preempts batch requests; default: 0, "
        "and 100 without the prefix cache, which keeps what was computed of them.",
        minimum=0,
    )
    kv_policy: str = option(
        "paged",
        "choice",
        "contiguous: KV blocks for the longest answer are taken when a request starts, to compare "
        "with.",
        choices=("paged", "contiguous"),
    )
    block_size: int = option(16, "int", "Tokens of one KV block, a multiple of 16.", minimum=16)
    state_stride: int | None = option(
        None,
        "int",
        "Tokens between snapshots of the states of layers that keep no positions (Mamba-2, gated "
        "delta nets, short convolutions), a multiple of the block size; 0: snapshots at the ends "
        "of prompts and turns and where prefixes branch alone; default: what saves most "
        "computing per byte.",
        minimum=0,
    )
    kv_memory: int | str | None = option(
        None,
        "size",
        "Memory of the KV blocks in bytes, or with a unit: 512MiB, 2GiB; default: "
        "2048 tokens for each of max_num_seqs, at most 40 % of the free memory.",
    )
    gpu_memory_utilization: float | None = option(
        None,
        "share",
        "Instead of kv_memory: share of the free memory, 0 to 1, that weights and KV blocks take "
        "together. vLLM's name; there is no GPU.",
    )
    free_gpu_memory_fraction: float | None = option(
        None,
        "share",
        "Instead of kv_memory: share of the memory that is free after the weights. TensorRT-LLM's "
        "name.",
        aliases=("kv_cache_free_gpu_memory_fraction",),
    )
    max_total_tokens: int | None = option(
        None,
        "int",
        "Most tokens that the KV blocks hold, whatever their memory.",
        aliases=("max_tokens_in_paged_kv_cache",),
    )
    kv_cache_dtype: str = option(
        "auto",
        "choice",
        "Type of cached keys and values. auto: float32 with --dtype float32, else bfloat16. int8 "
        "and fp8 (fp8_e4m3) take 52 % of bfloat16's bytes, scales included, fp8_e5m2 takes half.",
        choices=("auto", *KV_OPTIONS),
    )
    enable_prefix_caching: bool = option(
        True,
        "flag",
        "Keep computed KV blocks for requests that begin with the same tokens.",
        aliases=("enable_block_reuse",),
    )
    kv_disk: str | None = option(
        None,
        "text",
        "Directory for KV blocks that memory has no room for; they are found again, also after a "
        "restart. Default: none.",
    )
    kv_disk_size: int | str | None = option(
        None, "size", "Most bytes of all files in kv_disk; default: 10GiB."
    )
    swap_space: int | None = option(
        None, "int", "Old name for kv_disk_size, in GiB; needs kv_disk.", minimum=0
    )
    preemption_mode: str = option(
        "auto",
        "choice",
        "How a preempted request comes back when kv_disk has its blocks: swap loads them, "
        "recompute computes them, auto does what is faster as measured.",
        choices=("auto", "swap", "recompute"),
    )
    threads: int | None = option(
        None, "int", "Threads that compute; default: the cores this process may use."
    )
    cpu_affinity: str = option(
        "auto",
        "text",
        "CPUs of the threads. auto: near their memory where there are several nodes, else free; "
        "cores: one CPU each; none; or a list such as 0-3,8, one for each thread.",
    )
    numa: str = option(
        "auto",
        "choice",
        "Memory of weights and KV blocks where there are several memory nodes. auto: in turns on "
        "those whose CPUs compute; none: the kernel decides.",
        choices=("auto", "none"),
    )
    huge_pages: str = option(
        "auto",
        "choice",
        "Ask for huge pages for weights, KV blocks and arena; none: refuse them.",
        choices=("auto", "none"),
    )
    isa: str | None = option(
        None, "text", "Instruction set level; default: KVASIR_ISA, else the best of this CPU."
    )
    packed_cache: str | None = option(
        None,
        "text",
        "Folder where packed weights are kept for the next start, or off; default: packed in "
        "KVASIR_CACHE.",
    )
    packed_cache_size: int | str = option(
        "16GiB", "size", "Bytes of that folder: files of models unused for longest are removed."
    )
    tuning: Literal["off", "cached", "auto"] = option(
        "auto",
        "choice",
        "Variants of kernels, which give equal bits. auto: those that were fastest here, measured "
        "in the first steps and kept beside the packed weights; cached: those kept before; off: "
        "the usual ones.",
        choices=("off", "cached", "auto"),
    )
    executor: str = option(
        "cpu", "backend", "What computes: native code (cpu), or a slow one to compare with."
    )
    async_scheduling: bool | None = option(
        None,
        "flag",
        "Plan the next step while one runs; default: on where steps leave Python free, as those of "
        "the cpu executor do.",
    )
    jump_ahead: bool = option(
        True,
        "flag",
        "Tokens that a grammar forces are told at once and computed together; off: one in a step.",
    )
    mmproj: str | None = option(
        None,
        "text",
        "GGUF file of a tower of images for a model in a GGUF file; none: no tower. Default: the "
        "one mmproj file beside the model that fits it.",
        aliases=("-mm",),
    )
    mm_processor_kwargs: str | None = option(
        None,
        "text",
        "Pixels of images that a model reads near their own size, as JSON with max_pixels and "
        "min_pixels; larger and smaller ones are brought to these. Default: as its files say.",
    )
    speculative_config: str | None = option(
        None,
        "text",
        "Draft tokens and verify several in a step; answers stay the same. JSON with method "
        "(ngram: what followed in the request's text; suffix: in earlier answers, too; "
        "recycling: what the model found likely before; lookahead: what it makes of guesses; "
        "draft_model: what a smaller model draws; eagle, eagle3, medusa, mtp: what heads draw), "
        "model (its file or folder), max_window_size, max_ngram_size, max_verification_set_size, "
        "num_speculative_tokens, num_speculative_tokens_min, max_model_len, prompt_lookup_min and "
        "_max, stored_tokens, adaptive, draft_width, use_heterogeneous_vocab; or a list of two.",
    )
    speculative_model: str | None = option(
        None,
        "text",
        "File or folder of a draft model, or [ngram]: old name for speculative_config's model.",
        aliases=("model_draft", "-md"),
    )
    num_speculative_tokens: int | None = option(
        None,
        "int",
        "Old name for that of speculative_config; needs speculative_model.",
        aliases=("draft_max", "draft", "draft_n"),
    )
    num_speculative_tokens_min: int | None = option(
        None,
        "int",
        "Tokens of a draft below which it is not computed; needs speculative_model. "
        "llama-server's --draft-min.",
        minimum=0,
        aliases=("draft_min", "draft_n_min"),
    )
    speculative_max_model_len: int | None = option(
        None,
        "int",
        "Tokens of a request behind which a draft model drafts nothing; needs speculative_model. "
        "Default: its context.",
    )
    ngram_prompt_lookup_min: int | None = option(
        None, "int", "Old name for its prompt_lookup_min; needs speculative_model."
    )
    ngram_prompt_lookup_max: int | None = option(
        None, "int", "Old name for its prompt_lookup_max; needs speculative_model."
    )
    seed: int | None = option(
        None,
        "int",
        "Seed that the seeds of requests without one are drawn from, in the order of arrival; "
        "default: the server draws unpredictable ones, a script's are the same every time (0).",
        minimum=0,
    )


def describe(options_type: type = EngineOptions) -> tuple[OptionInfo, ...]:
    """Every option of a class declared with ``option`` in order."""
    return tuple(
        OptionInfo(
            name=item.name,
            flag="model" if item.name == "model" else "--" + item.name.replace("_", "-"),
            default=getattr(options_type, item.name),
            **item.metadata,
        )
        for item in fields(options_type)
    )


def check(options: object) -> None:
    """Raises ConfigError on a value of the wrong type or out of its bounds."""
    for info in describe(type(options)):
        check_one(info, getattr(options, info.name))


def check_one(info: OptionInfo, value: object) -> None:
    """Raises ConfigError on a value of the wrong type or out of its bounds."""
    if value is None and info.default is None:
        return
    if info.kind == "choice" and value not in info.choices:
        raise ConfigError(f"{info.name} is {value!r}: use one of {', '.join(info.choices)}")
    if info.kind in ("text", "backend") and not isinstance(value, str):
        raise ConfigError(f"{info.name} is {value!r}: needs text")
    if info.kind == "flag" and not isinstance(value, bool):
        raise ConfigError(f"{info.name} is {value!r}: needs true or false")
    if info.kind == "int" and (not isinstance(value, int) or isinstance(value, bool)):
        raise ConfigError(f"{info.name} is {value!r}: needs a whole number")
    if info.kind == "int" and isinstance(value, int):
        _check_bounds(info, value)
    if info.kind == "share" and not _is_share(value):
        raise ConfigError(f"{info.name} is {value!r}: needs a number above 0, at most 1")
    if info.kind == "size" and (isinstance(value, bool) or not isinstance(value, int | str)):
        raise ConfigError(f"{info.name} is {value!r}: needs bytes, or text such as 2GiB")


def _check_bounds(info: OptionInfo, value: int) -> None:
    if value < info.minimum:
        raise ConfigError(f"{info.name} is {value}: needs at least {info.minimum}")
    most = 2**63 - 1 if info.maximum is None else info.maximum
    if value > most:
        raise ConfigError(f"{info.name} is {value}: can be {most} at most")


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1
