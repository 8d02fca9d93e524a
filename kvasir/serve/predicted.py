"""What a client expects its answer to be, in the model's own tokens."""

from __future__ import annotations

import msgspec

from kvasir.core.messages import Ready
from kvasir.core.params import TokenParams
from kvasir.serve.resolved import Ids
from kvasir.serve.text import TextModel
from kvasir.text.prediction import NAME, check_length, why_useless


class Predicted(msgspec.Struct, frozen=True):
    ids: Ids = ()
    warnings: tuple[str, ...] = ()


async def read_predicted(
    given: str, text: TextModel, info: Ready, params: TokenParams
) -> Predicted:
    """Nothing but a warning where no drafts can come of it. Raises RequestError (400) for more
    tokens than a prompt may have."""
    if not given:
        return Predicted()
    useless = why_useless(info.drafter, params.max_drafts)
    if useless:
        return Predicted((), (useless,))
    limit = info.max_model_len
    ids = await text.encode(given, add_special=False, limit=limit, param=NAME)
    check_length(len(ids), limit)
    return Predicted(ids)
