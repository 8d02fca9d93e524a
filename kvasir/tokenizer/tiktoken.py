"""Files of tiktoken: a line for each token, its bytes in base64 and its rank."""

from __future__ import annotations

import base64
import binascii
import re

from kvasir.core.errors import ModelError
from kvasir.tokenizer.affixes import put_around
from kvasir.tokenizer.listed import listed_tokens
from kvasir.tokenizer.ranks import ranked_bpe, ranked_vocabulary
from kvasir.tokenizer.settings import FolderSettings
from kvasir.tokenizer.splits import GPT4O, KIMI, LLAMA3, QWEN2
from kvasir.tokenizer.tokenizer import TokenizerSpec
from kvasir.tokenizer.vocabulary import MAX_TOKENS
from kvasir.weights.source import ModelSource

PATTERNS = {
    "tokenizer.model": LLAMA3,
    "tiktoken.model": KIMI,
    "qwen.tiktoken": QWEN2,
    "cl100k_base.tiktoken": LLAMA3,
    "o200k_base.tiktoken": GPT4O,
}
"""How texts are cut, which no such file says, by the names that files have with Llama, Moonshot,
Qwen and OpenAI."""
_FIRST_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")


def is_tiktoken(data: bytes) -> bool:
    return _FIRST_LINE.match(data) is not None


def spec_from_tiktoken(source: ModelSource, name: str, data: bytes) -> TokenizerSpec:
    """Build the tokenizer of ``data``, the file ``name`` of a folder, whose special tokens
    tokenizer_config.json lists. Raises ModelError naming the file."""
    path = source.path / name
    vocabulary = ranked_vocabulary(read_ranks(data, str(path)), (), str(path))
    backend = ranked_bpe(vocabulary, (PATTERNS[name],))
    listed = listed_tokens(source).add_to(backend, len(vocabulary.tokens))
    if not listed.special_ids:
        raise ModelError(
            f"{path} has no special tokens: tokenizer_config.json has to list them as "
            "added_tokens_decoder, or the folder to have a tokenizer.json"
        )
    settings = FolderSettings(source, backend.token_to_id, name)
    bos_id, eos_ids = settings.bos_id(), settings.end_ids()
    put_around(
        backend,
        bos_id if settings.adds("bos", False) else None,
        next(iter(eos_ids), None) if settings.adds("eos", False) else None,
    )
    return TokenizerSpec(
        backend=backend,
        style="byte_level",
        strip_space=False,
        added_ids=frozenset(listed.tokens),
        special_ids=listed.special_ids,
        bos_id=bos_id,
        eos_ids=eos_ids,
        n_embeddings=source.n_embeddings,
    )


def read_ranks(data: bytes, path: str) -> list[bytes]:
    """Tokens by rank. Raises ModelError."""
    lines = data.splitlines()
    if len(lines) > MAX_TOKENS:
        raise ModelError(f"{path} has {len(lines)} lines, at most {MAX_TOKENS} are allowed")
    ranked: dict[int, bytes] = {}
    for n, line in enumerate(lines):
        try:
            token, rank = line.split(b" ")
            ranked[int(rank)] = base64.b64decode(token, validate=True)
        except (ValueError, binascii.Error):
            raise ModelError(f"{path}: line {n + 1} is no token and rank: {line[:40]!r}") from None
    if sorted(ranked) != list(range(len(lines))):
        raise ModelError(f"{path}: the ranks are not 0 to {len(lines) - 1}, each once")
    return [ranked[i] for i in range(len(lines))]
