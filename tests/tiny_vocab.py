"""Tiny tokenizers for tests, as GGUF metadata: byte-level and SentencePiece BPE."""

from __future__ import annotations

from tokenizers import pre_tokenizers

WORDS = ("the", "quick", "brown", "fox", "lazy", "dog")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def byte_level(**extra: object) -> dict[str, object]:
    """A gpt2-style vocabulary: 3 special tokens, 256 bytes, and merges that spell ``WORDS``."""
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges: list[str] = []
    for word in (*WORDS, "ðŁĺ", "ä½ł"):
        pairs = [(word[:n], word[n]) for n in range(1, len(word))] + [("Ġ", word)]
        merges += [f"{left} {right}" for left, right in pairs]
        tokens += [left + right for left, right in pairs]
    tokens = list(dict.fromkeys(tokens))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": list(dict.fromkeys(merges)),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        **extra,
    }


def sentence_piece(**extra: object) -> dict[str, object]:
    """A llama-style vocabulary: unk, BOS, EOS, 256 bytes, letters, prefixes of ``WORDS``."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [2, 3, 3] + [6] * 256
    pieces = ["▁", *"abcdefghijklmnopqrstuvwxyzé"]
    for word in WORDS:
        pieces += [f"▁{word}"[:n] for n in range(2, len(word) + 2)]
    pieces = list(dict.fromkeys(pieces))
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens + pieces,
        "tokenizer.ggml.token_type": types + [1] * len(pieces),
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **extra,
    }


def word_piece(**extra: object) -> dict[str, object]:
    """A bert-style vocabulary: tokens that begin a word have a ▁ in GGUF."""
    control = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [f"▁{word}" for word in (*WORDS, "42", ",", "[", "]", "é", "一", "the-x")]
    pieces += ["ing", "s", "er", "##", *(f"▁{letter}" for letter in "abcdtq"), *"abcdeouxz"]
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": control + pieces,
        "tokenizer.ggml.token_type": [3] * 5 + [1] * len(pieces),
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        **extra,
    }


def unigram(**extra: object) -> dict[str, object]:
    """A t5-style vocabulary, in the order of XLM-R: BOS, padding, EOS, unk, pieces, unused ids."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = {"▁": -3.0, "▁the": -2.5, "▁quick": -6.0, "▁qu": -5.0, "ick": -5.5, "▁dog": -4.0}
    pieces |= {"do": -6.0, "g": -7.0, "▁do": -5.0} | {
        letter: -8.0 for letter in "abcdefhijklmnopqrstuvwxyz" if letter != "g"
    }
    return {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": [*tokens, *pieces, "[PAD0]", "[PAD1]"],
        "tokenizer.ggml.token_type": [3, 3, 3, 2] + [1] * len(pieces) + [5, 5],
        "tokenizer.ggml.scores": [0.0] * 4 + list(pieces.values()) + [-10000.0] * 2,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_bos_token": True,
        **extra,
    }


def characters(**extra: object) -> dict[str, object]:
    """A gemma4-style vocabulary: merges of characters, a space is ▁, bytes are for the others."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [3, 3, 3, 2] + [6] * 256
    pieces = ["▁", "\n", *"abcdefghijklmnopqrstuvwxyzé"]
    merges = ["\n \n", "▁ ▁"]
    for word in WORDS:
        merges += [f"▁{word}"[:n] + " " + word[n - 1] for n in range(1, len(word) + 1)]
    pieces += [merge.replace(" ", "") for merge in merges]
    pieces = list(dict.fromkeys(pieces))
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens + pieces,
        "tokenizer.ggml.token_type": types + [1] * len(pieces),
        "tokenizer.ggml.merges": list(dict.fromkeys(merges)),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_bos_token": True,
        **extra,
    }
