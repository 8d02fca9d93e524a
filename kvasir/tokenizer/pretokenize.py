"""How text is split before byte-level BPE: one entry per value of GGUF's ``tokenizer.ggml.pre``."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from kvasir.core.errors import ModelError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_QWEN35 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+SUFFIX|"
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*SUFFIX"
)
_CASED_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = _CASED.replace("SUFFIX", "") + r"|\p{N}" + _CASED_TAIL
_GPT4O = _CASED.replace("SUFFIX", _CONTRACTIONS + "?") + r"|\p{N}{1,3}" + _CASED_TAIL
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)


@dataclass(frozen=True, slots=True)
class Rules:
    """Expressions applied one after the other; matches and the text between become pieces."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    """A piece that is a token as it stands is taken whole."""
    add_bos: bool = False
    """What an absent ``tokenizer.ggml.add_bos_token`` means."""
    nfc: bool = False
    """Text is brought to Unicode normal form C first."""

    def build(self) -> pre_tokenizers.PreTokenizer:
        # The library has a native matcher for GPT-2's expression, several times as fast as a Regex.
        native = self.patterns[-1] == _GPT2
        splits: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), "isolated")
            for pattern in (self.patterns[:-1] if native else self.patterns)
        ]
        splits.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=native))
        return pre_tokenizers.Sequence(splits)


_SPLITS: dict[tuple[str, ...], Rules] = {
    ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4"): Rules(
        (_GPT2,)
    ),
    ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"): Rules(
        (r"\p{N}", _GPT2)
    ),
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"): Rules(
        (_LLAMA3,), ignore_merges=True, add_bos=True
    ),
    ("dbrx", "smaug-bpe", "chatglm-bpe"): Rules((_LLAMA3,)),
    ("glm4",): Rules((_LLAMA3,), ignore_merges=True),
    ("qwen2", "deepseek-r1-qwen", "megrez", "hunyuan", "stablelm2"): Rules((_QWEN2,), nfc=True),
    ("qwen35",): Rules((_QWEN35,)),
    ("tekken",): Rules((_TEKKEN,), ignore_merges=True, add_bos=True),
    ("gpt-4o", "llama4"): Rules((_GPT4O,)),
    ("deepseek-v3",): Rules((r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3)),
    ("falcon",): Rules((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    ("default",): Rules((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}

SPLITS: dict[str, Rules] = {name: split for names, split in _SPLITS.items() for name in names}


def split_of(pre: str) -> Rules:
    """The entry of ``pre``. Raises ModelError for an unknown one."""
    if pre not in SPLITS:
        raise ModelError(
            f"tokenizer.ggml.pre '{pre}' is not supported "
            f"(supported: {', '.join(sorted(SPLITS))}): "
            "use the model's Hugging Face folder, whose tokenizer.json describes its own",
            code="unsupported_tokenizer",
        )
    return SPLITS[pre]
