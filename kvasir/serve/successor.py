"""Which engine may go on with the requests of another."""

from __future__ import annotations

from kvasir.core.errors import RequestError
from kvasir.core.messages import Ready


def check_successor(old: Ready, new: Ready) -> None:
    """Raises RequestError (409) unless ``new`` can go on with every request of ``old``."""
    for name, what in (("key_root", "key root"), ("numerics_id", "numerics")):
        mine, other = getattr(old, name), getattr(new, name)
        if mine != other:
            raise RequestError(
                f"the new engine has {what} {other[:16]}, the running one {mine[:16]}: answers "
                "would change, so keep model, dtypes and block size",
                status=409,
            )
    if new.follows_drafts and not old.follows_drafts:
        raise RequestError(
            "the new engine keeps drafts by the classical rule: sampled answers would change, so "
            "leave rejection_sample_method out",
            status=409,
        )
    if new.max_model_len < old.max_model_len:
        raise RequestError(
            f"the new engine takes {new.max_model_len} tokens a request, the running one "
            f"{old.max_model_len}: give it as many, by --max-model-len and --kv-memory",
            status=409,
        )
