"""Seeds of requests: those that were asked for, and those that are drawn."""

from __future__ import annotations

import hashlib
import random
import secrets
import struct
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from kvasir.core.params import TokenParams

SEED_BITS = 53
"""Of a drawn seed, so that JSON numbers carry it unharmed."""


def choice_seed(seed: int, choice: int) -> int:
    """Seed of one choice of n: the seed itself for the first, BLAKE2b(seed, choice) for others."""
    if choice == 0:
        return seed
    digest = hashlib.blake2b(struct.pack("<QQ", seed, choice), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def other_choice(first: TokenParams, choice: int) -> TokenParams:
    """Parameters of another choice of the prompt that ``first`` is the first of."""
    seed = choice_seed(first.seed, choice)
    return replace(first, seed=seed, n_prompt_logprobs=-1)


def draw_seed() -> int:
    """A seed for a request that names none."""
    return secrets.randbits(SEED_BITS)


def seeds_from(seed: int | None) -> Callable[[], int]:
    """Draws seeds that repeat with ``seed``; without one nobody can tell the next."""
    return draw_seed if seed is None else partial(random.Random(seed).getrandbits, SEED_BITS)
