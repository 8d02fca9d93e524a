"""The expressions of ``splits`` as pre-tokenizers of byte-level BPE."""

from __future__ import annotations

from tokenizers import Regex, pre_tokenizers

from kvasir.core.errors import ModelError
from kvasir.tokenizer.splits import GPT2, SPLITS, Rules


def rules_of(pre: str) -> Rules:
    """The entry of ``pre``. Raises ModelError for an unknown one."""
    if pre not in SPLITS:
        raise ModelError(
            f"tokenizer.ggml.pre '{pre}' is not supported "
            f"(supported: {', '.join(sorted(SPLITS))}): "
            "use the model's Hugging Face folder, whose tokenizer.json describes its own",
            code="unsupported_tokenizer",
        )
    return SPLITS[pre]


def byte_splitter(patterns: tuple[str, ...]) -> pre_tokenizers.PreTokenizer:
    """Cuts by ``patterns``, one after the other, and writes bytes in GPT-2's alphabet. Raises
    Exception for a pattern that is not valid."""
    # The library has a native matcher for GPT-2's expression, several times as fast as a Regex.
    native = patterns[-1:] == (GPT2,)
    splits: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), "isolated")
        for pattern in (patterns[:-1] if native else patterns)
    ]
    splits.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=native))
    return pre_tokenizers.Sequence(splits)
