"""A draft model beside a target: whether they fit each other, and what both need together."""

from __future__ import annotations

from msgspec.structs import replace

from kvasir.config.dtype import choose_dtype
from kvasir.config.options import EngineOptions
from kvasir.config.resolved import DraftConfig, DType, ModelFacts
from kvasir.config.sizes import format_size
from kvasir.config.speculation import RULE, STANDARD, Speculation
from kvasir.core.errors import ConfigError, KvasirError

SHARE_BYTES = 4
"""Of a token in a distribution."""
LOOKUPS = "drop the draft model, or use the methods suffix or ngram"


def beside(target: ModelFacts, draft: ModelFacts, free_memory: int) -> ModelFacts:
    """``target`` with the weights, keys and values of ``draft`` under one plan of memory. Raises
    ConfigError where they do not fit each other, or both the memory."""
    _check_fit(target, draft)
    if target.weight_bytes < free_memory <= target.weight_bytes + draft.weight_bytes:
        raise ConfigError(
            f"the weights of {target.name}, {format_size(target.weight_bytes)}, and of the draft "
            f"model {draft.name}, {format_size(draft.weight_bytes)}, exceed the free memory of "
            f"{format_size(free_memory)}: take a smaller draft model, or {LOOKUPS}"
        )
    layers = [_kv_layers(model) for model in (target, draft)]
    windows = tuple(window for each in layers for window, _ in each)
    return replace(
        target,
        kv_values_per_token=target.kv_values_per_token + draft.kv_values_per_token,
        kv_vectors_per_token=target.kv_vectors_per_token + draft.kv_vectors_per_token,
        weight_bytes=target.weight_bytes + draft.weight_bytes,
        windows=windows if any(windows) else (),
        kv_layers=tuple(sizes for each in layers for _, sizes in each) if any(windows) else (),
    )


def beside_kept(
    model: ModelFacts, free_memory: int, n_seqs: int, n_drafts: int, reasons: dict[str, str]
) -> int:
    """The memory that is left beside what states keep of drafted tokens; adds to the reasons.
    Raises ConfigError."""
    n_bytes = n_seqs * n_drafts * model.kept_bytes
    if not n_bytes:
        return free_memory
    free = max(0, free_memory - model.weight_bytes)
    if n_bytes > free:
        raise ConfigError(
            f"{n_drafts} drafted tokens of {n_seqs} requests keep {format_size(n_bytes)} "
            f"beside states, {format_size(free)} are free after the weights: lower "
            "num_speculative_tokens or --max-num-seqs"
        )
    reasons["state_drafts"] = (
        f"{format_size(n_bytes)}: what {n_drafts} drafted tokens in {n_seqs} slots read"
    )
    return free_memory - n_bytes


def beside_shares(
    model: ModelFacts,
    free_memory: int,
    n_seqs: int,
    speculation: Speculation | None,
    reasons: dict[str, str],
) -> int:
    """The same beside the distributions that the classical rule needs."""
    n_kept = speculation.n_kept if speculation else 0
    n_bytes = n_seqs * n_kept * model.vocab_size * SHARE_BYTES
    if not n_bytes:
        return free_memory
    free = max(0, free_memory - model.weight_bytes)
    if n_bytes > free:
        raise ConfigError(
            f"the classical rule keeps the distributions of {n_kept} drafted tokens of {n_seqs} "
            f"requests, {format_size(n_bytes)}; {format_size(free)} are free after the weights: "
            f"lower num_speculative_tokens or --max-num-seqs, or leave {RULE} out"
        )
    reasons[RULE] = (
        f"{STANDARD}: as asked; {format_size(n_bytes)} for what {n_kept} drafted tokens in "
        f"{n_seqs} slots were drawn from, and sampled answers depend on timing"
    )
    return free_memory - n_bytes


def may_lag(draft: ModelFacts) -> bool:
    """What it lacks can be taken in later: no window has given blocks back meanwhile, and it reads
    tokens alone."""
    return not (draft.is_head or any(draft.windows))


def may_rest(draft: ModelFacts, speculation: Speculation | None) -> bool:
    """A head does not read along where its drafts do not pay: what it misses then lies in blocks
    that keep everything."""
    is_adaptive = speculation is not None and speculation.is_adaptive
    return reads_along(draft) and is_adaptive and not any(draft.windows)


def reads_along(draft: ModelFacts) -> bool:
    """It has entries, which it makes in the steps of its target."""
    return draft.is_head and draft.kv_values_per_token > 0


def share_of(draft: ModelFacts, both: ModelFacts) -> float:
    """Of a step of the target, that a pass of ``draft`` is expected to take: they are bound by the
    weights that they read. ``both``: one ``beside`` the other."""
    own = draft.weight_bytes / max(1, draft.most_drafts)
    return own / max(1, both.weight_bytes - draft.weight_bytes)


def draft_config(
    draft: ModelFacts | None,
    speculation: Speculation | None,
    options: EngineOptions,
    length: int,
    reasons: dict[str, str],
    target_dtype: DType,
) -> DraftConfig | None:
    """How the draft model or head that ``speculation`` names computes, for requests of ``length``
    tokens; adds to the reasons. Raises ConfigError."""
    if speculation is None or not speculation.has_program:
        return None
    if draft is None:
        raise KvasirError(f"nobody opened the draft model {speculation.model}")
    if 0 < draft.most_drafts < speculation.n_tokens:
        raise ConfigError(
            f"speculative_config's num_speculative_tokens {speculation.n_tokens} is more than the "
            f"{draft.most_drafts} heads of {draft.name}, of which each drafts one: lower it"
        )
    dtype, why = choose_dtype(options.dtype, draft.weight_dtype)
    if draft.is_head:
        dtype, why = target_dtype, "the target's, whose weights it shares"
    reasons["draft_dtype"] = f"{dtype}: {why}"
    if draft.vocabulary:
        reasons["draft_vocabulary"] = f"{draft.vocab_size}: {draft.vocabulary}"
    asked, context = speculation.max_model_len, draft.context_length
    if asked is not None and asked > context:
        raise ConfigError(
            f"speculative_config's max_model_len {asked} exceeds the context of the draft model "
            f"{draft.name}, {context} tokens: lower it"
        )
    most = min(length, asked or context)
    whys = {context: "the draft model's context", length: "the longest request"}
    why = "as asked" if most == asked else whys[most]
    reasons["draft_max_model_len"] = f"{most}: {why}"
    return DraftConfig(dtype, most)


def _kv_layers(model: ModelFacts) -> list[tuple[int, tuple[int, int]]]:
    """Window, and numbers and vectors of a token; layers that are all alike are one."""
    if not model.kv_values_per_token:
        return []
    if not model.windows:
        return [(0, (model.kv_values_per_token, model.kv_vectors_per_token))]
    return list(zip(model.windows, model.kv_layers, strict=True))


def _check_fit(target: ModelFacts, draft: ModelFacts) -> None:
    if target.vocab_size != draft.vocab_size:
        raise ConfigError(
            f"{target.name} has {target.vocab_size} tokens and the draft model {draft.name} "
            f"{draft.vocab_size}: take a draft model with the same tokenizer, or {LOOKUPS}"
        )
    for model in (target, draft):
        if model.state_bytes:
            raise ConfigError(
                f"{model.name} has layers with a state, which a draft model cannot draft beside: "
                f"{LOOKUPS}"
            )
        if model.whole_prompts:
            raise ConfigError(
                f"{model.name} reads texts and writes none: leave the draft model out"
            )
