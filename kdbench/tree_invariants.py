# SPDX-License-Identifier: Apache-2.0
"""What the parents of a tree imply for its other arrays, and where an array says something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from kdbench.abi import RequestStatus

if TYPE_CHECKING:
    from kdbench.tree import DraftTree

Ints = np.ndarray[Any, np.dtype[np.integer[Any]]]


def depths(parents: Ints) -> Ints:
    """Depth of each node of one request, the root's 0; a parent must stand before its children."""
    levels = np.zeros(len(parents), np.int32)
    for node in range(1, len(parents)):
        levels[node] = levels[parents[node]] + 1
    return levels


def closure(parents: Ints, words: int) -> Ints:
    """Mask rows u64[len(parents), words] of one request: the ancestors of each node and itself."""
    rows = np.zeros((len(parents), words), np.uint64)
    for node, parent in enumerate(parents):
        if node:
            rows[node] = rows[parent]
        rows[node, node >> 6] |= np.uint64(1 << (node & 63))
    return rows


def links(parents: Ints) -> tuple[Ints, Ints]:
    """first_child and next_sibling, in ascending index, of one request's ``parents`` (real nodes only, root first)."""
    first_child = np.full(len(parents), -1, np.int32)
    next_sibling = np.full(len(parents), -1, np.int32)
    by_parent = np.argsort(parents[1:], kind="stable") + 1
    above = parents[by_parent]
    leads = np.diff(above, prepend=-1) != 0
    first_child[above[leads]] = by_parent[leads]
    follows = np.flatnonzero(~leads)
    next_sibling[by_parent[follows - 1]] = by_parent[follows]
    return first_child, next_sibling


def preorder(first_child: Ints, next_sibling: Ints) -> Ints:
    """Node indices of one request in depth-first pre-order."""
    order, pending = [], [0]
    while pending:
        node = pending.pop()
        order.append(node)
        pending += [int(nearby) for nearby in (next_sibling[node], first_child[node]) if nearby >= 0]
    return np.array(order, np.int32)


def problems(tree: DraftTree, request: int) -> Iterator[tuple[int | None, str]]:
    """The broken invariants of one request of a host tree, as (node or None, sentence); the first is the cause."""
    nodes = tree.token_ids.shape[1]
    count = int(tree.num_nodes[request])
    status = RequestStatus(int(tree.status[request]))
    if not 1 <= count <= nodes:
        yield None, f"num_nodes is {count}, outside 1 to {nodes}"
        return
    if status.refused and count != 1:
        yield None, f"the status {status!r} refuses the request, but it has {count} nodes"
    if not status.refused and bool(status & RequestStatus.SHORT_TREE) != (count < nodes):
        yield None, f"num_nodes is {count} of {nodes}, which SHORT_TREE contradicts"
    yield from _real_nodes(tree, request, count)
    yield from _pads(tree, request, count)
    if tree.expected_lengths is not None:
        yield from _lengths(np.asarray(tree.expected_lengths[request]), np.asarray(tree.scores[request]), count)


def _real_nodes(tree: DraftTree, request: int, count: int) -> Iterator[tuple[int | None, str]]:
    parents = np.asarray(tree.parents[request, :count])
    if parents[0] != -1:
        yield 0, f"the parent of the root is {parents[0]}, not -1"
    misplaced = np.flatnonzero((parents[1:] < 0) | (parents[1:] >= np.arange(1, count))) + 1
    if misplaced.size:
        # Nothing below can be derived from such parents.
        yield int(misplaced[0]), f"parent {parents[misplaced[0]]} is not an earlier node"
        return
    levels = depths(parents)
    deep = np.flatnonzero(levels > tree.draft_horizon)
    if deep.size:
        yield int(deep[0]), f"depth {levels[deep[0]]} is beyond draft_horizon {tree.draft_horizon}"
    first_child, next_sibling = links(parents)
    expected = {
        "depths": levels,
        "positions": tree.positions[request, 0] + levels,
        "first_child": first_child,
        "next_sibling": next_sibling,
        "tree_mask": closure(parents, tree.tree_mask.shape[2]),
    }
    if tree.dfs_order is not None:
        expected["dfs_order"] = preorder(first_child, next_sibling)
    for name, values in expected.items():
        yield from _differences(name, getattr(tree, name)[request, :count], values)
    scores = np.asarray(tree.scores[request, :count])
    if scores[0] != 0:
        yield 0, f"the score of the root is {scores[0]}, not 0"
    # Written so that NaN is out of order, too.
    unsorted = np.flatnonzero(~(scores[1:] <= scores[:-1])) + 1
    if unsorted.size:
        node = int(unsorted[0])
        yield node, f"score {scores[node]} follows {scores[node - 1]}: scores must not rise with the index"


def _lengths(lengths: Ints, scores: Ints, count: int) -> Iterator[tuple[int | None, str]]:
    masses = np.exp(scores.astype(np.float64))
    masses[count:] = 0
    expected = np.cumsum(masses)
    # A float32 of the sum, from scores that are float32 themselves.
    wrong = np.flatnonzero(~(np.abs(lengths - expected) <= 1e-5 * expected))
    if wrong.size:
        node = int(wrong[0])
        yield node, f"expected_lengths is {lengths[node]}, and {expected[node]} follows from the scores"


def _pads(tree: DraftTree, request: int, count: int) -> Iterator[tuple[int | None, str]]:
    pads = {
        "token_ids": 0,
        "parents": -1,
        "depths": 0,
        "positions": tree.positions[request, 0],
        "first_child": -1,
        "next_sibling": -1,
        "tree_mask": 0,
        "scores": -np.inf,
    }
    if tree.dfs_order is not None:
        pads["dfs_order"] = -1
    for name, value in pads.items():
        actual = getattr(tree, name)[request, count:]
        yield from _differences(name, actual, np.full_like(actual, value), first=count)


def _differences(name: str, actual: Ints, expected: Ints, first: int = 0) -> Iterator[tuple[int | None, str]]:
    wrong = np.argwhere(actual != expected)
    if wrong.size:
        node = int(wrong[0, 0])
        yield first + node, f"{name} is {actual[node]}, and {expected[node]} follows from the tree"
