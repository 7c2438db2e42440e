# SPDX-License-Identifier: Apache-2.0
"""tree_build on every backend against the oracle, bit by bit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tree_cases
from golden_vectors import BUILDS, G1
from hypothesis import given, settings
from hypothesis import strategies as st

import kdbench
from kdbench import reference
from kdbench.tree import DraftTree

OPTIONAL = {"dfs_order": True, "expected_lengths": True}
# 300 cases of 8 requests: 2,400 trees a backend, the same ones in every run.
TREES_A_CASE = 8
property_test = settings(max_examples=300, deadline=None, derandomize=True, database=None)


def build(place, arguments, budget, **options) -> DraftTree:
    return kdbench.tree_build(*map(place, arguments), budget, **options)


@pytest.mark.parametrize("vector", BUILDS, ids=lambda vector: vector.name)
def test_golden_trees(place, vector):
    *arguments, budget = vector.inputs()
    tree_cases.assert_same_tree(
        build(place, arguments, budget, **OPTIONAL), reference.tree_build(*arguments, budget, **OPTIONAL)
    )


def test_random_trees_equal_the_oracle_in_every_bit(place):
    seen = {"trees": 0, "short": 0, "truncated": 0, "tied": 0, "neither": 0}

    @property_test
    @given(
        seed=st.integers(0, 2**32 - 1),
        horizon=st.integers(1, 9),
        topk=st.integers(1, 12),
        budget=st.integers(0, 70),
        style=st.sampled_from(tree_cases.STYLES),
    )
    def check(seed, horizon, topk, budget, style):
        rng = np.random.default_rng(seed)
        arguments = tree_cases.candidates(rng, TREES_A_CASE, horizon, topk, style)
        expected = reference.tree_build(*arguments, budget, **OPTIONAL)
        tree = build(place, arguments, budget, **OPTIONAL).to_numpy()
        tree_cases.assert_same_tree(tree, expected)
        tree.validate()
        mass = np.exp(tree.scores[:, 1:].astype(float)).sum(axis=1)
        assert (mass <= horizon + 1e-4).all() or style in ("integers", "equal", "identical rows", "near zero")
        seen["trees"] += TREES_A_CASE
        seen["short"] += int((expected.status & 1).astype(bool).sum())
        seen["truncated"] += int((expected.status & 2).astype(bool).sum())
        seen["neither"] += int((expected.status == 0).sum())
        before, after = expected.scores[:, 1:-1], expected.scores[:, 2:]
        seen["tied"] += int(((before == after) & np.isfinite(after)).any(axis=1).sum())

    check()
    assert seen.pop("trees") >= 2000
    assert min(seen.values()) > 200, seen


@pytest.mark.parametrize("budget", [31, 32, 33, 63, 64, 65, 127, 128, 129, 1023, 1024])
def test_budgets_around_mask_words(place, budget):
    arguments = tree_cases.candidates(np.random.default_rng(budget), 2, 15, 64, "bf16")
    expected = reference.tree_build(*arguments, budget, **OPTIONAL)
    assert (expected.num_nodes == budget + 1).all()
    tree_cases.assert_same_tree(build(place, arguments, budget, **OPTIONAL), expected)


@pytest.mark.parametrize(
    ("horizon", "topk", "budget"), [(31, 1, 1024), (31, 3, 1024), (1, 1024, 1024), (1, 1024, 7), (31, 1024, 300)]
)
def test_extreme_shapes(place, horizon, topk, budget):
    for style in ("softmax", "equal"):
        arguments = tree_cases.candidates(np.random.default_rng(41), 2, horizon, topk, style)
        expected = reference.tree_build(*arguments, budget, **OPTIONAL)
        tree_cases.assert_same_tree(build(place, arguments, budget, **OPTIONAL), expected)


def test_a_smaller_tree_is_a_prefix_of_a_larger_one(place):
    arguments = tree_cases.candidates(np.random.default_rng(42), 4, 8, 16, "bf16")
    large = build(place, arguments, 200).to_numpy()
    for budget in (1, 2, 17, 63, 64, 199):
        small = build(place, arguments, budget).to_numpy()
        for name in ("token_ids", "parents", "depths", "positions", "scores"):
            assert np.array_equal(getattr(small, name), getattr(large, name)[:, : budget + 1]), name
        words = small.tree_mask.shape[2]
        assert np.array_equal(small.tree_mask, large.tree_mask[:, : budget + 1, :words])


def test_permuting_requests_permutes_trees(place):
    arguments = tree_cases.candidates(np.random.default_rng(43), 9, 6, 5, "cut off")
    order = np.random.default_rng(44).permutation(9)
    trees = build(place, arguments, 40, **OPTIONAL).to_numpy()
    assert len(set(trees.num_nodes.tolist())) > 2
    permuted = build(place, [a[order] for a in arguments], 40, **OPTIONAL)
    tree_cases.assert_same_tree(
        permuted, dataclasses.replace(trees, **{n: a[order] for n, a in trees.arrays().items()})
    )


@pytest.mark.parametrize(("batch", "horizon"), [(0, 4), (3, 0), (0, 0)])
def test_empty_batches_and_horizons(place, batch, horizon):
    arguments = tree_cases.candidates(np.random.default_rng(45), batch, horizon, 3, "equal")
    for budget in (0, 5):
        tree = build(place, arguments, budget, **OPTIONAL)
        tree_cases.assert_same_tree(tree, reference.tree_build(*arguments, budget, **OPTIONAL))
        assert tree.to_numpy().num_nodes.tolist() == [1] * batch


def test_optional_outputs_come_only_when_asked_for(place):
    *arguments, budget = G1.inputs()
    tree = build(place, arguments, budget)
    assert tree.dfs_order is None
    assert tree.expected_lengths is None


def test_expected_lengths_are_sums_of_probabilities(place):
    arguments = tree_cases.candidates(np.random.default_rng(46), 6, 9, 12, "softmax")
    tree = build(place, arguments, 300, expected_lengths=True).to_numpy()
    tree.validate()
    sums = np.cumsum(np.exp(tree.scores.astype(float)), axis=1)
    np.testing.assert_allclose(tree.expected_lengths, sums, rtol=2e-6)
