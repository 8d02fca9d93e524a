"""A radix tree over full blocks, found by their keys (SGLang's RadixAttention, block by block)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from kvasir.core.errors import KvasirError
from kvasir.core.groups import NO_BLOCK
from kvasir.kv.keys import TOKEN_BYTES

_NO_CHILDREN: list[Node] = []
"""Of the many leaves; never changed."""
_TOKENS = attrgetter("tokens")


@dataclass(slots=True, eq=False)
class Node:
    """One full block of tokens, after the blocks of its ancestors. A root stands for the empty
    prefix of one chain."""

    key: bytes
    tokens: bytes
    """Packed, and behind them what some of them stand for; no two siblings have the same."""
    blocks: list[int]
    """Per group; NO_BLOCK where a windowed group has none. A root has none at all."""
    parent: Node | None = None
    depth: int = 0
    is_proven: bool = True
    """Finite logits were computed from it; then also from all blocks before it."""
    children: list[Node] = field(default_factory=lambda: _NO_CHILDREN)
    """Ascending by their tokens: the longest common prefix is that of a neighbour."""
    is_live: bool = True
    """Not dropped from the tree. A root without children is not in the tree, yet live."""


class RadixTree:
    """Which block holds which prefix. O(1) per block, and O(log siblings) for a part of one."""

    def __init__(self, windows: Sequence[int] = (0,)) -> None:
        """``windows``: of each group; 0 for the one whose blocks every node has."""
        self._windows = tuple(windows)
        self._none = (NO_BLOCK,) * len(self._windows)
        self._nodes: dict[bytes, Node] = {}
        self._n_roots = 0
        self.by_block: tuple[dict[int, Node], ...] = tuple({} for _ in windows)
        """Per group the nodes of its known blocks."""

    def __len__(self) -> int:
        """Prefixes that are known."""
        return len(self._nodes) - self._n_roots

    def root(self, key: bytes) -> Node:
        return self._nodes.get(key) or Node(key, b"", [])

    def get(self, key: bytes) -> Node | None:
        return self._nodes.get(key)

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
        at = bisect_left(parent.children, tokens, key=_TOKENS)
        best, most = None, 0
        for node in parent.children[max(0, at - 1) : at + 1]:
            n = _n_common(node.tokens, tokens)
            if n > most:
                best, most = node, n
        return best, most

    def insert(self, parent: Node, key: bytes, tokens: bytes, blocks: Sequence[int]) -> Node:
        """The node of ``key``: a new one that holds ``blocks``, or what is there already, which
        takes those that it lacks."""
        node = self._nodes.get(key)
        if node is None:
            if parent.parent is None:
                self._n_roots += parent.key not in self._nodes
                parent = self._nodes.setdefault(parent.key, parent)
            node = Node(key, tokens, list(self._none), parent, parent.depth + 1, is_proven=False)
            if not parent.children:
                parent.children = []
            insort(parent.children, node, key=_TOKENS)
            self._nodes[key] = node
        held = node.blocks
        for group, block in enumerate(blocks):
            if held[group] == NO_BLOCK != block:
                if block in self.by_block[group]:
                    raise KvasirError(f"block {block} holds another prefix already")
                held[group] = block
                self.by_block[group][block] = node
        return node

    def prove(self, node: Node) -> None:
        """Logits computed from this block were finite. O(1), amortised over the blocks."""
        up: Node | None = node
        while up is not None and not up.is_proven:
            up.is_proven = True
            up = up.parent

    def evict(self, group: int, block: int) -> tuple[Node, ...]:
        """Forget one block; the nodes that went with it: a node without its block in a group that
        keeps everything, and those that hold no block any more and lead to none.

        Raises KvasirError on a block of a group that keeps everything when others follow it.
        """
        node = self.by_block[group][block]
        if self._windows[group]:
            del self.by_block[group][block]
            node.blocks[group] = NO_BLOCK
            return self.prune(node)
        if node.children:
            raise KvasirError(f"block {block} is followed by {len(node.children)} cached blocks")
        self._remove(node)
        return (node,)

    def drop(self, node: Node) -> tuple[Node, ...]:
        """Forget a block and all that follow it; which they were."""
        if not node.is_live:
            return ()
        dropped = tuple(_subtree(node))
        for each in reversed(dropped):
            self._remove(each)
        return dropped if node.parent is None else (*dropped, *self.prune(node.parent))

    def prune(self, node: Node) -> tuple[Node, ...]:
        """Forget a leaf without blocks, and those before it that become such leaves."""
        gone: list[Node] = []
        up: Node | None = node if node.is_live else None
        while up is not None and up.parent is not None and not up.children and _is_hollow(up):
            self._remove(up)
            gone.append(up)
            up = up.parent
        return tuple(gone)

    def clear(self) -> None:
        """Forget everything."""
        for node in self._nodes.values():
            node.is_live = node.parent is None
            node.children = _NO_CHILDREN
        self._nodes.clear()
        self._n_roots = 0
        for known in self.by_block:
            known.clear()

    def check(self) -> None:
        """Raises KvasirError unless the tree and all ways into it agree."""
        n_known = [0] * len(self._windows)
        for key, node in self._nodes.items():
            tokens = [child.tokens for child in node.children]
            is_family = all(child.parent is node for child in node.children)
            if not is_family or tokens != sorted(set(tokens)):
                raise KvasirError(f"what follows blocks {node.blocks} is out of order")
            if node.key != key or not node.is_live:
                raise KvasirError(f"blocks {node.blocks} are not where their key is")
            if node.parent is None:
                if not node.children:
                    raise KvasirError("a root without blocks is kept")
                continue
            self._check_node(node, node.parent)
            for group, block in enumerate(node.blocks):
                n_known[group] += block != NO_BLOCK
        if n_known != [len(known) for known in self.by_block]:
            raise KvasirError(f"{n_known} blocks in the tree, not those that are known")
        n_roots = sum(node.parent is None for node in self._nodes.values())
        n_children = sum(len(node.children) for node in self._nodes.values())
        if n_roots != self._n_roots or n_children != len(self):
            raise KvasirError(f"{n_children} children of {len(self)} prefixes, {n_roots} roots")

    def _check_node(self, node: Node, parent: Node) -> None:
        if self._nodes.get(parent.key) is not parent:
            raise KvasirError(f"blocks {node.blocks} follow some that are not known")
        if node.is_proven and not parent.is_proven:
            raise KvasirError(f"blocks {node.blocks} are proven, those before are not")
        for window, known, block in zip(self._windows, self.by_block, node.blocks, strict=True):
            if block == NO_BLOCK and not window:
                raise KvasirError(f"blocks {node.blocks} lack one of a group that keeps all")
            if block != NO_BLOCK and known.get(block) is not node:
                raise KvasirError(f"block {block} is not where its key is")
        if not node.children and _is_hollow(node):
            raise KvasirError("a leaf without blocks is kept")

    def _remove(self, node: Node) -> None:
        parent = node.parent
        if parent is None:
            raise KvasirError("a root holds no block")
        at = bisect_left(parent.children, node.tokens, key=_TOKENS)
        del self._nodes[node.key], parent.children[at]
        for known, block in zip(self.by_block, node.blocks, strict=True):
            known.pop(block, None)
        node.is_live = False
        if parent.parent is None and not parent.children:
            del self._nodes[parent.key]
            self._n_roots -= 1


def _is_hollow(node: Node) -> bool:
    """Kept for what follows alone."""
    return node.blocks.count(NO_BLOCK) == len(node.blocks)


def _n_common(a: bytes, b: bytes) -> int:
    """Leading tokens that both have."""
    for i, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return i // TOKEN_BYTES
    return min(len(a), len(b)) // TOKEN_BYTES


def _subtree(node: Node) -> Iterator[Node]:
    """Parents before their children; a stack, because chains are deeper than Python's."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(top.children)
