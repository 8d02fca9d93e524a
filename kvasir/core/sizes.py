"""What an engine was built for: one value, which scheduler and executor both hold."""

from __future__ import annotations

import msgspec

from kvasir.core.groups import KVGroup


class EngineSizes(msgspec.Struct, frozen=True):
    """No plan exceeds them."""

    vocab_size: int
    max_model_len: int
    """Tokens of one request, prompt and output together."""
    max_num_seqs: int
    """Requests of one step. Slots are 0 … max_num_seqs - 1."""
    max_num_batched_tokens: int
    """Tokens of one step."""
    n_blocks: int
    """KV blocks of the layers that keep every position, and of windowed ones without a group in
    ``windows``; 0 when there are none."""
    block_size: int
    """Tokens of one KV block."""
    windows: tuple[KVGroup, ...] = ()
    """KV blocks of the layers that see a window only, for each window."""

    kept_drafts: int = 0
    """Drafted tokens of a request whose distributions the executor keeps for the classical rule; 0:
    drafts draw with the noise of the target."""
    draft_width: int = 1
    """Tokens that the executor drafts in one place, the best first; drafts go on behind that one.
    More than one make trees."""
    n_candidates: int = 0
    """Likeliest tokens that the executor tells of each logit row, for who drafts from them."""

    @property
    def groups(self) -> tuple[KVGroup, ...]:
        """In the order of a slot's tables: first what keeps every position, if any does."""
        return (KVGroup(self.n_blocks), *self.windows) if self.n_blocks else self.windows

    @property
    def max_blocks(self) -> int:
        """Of one request, in each group."""
        return -(-self.max_model_len // self.block_size)
