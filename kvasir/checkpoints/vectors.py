"""What a model file says about the vectors that the model was trained to give."""

from __future__ import annotations

from collections.abc import Mapping

from kvasir.checkpoints.dense_layers import dense_layers
from kvasir.checkpoints.keys import listed
from kvasir.checkpoints.label_heads import label_head
from kvasir.core.errors import ModelError, printable
from kvasir.core.vectors import VectorFacts
from kvasir.models.spec import ModelConfig
from kvasir.weights.source import ModelSource

_POOLING_FILE = "1_Pooling/config.json"
_PROMPTS_FILE = "config_sentence_transformers.json"
_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
"""Of sentence-transformers."""
_TYPES = {1: "mean", 2: "cls", 3: "last", 4: "rank"}
"""Of GGUF's pooling_type; 0 is none."""


def vector_facts(source: ModelSource, config: ModelConfig) -> VectorFacts:
    """Raises ModelError on lengths that are no lengths of a part."""
    trained = _of_gguf(source) if source.kind == "gguf" else _of_folder(source)
    both_ways = config.block.both_ways
    trained = trained or ("mean" if both_ways else "")
    layers = dense_layers(source, config)
    size = layers[-1].weight.shape[0] if layers else config.hidden_size
    lengths = source.config.get("matryoshka_dimensions") if source.kind == "hf" else None
    dimensions = _lengths(source, lengths, size)
    is_matryoshka = bool(dimensions) or source.config.get("is_matryoshka") is True
    head, (prompts, prompt) = label_head(source, config), _prompts(source)
    return VectorFacts(
        size,
        trained,
        is_matryoshka,
        dimensions,
        () if head is None else _labels(source, head.rows.shape[0]),
        both_ways,
        config.writes,
        len(layers),
        "last" if head is None else head.pooling,
        config.token_types,
        prompts,
        prompt,
    )


def _labels(source: ModelSource, n: int) -> tuple[str, ...]:
    """By their rows in the head; LABEL_0 … where the file has no names for them."""
    names = source.config.get("id2label")
    if source.kind == "gguf":
        arch = source.config.get("general.architecture")
        said = source.config.get(f"{arch}.classifier.output_labels")
        names = dict(enumerate(said)) if isinstance(said, list | tuple) else None
    known = names if isinstance(names, Mapping) else {}
    return tuple(str(known.get(i, known.get(str(i), f"LABEL_{i}"))) for i in range(n))


def _of_gguf(source: ModelSource) -> str:
    arch = source.config.get("general.architecture")
    kind = source.config.get(f"{arch}.pooling_type")
    return _TYPES.get(kind, "") if isinstance(kind, int) else ""


def _of_folder(source: ModelSource) -> str:
    said: Mapping[str, object] = source.read_json(_POOLING_FILE)
    modes = {x: value for x, value in said.items() if x.startswith("pooling_mode")}
    asked = {x for x, value in modes.items() if value not in (False, None)}
    found = [field for field in _MODES if field in asked and said[field] is True]
    if said and (not found or asked != set(found)):
        raise ModelError(
            f"{source.path}: {_POOLING_FILE} asks for {listed(sorted(asked)) or 'no mode'}, "
            f"expected true of one of {', '.join(_MODES)}",
            code="unsupported_model",
        )
    return "+".join(_MODES[field] for field in found)


def _prompts(source: ModelSource) -> tuple[tuple[tuple[str, str], ...], str]:
    """By name, and the name of the usual one. Raises ModelError."""
    if source.kind == "gguf":
        return (), ""
    where, said = f"{source.path}: {_PROMPTS_FILE}", source.read_json(_PROMPTS_FILE)
    prompts, name = said.get("prompts") or {}, said.get("default_prompt_name") or ""
    if not isinstance(prompts, Mapping) or not all(map(_is_text, prompts.values())):
        raise ModelError(f"{where}: prompts is {str(prompts)[:80]}, expected texts by name")
    if not isinstance(name, str) or (name and name not in prompts):
        expected = f"one of {', '.join(prompts) or 'none'}"
        raise ModelError(f"{where}: default_prompt_name is {str(name)[:80]!r}, expected {expected}")
    if source.read_json(_POOLING_FILE).get("include_prompt") is False and any(prompts.values()):
        raise ModelError(
            f"{source.path}: {_POOLING_FILE} leaves prompts out of what is pooled "
            "(include_prompt), which is not computed",
            code="unsupported_model",
        )
    return tuple((str(key), str(text)) for key, text in prompts.items()), name


def _is_text(value: object) -> bool:
    """Of valid Unicode: no tokenizer takes a lone surrogate."""
    return isinstance(value, str) and printable(value) == value


def _lengths(source: ModelSource, lengths: object, size: int) -> tuple[int, ...]:
    if lengths is None:
        return ()
    if not isinstance(lengths, list) or not all(type(n) is int and 0 < n <= size for n in lengths):
        raise ModelError(
            f"{source.path}: config.json: matryoshka_dimensions is {str(lengths)[:80]}, expected "
            f"lengths from 1 to {size}"
        )
    return tuple(sorted(lengths))
