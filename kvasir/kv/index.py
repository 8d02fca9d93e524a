"""A radix tree over full blocks, found by their keys (SGLang's RadixAttention, block by block)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from kvasir.core.errors import KvasirError
from kvasir.kv.keys import TOKEN_BYTES

NO_BLOCK = -1
"""The block of a root: it stands for the empty prefix of one chain."""


class Node:
    """One full block of tokens, after the blocks of its ancestors."""

    __slots__ = ("block", "children", "depth", "is_live", "is_proven", "key", "parent", "tokens")

    def __init__(self, key: bytes, tokens: bytes, block: int, parent: Node | None) -> None:
        self.key = key
        self.tokens = tokens
        """Packed; equal lengths everywhere, so that siblings have an order."""
        self.block = block
        self.parent = parent
        self.children: list[Node] = []
        """Ascending by tokens: the longest common prefix is that of a neighbour."""
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.is_live = True
        """Not dropped from the index. A root without children is not in the index, yet live."""
        self.is_proven = parent is None
        """Finite logits were computed from it; then also from all blocks before it."""


class PrefixIndex:
    """Which block holds which prefix. O(1) per block, and O(log siblings) for a part of one."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, Node] = {}
        self._by_block: dict[int, Node] = {}

    def __len__(self) -> int:
        return len(self._by_block)

    def __contains__(self, block: object) -> bool:
        return block in self._by_block

    def root(self, key: bytes) -> Node:
        return self._nodes.get(key) or Node(key, b"", NO_BLOCK, None)

    def match(self, root: bytes, keys: Sequence[bytes], n: int) -> list[Node]:
        """The root, and the nodes of the longest known prefix of the first ``n`` keys."""
        found = [self.root(root)]
        get = self._nodes.get
        for i in range(n):
            node = get(keys[i])
            if node is None:
                break
            found.append(node)
        return found

    def part(self, parent: Node, tokens: bytes) -> tuple[Node | None, int]:
        """The child of ``parent`` that shares most leading tokens with ``tokens``, and how many."""
        at = bisect_left(parent.children, tokens, key=_tokens)
        near = parent.children[max(0, at - 1) : at + 1]
        best = max(near, key=lambda node: _n_common(node.tokens, tokens), default=None)
        n = _n_common(best.tokens, tokens) if best is not None else 0
        return (best, n) if n else (None, 0)

    def insert(self, parent: Node, key: bytes, tokens: bytes, block: int) -> Node:
        """The node of ``key``: what is there already, else a new one that holds ``block``."""
        known = self._nodes.get(key)
        if known is not None:
            return known
        if block in self._by_block:
            raise KvasirError(f"block {block} holds another prefix already")
        if parent.block == NO_BLOCK:
            parent = self._nodes.setdefault(parent.key, parent)
        node = Node(key, tokens, block, parent)
        parent.children.insert(bisect_left(parent.children, tokens, key=_tokens), node)
        self._nodes[key] = self._by_block[block] = node
        return node

    def prove(self, node: Node) -> None:
        """Logits computed from this block were finite. O(1), amortised over the blocks."""
        up: Node | None = node
        while up is not None and not up.is_proven:
            up.is_proven = True
            up = up.parent

    def evict(self, block: int) -> None:
        """Forget a leaf. Raises KvasirError on a block that others follow."""
        node = self._by_block[block]
        if node.children:
            raise KvasirError(f"block {block} is followed by {len(node.children)} cached blocks")
        self._remove(node)

    def drop(self, node: Node) -> tuple[int, ...]:
        """Forget a block and all that follow it; which they were."""
        dropped = tuple(_subtree(node)) if node.is_live else ()
        for node in reversed(dropped):
            self._remove(node)
        return tuple(node.block for node in dropped)

    def clear(self) -> tuple[int, ...]:
        """Forget everything; which blocks it was."""
        blocks = tuple(self._by_block)
        for node in self._by_block.values():
            node.is_live = False
        self._nodes.clear()
        self._by_block.clear()
        return blocks

    def check(self) -> None:
        """Raises KvasirError unless the tree and both ways into it agree."""
        for block, node in self._by_block.items():
            parent = node.parent
            if self._nodes.get(node.key) is not node or node.block != block or not node.is_live:
                raise KvasirError(f"block {block} is not where its key is")
            if parent is None or self._nodes.get(parent.key) is not parent:
                raise KvasirError(f"block {block} follows one that is not known")
            if node.is_proven and not parent.is_proven:
                raise KvasirError(f"block {block} is proven, the one before it is not")
        for node in self._nodes.values():
            order = [child.tokens for child in node.children]
            if order != sorted(set(order)) or any(c.parent is not node for c in node.children):
                raise KvasirError(f"the blocks after block {node.block} are out of order")
            if node.block == NO_BLOCK and not node.children:
                raise KvasirError("a root without blocks is kept")
        n_roots = len(self._nodes) - len(self._by_block)
        n_children = sum(len(node.children) for node in self._nodes.values())
        if n_roots < 0 or n_children != len(self._by_block):
            raise KvasirError(f"{n_children} children of {len(self._by_block)} blocks")

    def node(self, block: int) -> Node | None:
        """Of a block that is known."""
        return self._by_block.get(block)

    def _remove(self, node: Node) -> None:
        parent = node.parent
        if parent is None:
            raise KvasirError("a root holds no block")
        del self._nodes[node.key], self._by_block[node.block]
        del parent.children[bisect_left(parent.children, node.tokens, key=_tokens)]
        node.is_live = False
        if parent.block == NO_BLOCK and not parent.children:
            del self._nodes[parent.key]


def _tokens(node: Node) -> bytes:
    return node.tokens


def _n_common(a: bytes, b: bytes) -> int:
    """Leading tokens that both have."""
    n = min(len(a), len(b))
    differing = (i for i in range(n) if a[i] != b[i])
    return next(differing, n) // TOKEN_BYTES


def _subtree(node: Node) -> Iterator[Node]:
    """Parents before their children; a stack, because chains are deeper than Python's."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(top.children)
