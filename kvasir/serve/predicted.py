"""What a client expects its answer to be, in the model's own tokens."""

from __future__ import annotations

import msgspec

from kvasir.config.speculation import LOOKUPS
from kvasir.core.errors import RequestError
from kvasir.core.messages import Ready
from kvasir.core.params import TokenParams
from kvasir.serve.protocol.prediction import NAME
from kvasir.serve.resolved import Ids
from kvasir.serve.text import TextModel


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
    if not {*info.drafter.split("+")} & {*LOOKUPS}:
        return Predicted(
            (),
            (
                f"{NAME} is of no use: this engine does not look texts up; start it with "
                f"--speculative-config and a method of {', '.join(LOOKUPS)}",
            ),
        )
    if not params.max_drafts:
        return Predicted((), (f"{NAME} is of no use: speculative asks for no drafts",))
    limit = info.max_model_len
    ids = await text.encode(given, add_special=False, limit=limit, param=NAME)
    if len(ids) > limit:
        raise RequestError(
            f"{NAME} has {len(ids)} tokens, the context holds {limit}: shorten it", param=NAME
        )
    return Predicted(ids)
