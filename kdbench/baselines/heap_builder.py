# SPDX-License-Identifier: Apache-2.0
"""The tree builder as arXiv 2604.12989 describes it: a best-first heap in Python, on the host.

This is what a serving engine runs today when it has no native builder, and so what tree_build is compared with. Scores
are float64 and change step by step, as the paper's algorithm has it: from a node to its next sibling one log-prob is
taken off and the next one put on. Trees equal those of ``kdbench.reference`` whenever every log-prob is a multiple of
2^-40, as differences of float32 logits and logsumexps are.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from kdbench.abi import RequestStatus
from kdbench.best_first import usable_columns
from kdbench.tree import DraftTree, blank_tree

_Array = np.ndarray[Any, Any]


def build(
    topk_log_probs: _Array, topk_token_ids: _Array, root_token_ids: _Array, seq_lens: _Array, tree_budget: int
) -> DraftTree:
    """``kdbench.tree_build`` with one heap a request; NumPy arrays in and out, shapes and statuses as there.

    Args:
        topk_log_probs: f32[B, D, K], descending rows.
        topk_token_ids: i32[B, D, K].
        root_token_ids, seq_lens: i32[B].
        tree_budget: draft nodes wanted, the root excluded.
    """
    horizon = topk_log_probs.shape[1]
    tree = blank_tree(root_token_ids, seq_lens, tree_budget, horizon)
    for b, rows in enumerate(topk_log_probs):
        if refusal := _refusal(rows):
            tree.status[b] = refusal
        else:
            _build_one(tree, b, rows, topk_token_ids[b], int(seq_lens[b]))
    return tree


def _refusal(rows: _Array) -> RequestStatus:
    nan = RequestStatus.NAN if np.isnan(rows).any() else RequestStatus(0)
    return nan | (RequestStatus.POSITIVE if (rows > 0).any() else RequestStatus(0))


def _build_one(tree: DraftTree, b: int, rows: _Array, token_ids: _Array, seq_len: int) -> None:
    budget, topk = tree.tree_budget, rows.shape[1]
    parents, depths, ranks, scores = _pop_order(rows, budget)
    count = len(parents)
    nodes = slice(1, count)
    above, level, rank = (np.asarray(column[1:], np.int64) for column in (parents, depths, ranks))
    tree.token_ids[b, nodes] = token_ids[level - 1, rank]
    tree.parents[b, nodes] = above
    tree.depths[b, nodes] = level
    tree.positions[b, nodes] = seq_len + level
    tree.scores[b, nodes] = scores[1:]
    first_child, next_sibling = _links(parents)
    tree.first_child[b, :count] = first_child
    tree.next_sibling[b, :count] = next_sibling
    tree.tree_mask[b, :count] = _mask_words(parents, tree.tree_mask.shape[-1])
    tree.num_nodes[b] = count
    short = RequestStatus.SHORT_TREE if count <= budget else RequestStatus(0)
    # A node of rank r at depth d needs r + d - 1 others first: the column beyond the last might have mattered.
    cut = ((rank == topk - 1) & (topk - 1 < budget - level)).any()
    tree.status[b] = short | (RequestStatus.TRUNCATED if cut else RequestStatus(0))


def _pop_order(rows: _Array, budget: int) -> tuple[list[int], list[int], list[int], list[float]]:
    """Parents, depths, ranks and scores of the nodes in the order in which the heap gives them, the root first."""
    width = usable_columns(rows)
    log_probs: list[list[float]] = rows.astype(np.float64).tolist()
    parents, depths, ranks, scores = [-1], [0], [0], [0.0]
    # Equal scores leave the heap by their rank tuples; parent, depth and rank only ride along.
    heap: list[tuple[float, tuple[int, ...], int, int, int]]
    heap = [(-log_probs[0][0], (0,), 0, 1, 0)] if width and width[0] else []
    while heap and len(parents) <= budget:
        cost, path, parent, depth, rank = heapq.heappop(heap)
        node, row = len(parents), log_probs[depth - 1]
        parents.append(parent)
        depths.append(depth)
        ranks.append(rank)
        scores.append(0.0 - cost)  # never -0.0
        if rank + 1 < width[depth - 1]:
            score = (-cost - row[rank]) + row[rank + 1]
            heapq.heappush(heap, (-score, (*path[:-1], rank + 1), parent, depth, rank + 1))
        if depth < len(width) and width[depth]:
            heapq.heappush(heap, (cost - log_probs[depth][0], (*path, 0), node, depth + 1, 0))
    return parents, depths, ranks, scores


def _links(parents: list[int]) -> tuple[list[int], list[int]]:
    first_child, next_sibling = [-1] * len(parents), [-1] * len(parents)
    for node in range(len(parents) - 1, 0, -1):
        next_sibling[node] = first_child[parents[node]]
        first_child[parents[node]] = node
    return first_child, next_sibling


def _mask_words(parents: list[int], words: int) -> _Array:
    """Rows of the visibility matrix, each its parent's and its own bit, packed into 64-bit words."""
    visible = np.zeros((len(parents), 64 * words), bool)
    visible[0, 0] = True
    for node in range(1, len(parents)):
        visible[node] = visible[parents[node]]
        visible[node, node] = True
    return np.packbits(visible, axis=1, bitorder="little").view("<u8")
