# SPDX-License-Identifier: Apache-2.0
"""Acceptance as arXiv 2604.12989 describes it: one dictionary a node from token to child, followed in Python."""

from __future__ import annotations

from typing import Any

import numpy as np

from kdbench.tree import Acceptance

_Array = np.ndarray[Any, Any]
ChildMaps = list[dict[int, int]]


def child_maps(token_ids: _Array, parents: _Array, num_nodes: _Array) -> list[ChildMaps]:
    """Of each request one map a node; of equal sibling tokens the lowest index is kept. i32[B, N], i32[B]."""
    trees = []
    for tokens, above, count in zip(token_ids.tolist(), parents.tolist(), num_nodes.tolist(), strict=True):
        maps: ChildMaps = [{} for _ in range(count)]
        for node in range(1, count):
            maps[above[node]].setdefault(tokens[node], node)
        trees.append(maps)
    return trees


def accept(trees: list[ChildMaps], target_tokens: _Array, draft_horizon: int) -> Acceptance:
    """``kdbench.tree_accept`` of sound trees, whose maps were made when the trees were.

    Args:
        trees: as from ``child_maps``.
        target_tokens: i32[B, N].
        draft_horizon: D; no path is longer.
    """
    batch = len(trees)
    answer = Acceptance(
        accepted_path=np.full((batch, draft_horizon + 1), -1, np.int32),
        acceptance_length=np.zeros(batch, np.int32),
        bonus_token=np.zeros(batch, np.int32),
        status=np.zeros(batch, np.int32),
    )
    for b, (maps, target) in enumerate(zip(trees, target_tokens.tolist(), strict=True)):
        path = [0]
        while (child := maps[path[-1]].get(target[path[-1]])) is not None:
            path.append(child)
        answer.accepted_path[b, : len(path)] = path
        answer.acceptance_length[b] = len(path)
        answer.bonus_token[b] = target[path[-1]]
    return answer
