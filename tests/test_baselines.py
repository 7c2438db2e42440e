# SPDX-License-Identifier: Apache-2.0
"""The paper's Python heap and walk give what the oracles give, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
from tree_cases import assert_same_acceptance, assert_same_tree, candidates, random_parents, targets

from kdbench import reference, workloads
from kdbench.baselines import heap_builder, tree_walk
from kdbench.tree import DraftTree

# Log-probs of these are multiples of 2^-40, where float64 and integers agree; the others are the integers' own matter.
STYLES = ("softmax", "bf16", "integers", "equal", "cut off")


@pytest.mark.parametrize("style", STYLES)
def test_the_heap_gives_the_oracle_s_trees(style: str) -> None:
    rng = np.random.default_rng(11)
    budgets = set()
    for _ in range(60):
        batch, horizon, topk = (int(rng.integers(1, most)) for most in (4, 9, 18))
        budget = int(rng.choice([0, 1, 2, 15, 63, 64, 65, 200]))
        given = candidates(rng, batch, horizon, topk, style)
        expected = reference.tree_build(*given, budget)
        assert_same_tree(heap_builder.build(*given, budget), expected)
        budgets |= {budget for count in expected.num_nodes if count == budget + 1}
    assert {0, 1, 2, 15} <= budgets


def test_a_refused_request_leaves_the_others_right() -> None:
    rng = np.random.default_rng(12)
    given = candidates(rng, 4, 5, 6, "softmax")
    given[0][1, 2, 3] = np.nan
    given[0][2, 0, 0] = 0.5
    given[0][3, 0] = -np.inf
    tree = heap_builder.build(*given, 20)
    assert_same_tree(tree, reference.tree_build(*given, 20))
    assert tree.num_nodes.tolist() == [21, 1, 1, 1]


@pytest.mark.parametrize("name", ["b64-d7-k16-n1-sharp", "b255-d15-k64-n32-sharp", "b1024-d15-k64-n1-sharp"])
def test_workloads_are_built_to_their_golden_trees(name: str) -> None:
    workload = workloads.get(name)
    workload.check(heap_builder.build(**workload.inputs(), tree_budget=workload.shape["budget"]).arrays())


def test_the_walk_gives_the_oracle_s_paths() -> None:
    rng = np.random.default_rng(13)
    lengths = set()
    for _ in range(80):
        batch, nodes, horizon = (int(rng.integers(1, most)) for most in (5, 40, 8))
        parents, counts = random_parents(rng, batch, nodes, horizon)
        # Few tokens: siblings repeat, and of equal ones the first counts.
        tokens = rng.integers(0, 6, (batch, nodes)).astype(np.int32)
        tree = DraftTree.from_parents(tokens, parents, counts, np.zeros(batch, np.int32), horizon)
        wanted = targets(rng, tree, 6)
        maps = tree_walk.child_maps(tree.token_ids, tree.parents, tree.num_nodes)
        expected = reference.tree_accept(tree, wanted)
        assert_same_acceptance(tree_walk.accept(maps, wanted, horizon), expected)
        lengths |= set(expected.acceptance_length.tolist())
    assert {1, 2, 3, 4} <= lengths
