"""Folders with SentencePiece's own file."""

from __future__ import annotations

from kvasir.core.errors import ModelError
from kvasir.tokenizer.added import add_listed
from kvasir.tokenizer.affixes import put_around
from kvasir.tokenizer.listed import listed_tokens
from kvasir.tokenizer.piece_bpe import scored_bpe
from kvasir.tokenizer.sentencepiece import UNIGRAM, read_sentence_pieces
from kvasir.tokenizer.settings import FolderSettings
from kvasir.tokenizer.tokenizer import TokenizerSpec
from kvasir.tokenizer.unigram import unigram
from kvasir.weights.source import ModelSource


def spec_from_pieces(source: ModelSource, name: str, data: bytes) -> TokenizerSpec:
    """Build the tokenizer of ``data``, the file ``name`` of a folder.

    The file says which tokens begin and end a text, not whether they do: the settings beside it
    say that, and where they do not, BPE begins with one and unigram ends with one, as in GGUF files
    of them. Raises ModelError naming the file.
    """
    path = source.path / name
    try:
        file = read_sentence_pieces(data, "pieces")
        make = unigram if file.algorithm == UNIGRAM else scored_bpe
        kind = make(file.vocabulary, file.unk_id, file.spaces, "precompiled_charsmap")
    except ModelError as error:
        raise ModelError(f"{path}: {error.message}", code=error.code) from None
    special, plain = add_listed(kind.backend, kind.vocabulary, lambda _: (False, False))
    listed = listed_tokens(source).add_to(kind.backend, len(kind.vocabulary.tokens))
    settings = FolderSettings(source, kind.backend.token_to_id, name)
    bos_id = settings.bos_id()
    bos_id = file.bos_id if bos_id is None else bos_id
    eos_ids = settings.end_ids(file.eos_id)
    put_around(
        kind.backend,
        bos_id if settings.adds("bos", kind.adds_bos) else None,
        next(iter(eos_ids), None) if settings.adds("eos", kind.adds_eos) else None,
    )
    return TokenizerSpec(
        backend=kind.backend,
        style=kind.style,
        strip_space=kind.strips_space,
        added_ids=frozenset(listed.tokens).union(special, plain),
        special_ids=listed.special_ids.union(special),
        bos_id=bos_id,
        eos_ids=eos_ids,
        n_embeddings=source.n_embeddings,
    )
