# SPDX-License-Identifier: Apache-2.0
"""A DraftTree as the candidate lists that SGLang's tree builder takes, so that it can be asked for our very tree.

SGLang drafts level by level (EAGLE-2, arXiv 2406.16858): a kept node becomes a block of topk candidates, candidate c of
block p has code p * topk + c, block 0 hangs on the root, and ``parent_list[p]`` is the code of the node that block p
hangs on. The builder gets the codes of the nodes kept and links them. With one block for each node that has children,
and topk at least the largest rank plus one, every draft tree can be said in this way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kdbench.tree import DraftTree

_Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class EagleCandidates:
    """What build_tree_kernel_efficient reads, and the selection before it.

    Attributes:
        parent_list: i64[B, topk * (depth - 1) + 1].
        selected_index: i64[B, N - 1], ascending codes: SGLang sorts what it selects.
        scores: f32[B, topk + topk^2 * (depth - 1)]: of kept candidates the tree's, of the others less.
        order: i64[B, N]; node of the DraftTree that stands at each place once codes are sorted, the root first.
        topk, depth: as SGLang names them.
    """

    parent_list: _Array
    selected_index: _Array
    scores: _Array
    order: _Array
    topk: int
    depth: int


def candidates(tree: DraftTree) -> EagleCandidates:
    """The candidates of ``tree``, in host memory, whose requests all have N nodes."""
    batch, nodes = tree.parents.shape
    ranks = np.array([_ranks(row) for row in tree.parents])
    inner = [np.unique(row[1:][row[1:] > 0]) for row in tree.parents]
    depth = max(2, int(tree.depths.max()))
    # A block number must fit into parent_list, and a child's rank into its block.
    topk = max(int(ranks.max(initial=0)) + 1, -(-max(map(len, inner), default=0) // (depth - 1)), 1)
    parent_list = np.full((batch, topk * (depth - 1) + 1), -1, np.int64)
    codes = np.zeros((batch, nodes), np.int64)
    for b in range(batch):
        block = np.zeros(nodes, np.int64)
        block[inner[b]] = np.arange(1, len(inner[b]) + 1)
        codes[b, 1:] = block[tree.parents[b, 1:]] * topk + ranks[b, 1:]
        parent_list[b, 1 : len(inner[b]) + 1] = codes[b, inner[b]]
    rising = np.argsort(codes[:, 1:], axis=1, kind="stable") + 1
    scores = np.full((batch, topk + topk * topk * (depth - 1)), -1e4, np.float32)
    # Distinct ones below every kept score: a selection that could not tell candidates apart would be another problem.
    scores -= np.arange(scores.shape[1], dtype=np.float32)
    np.put_along_axis(scores, codes[:, 1:], tree.scores[:, 1:], axis=1)
    return EagleCandidates(
        parent_list=parent_list,
        selected_index=np.take_along_axis(codes, rising, axis=1),
        scores=scores,
        order=np.concatenate([np.zeros((batch, 1), np.int64), rising], axis=1),
        topk=topk,
        depth=depth,
    )


def restored(positions: _Array, links: _Array, visible: _Array, order: _Array) -> dict[str, _Array]:
    """What SGLang's builder wrote, with nodes numbered as in the DraftTree again.

    Args:
        positions: i64[B, N].
        links: i64[2, B, N], retrive_next_token and retrive_next_sibling.
        visible: bool[B, N, N].
        order: as in ``EagleCandidates``.

    Returns:
        positions, first_child, next_sibling i32[B, N] and tree_mask u64[B, N, W], as in ``DraftTree``.
    """
    place = np.argsort(order, axis=1)

    def renumbered(of: _Array) -> _Array:
        there = np.take_along_axis(of, place, axis=1)
        return np.where(there < 0, -1, np.take_along_axis(order, np.maximum(there, 0), axis=1)).astype(np.int32)

    rows = np.take_along_axis(np.take_along_axis(visible, place[:, :, None], axis=1), place[:, None, :], axis=2)
    batch, nodes = order.shape
    padded = np.zeros((batch, nodes, 64 * -(-nodes // 64)), bool)
    padded[..., :nodes] = rows
    return {
        "positions": np.take_along_axis(positions, place, axis=1).astype(np.int32),
        "first_child": renumbered(links[0]),
        "next_sibling": renumbered(links[1]),
        "tree_mask": np.packbits(padded, axis=-1, bitorder="little").view("<u8"),
    }


def _ranks(parents: _Array) -> _Array:
    """Each node's place among its siblings, which stand in ascending rank."""
    seen: dict[int, int] = {}
    ranks = np.zeros(len(parents), np.int64)
    for node in range(1, len(parents)):
        parent = int(parents[node])
        ranks[node] = seen.get(parent, 0)
        seen[parent] = seen.get(parent, 0) + 1
    return ranks
