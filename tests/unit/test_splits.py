"""How texts are split before byte-level BPE, by llama.cpp's names."""

import pytest
from tokenizers import Regex, pre_tokenizers

from kvasir.core.errors import ModelError
from kvasir.tokenizer.piece_bpe import PIECE_RULES
from kvasir.tokenizer.pretokenize import rules_of
from kvasir.tokenizer.splits import SPLITS

NAMES = """
default minicpm5 llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano
deepseek-llm deepseek-coder deepseek-v3 spark2_5 youtu falcon mpt starcoder gpt-2 phi-2 jina-es
jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jais-2 gemma4
granite-embed-multi-311m mmbert sarvam-moe jina-v1-en jina-v2-code roberta-bpe whitespace refact
command-r qwen2 deepseek-r1-qwen kormo f2llmv2 qwen35 stablelm2 olmo dbrx smaug-bpe poro-chat
chatglm-bpe glm4 glm5 viking jais tekken smollm codeshell bloom gpt3-finnish exaone exaone4
exaone-moe chameleon minerva-7b megrez gpt-4o llama4 kanana2 talkie granite-embed-multi-97m
tiny_aya cohere2moe superbpe trillion granite-docling bailingmoe bailingmoe2 llada-moe seed-coder
hunyuan hunyuan-dense hy_v4 joyai-llm kimi-k2 ufakzeka grok-2 afmoe laguna minimax-m2 solar-open
mellum2
"""
"""All that llama.cpp knows."""


def pieces(pre: str, text: str) -> list[str]:
    """The expressions alone, without GPT-2's alphabet behind them."""
    parts = [text]
    for pattern in rules_of(pre).patterns:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        parts = [piece for part in parts for piece, _ in split.pre_tokenize_str(part)]
    return parts


def test_all_of_llama_cpps_names_are_known() -> None:
    assert set(NAMES.split()) <= {*SPLITS, *PIECE_RULES}
    with pytest.raises(ModelError, match="'klingon' is not supported"):
        rules_of("klingon")


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "I'll be  42nd\n", ["I", "'ll", " be", " ", " 42", "nd", "\n"]),
        ("starcoder", "a 42", ["a", " ", "4", "2"]),
        ("llama-bpe", "I'LL 12345!\n\n", ["I", "'LL", " ", "123", "45", "!\n\n"]),
        ("qwen2", "x=12", ["x", "=", "1", "2"]),
        ("ufakzeka", "Ali'den", ["Ali", "'den"]),
        ("laguna", "a.\n\nb", ["a", ".", "\n\n", "b"]),
        ("gpt-4o", "HelloWorld's /\n", ["Hello", "World's", " /\n"]),
        ("tekken", "HelloWorld's12", ["Hello", "World", "'s", "1", "2"]),
        ("kimi-k2", "Hi你好World1234", ["Hi", "你好", "World", "123", "4"]),
        ("deepseek-v3", "x1234你好 (a)", ["x", "123", "4", "你好", " (", "a", ")"]),
        ("deepseek-coder", "a b\n12", ["a", " b", "\n", "1", "2"]),
        ("deepseek-llm", "ab 12!  é", ["ab", " ", "12", "!", " ", " é"]),
        ("afmoe", "1234567 12 123456", ["1", "234", "567", " ", "12", " ", "123", "456"]),
        ("tiny_aya", "1234567 1234a", ["1", "234", "567", " ", "123", "4", "a"]),
        ("tiny_aya", "12 123456", ["12", " ", "123", "456"]),
        ("superbpe", "by the way 1234567", ["by the way ", "1", "234", "567"]),
        ("minicpm5", "12345", ["123", "45"]),
        ("bloom", "Hi, you there", ["Hi", ",", " you", " there"]),
        ("viking", "a1 b", ["a", "1", " b"]),
        ("youtu", "한국어 abc12", ["한국어", " abc", "1", "2"]),
        ("chameleon", "IMGIMGABZ a\tb", ["IMGIMGABZ", " a", "\t", "b"]),
        ("exaone-moe", "가 나 다, 12", ["가 나 다", ",", " ", "1", "2"]),
        ("bailingmoe", "it'S\n\n", ["it", "'S", "\n\n"]),
        ("seed-coder", "a!!\nb", ["a", "!!", "\n", "b"]),
        ("jais-2", "a" + " " * 7 + "b", ["a", " " * 4, "  ", " b"]),
        ("spark2_5", "a!\n\n12", ["a", "!", "\n", "\n", "1", "2"]),
    ],
)
def test_pieces(pre: str, text: str, expected: list[str]) -> None:
    assert pieces(pre, text) == expected


@pytest.mark.parametrize("pre", ["afmoe", "superbpe", "tiny_aya"])
def test_numbers_are_grouped_from_their_end(pre: str) -> None:
    for n in range(1, 20):
        digits = "1234567890123456789"[:n]
        found = pieces(pre, digits)
        assert "".join(found) == digits
        assert [len(piece) for piece in found[1:]] == [3] * (len(found) - 1), found
        assert len(found[0]) == (n - 1) % 3 + 1
