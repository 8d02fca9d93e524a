"""SageMaker: POST /invocations, which is whatever its body is."""

from __future__ import annotations

from msgspec.structs import replace

from kvasir.core.errors import RequestError
from kvasir.serve.answers.errors import TgiError
from kvasir.serve.asked import Asked
from kvasir.serve.dialects.chat import CHAT
from kvasir.serve.dialects.completions import COMPLETIONS
from kvasir.serve.dialects.tgi import TGI
from kvasir.serve.resolved import Json

BY_FIELD = {"messages": CHAT, "prompt": COMPLETIONS, "inputs": TGI}


def read(body: Json, *, strict: bool) -> Asked:
    """Raises RequestError (400)."""
    found = [dialect for name, dialect in BY_FIELD.items() if name in body]
    if len(found) != 1:
        raise RequestError(f"send one of {', '.join(BY_FIELD)}", param=next(iter(BY_FIELD)))
    return found[0].read(body, strict=strict)


INVOCATIONS = replace(
    CHAT,
    read=read,
    needs_model=False,
    request=None,
    answer=tuple(kind for dialect in BY_FIELD.values() for kind in dialect.answer),
    events=(*(kind for dialect in BY_FIELD.values() for kind in dialect.events), TgiError),
)
