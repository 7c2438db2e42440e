# SPDX-License-Identifier: Apache-2.0
"""The acceptance_length that a drafter expects of its tree, and the tree size that is worth its cost.

Under the drafter's own marginals a node is accepted with probability exp(score), so the tree cut after node i yields
sum(exp(scores[:i + 1])) tokens a round, the bonus token included. Trees are prefixes of larger trees, so one build
answers for every size: that is the stop rule of CaDDTree (arXiv 2606.01813).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kdbench.abi import FIXED_POINT_BITS
from kdbench.arrays import Array, to_numpy
from kdbench.errors import InvalidArgument

_Array = np.ndarray[Any, Any]

_LOG2_E = 0x5C551D94AE0BF85E  # log2(e) * 2^62
_COEFFICIENTS = [round(math.log(2) ** k / math.factorial(k) * 2**32) for k in range(1, 11)]


def path_mass(cost: int) -> int:
    """exp(-cost / 2^40) in units of 2^-40, by the integer operations of native/src/core/path_mass.h.

    Args:
        cost: minus a node's score, in units of 2^-40; 0 to 2^51.
    """
    exponent = (cost << 12) * _LOG2_E >> 64
    whole, part = exponent >> 50, exponent >> 18 & 0xFFFFFFFF
    # 2^-x = 1 - x (c1 - x (c2 - ...)), c_k = ln(2)^k / k!, in units of 2^-32.
    total = 0
    for coefficient in reversed(_COEFFICIENTS):
        total = coefficient - (total * part >> 32)
    mass = (2**32 - (total * part >> 32)) << 8
    return mass if whole == 0 else (mass >> whole - 1) + 1 >> 1


def expected_lengths(costs: list[int], nodes: int) -> _Array:
    """f32[nodes]: prefix sums of the masses of the nodes that cost ``costs``, the last one repeated for pads."""
    lengths = np.cumsum([path_mass(cost) for cost in costs], dtype=np.int64)
    padded = np.append(lengths, np.full(nodes - len(costs), lengths[-1]))
    return padded.astype(np.float32) * np.float32(2.0**-FIXED_POINT_BITS)


def worthwhile_num_nodes(expected_lengths: Array, round_costs: Array) -> _Array:
    """How many nodes of each tree to verify: CaDDTree's stop rule (arXiv 2606.01813).

    The tree grows while one more node raises the expected tokens per cost of a round. With costs that are convex in the
    number of nodes that is the best prefix of all; the rule itself only looks one node ahead.

    Args:
        expected_lengths: f32[B, N], as ``kdbench.tree_build(..., expected_lengths=True)`` gives them.
        round_costs: [N] or [B, N]; entry i is what a round costs that verifies nodes 0 to i (draft and verify, in any
            unit), above 0.

    Returns:
        i32[B], 1 to N, for ``dataclasses.replace(tree, num_nodes=...)``: a tree cut so is that of the smaller budget to
        verify_attn and tree_accept, which read no node beyond num_nodes.

    Raises:
        InvalidArgument: for other shapes, and for a cost that is not a number above 0.
    """
    lengths = np.asarray(to_numpy(expected_lengths), np.float64)
    costs = np.asarray(to_numpy(round_costs), np.float64)
    if lengths.ndim != 2 or lengths.shape[1] == 0:
        raise InvalidArgument(f"expected_lengths has shape {lengths.shape}, and [B, N] with N above 0 is expected")
    if costs.shape not in (lengths.shape, lengths.shape[1:]):
        raise InvalidArgument(
            f"round_costs has shape {costs.shape}, and {lengths.shape[1:]} or {lengths.shape} is expected"
        )
    if not (np.isfinite(costs) & (costs > 0)).all():
        raise InvalidArgument("round_costs has an entry that is not a finite number above 0")
    rate = lengths / costs
    stops = np.append(rate[:, 1:] <= rate[:, :-1], np.ones((len(rate), 1), bool), axis=1)
    counts: _Array = stops.argmax(axis=1).astype(np.int32) + np.int32(1)
    return counts
