# SPDX-License-Identifier: Apache-2.0
"""Best-first selection of prefixes (arXiv 2604.12989): the order that every tree_build must reproduce."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from kdbench.abi import FIXED_POINT_BITS, LOG_PROB_FLOOR

_Array = np.ndarray[Any, Any]
Ranks = tuple[int, ...]  # a node as the 0-based ranks on its way from the root


def fixed_point(log_probs: _Array) -> _Array:
    """Log-probs as int64 in units of 2^-40, rounded to nearest even: their sums are exact in any order."""
    return np.rint(np.asarray(log_probs, np.float64) * 2.0**FIXED_POINT_BITS).astype(np.int64)


def usable_columns(log_probs: _Array) -> list[int]:
    """How many leading columns of each row of one request f32[D, K] may be used: those before the first below -64."""
    return [int(np.argmax(np.append(row < LOG_PROB_FLOOR, True))) for row in log_probs]


def select(log_probs: _Array, tree_budget: int) -> list[tuple[Ranks, int]]:
    """The best-first selection of one request in exact integers.

    Args:
        log_probs: f32[D, K], descending rows without NaN.
        tree_budget: nodes wanted.

    Returns:
        (rank tuple, score in units of 2^-40) in the order taken: score descending, rank tuple ascending.
    """
    scaled = [[int(value) for value in row] for row in fixed_point(np.maximum(log_probs, LOG_PROB_FLOOR))]
    width = usable_columns(log_probs)
    heap: list[tuple[int, Ranks]] = []

    def push(score: int, ranks: Ranks) -> None:
        depth, rank = len(ranks), ranks[-1]
        if rank < width[depth - 1]:
            heapq.heappush(heap, (-(score + scaled[depth - 1][rank]), ranks))

    if width:
        push(0, (0,))
    taken: list[tuple[Ranks, int]] = []
    while heap and len(taken) < tree_budget:
        cost, ranks = heapq.heappop(heap)
        taken.append((ranks, -cost))
        depth, rank = len(ranks), ranks[-1]
        # Each tuple is pushed once: by its left sibling, or by its parent when it is the first child.
        push(-cost - scaled[depth - 1][rank], (*ranks[:-1], rank + 1))
        if depth < len(width):
            push(-cost, (*ranks, 0))
    return taken


def select_float64(log_probs: _Array, tree_budget: int) -> list[tuple[Ranks, float]]:
    """The same selection with the paper's arithmetic: float64 scores, changed step by step.

    It takes the same nodes as ``select`` when every log-prob is a multiple of 2^-40, as a difference of two ordinary
    float32 logits is. Otherwise equal masses that are reached by two paths may round apart.
    """
    rows = np.asarray(log_probs, np.float64)
    width = usable_columns(log_probs)
    heap: list[tuple[float, Ranks]] = [(-float(rows[0, 0]), (0,))] if width and width[0] else []
    taken: list[tuple[Ranks, float]] = []
    while heap and len(taken) < tree_budget:
        cost, ranks = heapq.heappop(heap)
        taken.append((ranks, -cost))
        depth, rank = len(ranks), ranks[-1]
        if rank + 1 < width[depth - 1]:
            sibling = (-cost - float(rows[depth - 1, rank])) + float(rows[depth - 1, rank + 1])
            heapq.heappush(heap, (-sibling, (*ranks[:-1], rank + 1)))
        if depth < len(width) and width[depth]:
            heapq.heappush(heap, (-(-cost + float(rows[depth, 0])), (*ranks, 0)))
    return taken
