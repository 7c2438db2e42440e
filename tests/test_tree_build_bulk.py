# SPDX-License-Identifier: Apache-2.0
"""tree_build on the GPU against the CPU library, bit by bit, over tens of thousands of trees."""

from __future__ import annotations

import numpy as np
import pytest
import tree_cases

import kdbench
from kdbench import reference
from kdbench.native import RequestStatus

# Batch, draft_horizon, topk, tree_budget: the widths of each launch shape, both sides of their edges, and odd ones.
SHAPES = [
    (256, 7, 16, 64),
    (256, 15, 64, 64),
    (256, 5, 9, 63),
    (256, 12, 33, 65),
    (128, 7, 64, 256),
    (128, 15, 64, 255),
    (128, 31, 7, 257),
    (64, 15, 64, 1024),
    (64, 3, 200, 1024),
    (64, 31, 128, 700),
    (256, 1, 40, 31),
    (256, 9, 2, 600),
    (128, 7, 8, 256),
    (64, 7, 32, 1024),
]
OPTIONAL = {"dfs_order": True, "expected_lengths": True}


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("style", tree_cases.STYLES)
def test_the_gpu_equals_the_cpu_library(style, cpu_library):
    import cupy

    trees = slow = 0
    for seed in range(2):
        for batch, horizon, topk, budget in SHAPES:
            rng = np.random.default_rng((61, seed, batch, horizon, topk, budget))
            arguments = tree_cases.candidates(rng, batch, horizon, topk, style)
            expected = kdbench.tree_build(*arguments, budget, backend="cpu", **OPTIONAL)
            if seed == 0:
                some = [array[:1] for array in arguments]
                oracle = reference.tree_build(*some, budget, **OPTIONAL)
                first = kdbench.tree_build(*some, budget, backend="cpu", **OPTIONAL)
                tree_cases.assert_same_tree(first, oracle)
            tree = kdbench.tree_build(*map(cupy.asarray, arguments), budget, **OPTIONAL)
            tree_cases.assert_same_tree(tree, expected)
            trees += batch
            slow += int((tree.to_numpy().status & int(RequestStatus.SLOW_PATH)).astype(bool).sum())
    # Seven styles: more than 20,000 trees.
    assert trees > 20000 / len(tree_cases.STYLES)
    assert slow > 0 or style != "equal"
