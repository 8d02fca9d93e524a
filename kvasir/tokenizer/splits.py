"""How text is split before byte-level BPE: one entry per value of GGUF's ``tokenizer.ggml.pre``.

The expressions are those of the models' own tokenizer.json, in Oniguruma's syntax.
"""

from __future__ import annotations

import msgspec

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
LLAMA3 = _CONTRACTIONS + "|" + _WORD + r"|\p{N}{1,3}" + _TAIL
QWEN2 = _CONTRACTIONS + "|" + _WORD + r"|\p{N}" + _TAIL
_QWEN35 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
) + _SPACES
_UFAKZEKA = _WORD + r"|\p{N}" + _TAIL
_MINICPM5 = _CONTRACTIONS + "|" + _WORD + r"|\p{N}+" + _TAIL
_SEED_CODER = _CONTRACTIONS + "|" + _WORD + r"|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + _SPACES
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_EXAONE_MOE = _CONTRACTIONS + (
    r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_JAIS2 = (
    _CONTRACTIONS
    + "|"
    + _WORD
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    + (
        r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)"
        r"|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
    )
)
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+SUFFIX|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*SUFFIX"
)
_CASED_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
TEKKEN = _CASED.replace("SUFFIX", "") + r"|\p{N}" + _CASED_TAIL
_SUFFIXED = _CASED.replace("SUFFIX", _CONTRACTIONS + "?")
GPT4O = _SUFFIXED + r"|\p{N}{1,3}" + _CASED_TAIL
_NOT_HAN = r"\p{M}&&[^\p{Han}]]"
KIMI = r"\p{Han}+|" + _SUFFIXED.replace(r"\p{M}]", _NOT_HAN) + r"|\p{N}{1,3}" + _TAIL
_PUNCTUATED = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
_MARKED = r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    _PUNCTUATED + _MARKED + r"| ?[\p{P}\p{S}]+[\r\n]*" + _SPACES,
)
_SPARK = (
    *_DEEPSEEK3[:2],
    _PUNCTUATED + _MARKED + r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+",
    r"\p{N}",
)
_AFMOE = (
    # Threes counted from the end of a number. Only where one begins is its end looked for, so that
    # the time is linear.
    r"(?<!\p{N})\p{N}{1,2}(?=(?>(?:\p{N}{3})+)(?!\p{N}))|\p{N}{1,3}",
    r"[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+",
    _DEEPSEEK3[2],
)
_TINY_AYA = (
    # As above, where a number ends with its word: \d{1,3}(?=(?:\d{3})*\b) in linear time.
    r"(?<!\d)\d{1,3}(?=(?>(?:\d{3})*)\b)|(?<=\d)\G\d{3}",
    GPT4O,
)
_SUPER = (
    r"\p{N}+",
    r"(?<!\d)\d{1,2}(?=(?>(?:\d{3})+)(?!\d))|\d{1,3}",
)
_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴ"
    "ᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_LETTERS}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")
_YOUTU = (
    r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
    _SUFFIXED + r"|\p{N}" + _CASED_TAIL,
)
_CHAMELEON = (
    "<sentinel:[0-9]+>",
    "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    r"([\t\n]|    |  )",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    GPT2,
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


class Rules(msgspec.Struct, frozen=True):
    """Expressions applied one after the other; matches and the text between become pieces."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    """A piece that is a token as it stands is taken whole."""
    add_bos: bool = False
    """What an absent ``tokenizer.ggml.add_bos_token`` means."""
    nfc: bool = False
    """Text is brought to Unicode normal form C first."""


_SPLITS: dict[str, Rules] = {
    "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum "
    "modern-bert jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe": Rules(
        (GPT2,)
    ),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": Rules(
        (r"\p{N}", GPT2)
    ),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": Rules(
        (LLAMA3,), ignore_merges=True, add_bos=True
    ),
    "dbrx smaug-bpe chatglm-bpe": Rules((LLAMA3,)),
    "glm4 glm5": Rules((LLAMA3,), ignore_merges=True),
    "qwen2 deepseek-r1-qwen megrez hunyuan stablelm2 f2llmv2": Rules((QWEN2,), nfc=True),
    "kormo grok-2 solar-open": Rules((QWEN2,)),
    "laguna": Rules((r"[^\n]+|[\n]+", QWEN2)),
    "ufakzeka": Rules((_UFAKZEKA,)),
    "qwen35": Rules((_QWEN35,)),
    "minicpm5": Rules((r"\p{N}{1,3}", _MINICPM5), ignore_merges=True),
    "seed-coder": Rules((_SEED_CODER,)),
    "bailingmoe bailingmoe2 llada-moe": Rules((_BAILING,)),
    "exaone-moe": Rules((_EXAONE_MOE,)),
    "jais-2": Rules((_JAIS2,)),
    "tekken": Rules((TEKKEN,), ignore_merges=True, add_bos=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": Rules((GPT4O,)),
    "granite-embed-multi-97m": Rules((GPT4O,), ignore_merges=True),
    "tiny_aya cohere2moe": Rules(_TINY_AYA),
    "kimi-k2": Rules((KIMI,)),
    "youtu": Rules(_YOUTU, ignore_merges=True),
    "deepseek-llm": Rules(_DEEPSEEK_LLM),
    "deepseek-coder": Rules(_DEEPSEEK_CODER),
    "deepseek-v3 hunyuan-dense hy_v4 joyai-llm": Rules(_DEEPSEEK3),
    "spark2_5": Rules(_SPARK),
    "afmoe": Rules(_AFMOE),
    "superbpe": Rules(_SUPER),
    "chameleon": Rules(_CHAMELEON, add_bos=True),
    "bloom poro-chat gpt3-finnish": Rules((_BLOOM,)),
    "viking": Rules((_BLOOM, r"\p{N}")),
    "falcon": Rules((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]")),
    "default": Rules((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}

SPLITS: dict[str, Rules] = {
    name: rules for names, rules in _SPLITS.items() for name in names.split()
}
