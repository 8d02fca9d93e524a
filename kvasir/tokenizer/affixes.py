"""What a model puts around a text."""

from __future__ import annotations

import tokenizers
from tokenizers import processors

from kvasir.core.errors import ModelError


def put_around(
    backend: tokenizers.Tokenizer,
    before: int | None,
    after: int | None,
    n_between: int = 2,
) -> None:
    """``backend`` begins and ends texts with these of its tokens, where they are not None. Between
    two texts the latter stands ``n_between`` times: once in models that tell the second text from
    the first (BERT), twice in others (RoBERTa). Raises ModelError for an id that it does not have.
    """
    named: list[dict[str, object]] = []
    single, pair = ["$A"], ["$A:0", "$B:1"]
    if before is not None:
        named.append(_named("first", before, backend))
        single.insert(0, "first")
        pair.insert(0, "first:0")
    if after is not None:
        named.append(_named("last", after, backend))
        single.append("last")
        kind = 1 if n_between == 1 else 0
        pair[-1:] = ["last:0"] * n_between + [f"$B:{kind}", f"last:{kind}"]
    if named:
        backend.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=named
        )


def _named(word: str, token_id: int, backend: tokenizers.Tokenizer) -> dict[str, object]:
    """By a word of our own: the library takes a colon in a token's name for syntax."""
    name = backend.id_to_token(token_id)
    if name is None:
        raise ModelError(f"texts are to begin or end with the token {token_id}, which has no name")
    return {"id": word, "ids": [token_id], "tokens": [name]}
