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
