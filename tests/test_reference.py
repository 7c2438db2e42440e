# SPDX-License-Identifier: Apache-2.0
"""The oracles against hand-made answers, brute force and each other."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import tree_cases
from golden_vectors import BUILDS, G1, G1_ACCEPTS, G5

from kdbench import reference
from kdbench.best_first import fixed_point, select, select_float64
from kdbench.native import RequestStatus
from kdbench.tree import DraftTree


@pytest.mark.parametrize("vector", BUILDS, ids=lambda vector: vector.name)
def test_tree_build_gives_the_golden_trees(vector):
    tree = reference.tree_build(*vector.inputs(), dfs_order=True)
    tree.validate()
    for name, expected in vector.expected.items():
        actual = getattr(tree, name)[0]
        if name == "scores":
            np.testing.assert_allclose(actual, expected, rtol=1e-6)
        else:
            assert np.array_equal(np.squeeze(actual), np.squeeze(expected)), name


def brute_force(log_probs: np.ndarray, budget: int) -> list[tuple[int, ...]]:
    """The best prefixes among all of them, in exact rational sums of the fixed-point log-probs."""
    horizon, topk = log_probs.shape
    unit = [[Fraction(int(q)) for q in row] for row in fixed_point(log_probs)]
    everything = [ranks for depth in range(1, horizon + 1) for ranks in itertools.product(range(topk), repeat=depth)]
    return sorted(everything, key=lambda r: (-sum(unit[d][rank] for d, rank in enumerate(r)), r))[:budget]


@pytest.mark.parametrize("style", [style for style in tree_cases.STYLES if style != "cut off"])
def test_the_heap_finds_what_brute_force_finds(style):
    rng = np.random.default_rng(11)
    ties = 0
    for _ in range(60):
        horizon, topk = int(rng.integers(1, 5)), int(rng.integers(1, 5))
        total = sum(topk**d for d in range(1, horizon + 1))
        budget = int(rng.integers(1, min(total, 60) + 1))
        row = tree_cases.log_probs(rng, (1, horizon, topk), style)[0]
        taken = select(row, budget)
        assert [ranks for ranks, _ in taken] == brute_force(row, budget)
        assert all(rank + len(ranks) <= budget for ranks, _ in taken for rank in ranks[-1:])
        ties += sum(a[1] == b[1] for a, b in itertools.pairwise(taken))
    assert ties > 0 or style in ("softmax", "near zero")


def test_float64_scores_select_the_same_on_the_grid():
    rng = np.random.default_rng(12)
    for _ in range(200):
        horizon, topk, budget = (int(rng.integers(1, high)) for high in (9, 9, 80))
        row = tree_cases.log_probs(rng, (1, horizon, topk), rng.choice(["bf16", "integers", "equal", "cut off"]))[0]
        row = np.ldexp(np.rint(np.ldexp(row.astype(np.float64), 20)), -20).astype(np.float32)
        exact, rounded = select(row, budget), select_float64(row, budget)
        assert [ranks for ranks, _ in exact] == [ranks for ranks, _ in rounded]
        assert [score * 2.0**-40 for _, score in exact] == [score for _, score in rounded]


def test_float64_scores_may_part_off_the_grid():
    # Why scores are integers: with these rows the step-by-step sums of the paper's code depend on the path.
    rng = np.random.default_rng(13)
    parted = 0
    for _ in range(60):
        row = tree_cases.log_probs(rng, (1, 6, 6), "near zero")[:, :1].repeat(6, axis=1)[0]
        parted += [r for r, _ in select(row, 60)] != [r for r, _ in select_float64(row, 60)]
    assert parted > 0


def test_refusals_leave_neighbours_alone():
    log_probs = np.log(np.array([[[0.6, 0.4]]] * 4, np.float32))
    log_probs[1, 0, 1] = np.nan
    log_probs[2, 0, 0] = 0.5
    log_probs[3, 0] = np.nan, np.inf
    ids = np.array([[[1, 2]]] * 4, np.int32)
    tree = reference.tree_build(log_probs, ids, np.zeros(4, np.int32), np.zeros(4, np.int32), 2)
    tree.validate()
    nan, positive = RequestStatus.NAN, RequestStatus.POSITIVE
    assert tree.num_nodes.tolist() == [3, 1, 1, 1]
    assert tree.status.tolist() == [0, nan, positive, nan | positive]


@pytest.mark.parametrize(("target", "path", "length", "bonus"), G1_ACCEPTS)
def test_tree_accept_gives_the_golden_paths(target, path, length, bonus):
    answer = reference.tree_accept(reference.tree_build(*G1.inputs()), np.array([target], np.int32))
    assert answer.accepted_path.tolist() == [path]
    assert answer.acceptance_length.tolist() == [length]
    assert answer.bonus_token.tolist() == [bonus]
    assert answer.status.tolist() == [0]


def test_the_walk_of_sglang():
    answers = []
    for b in range(2):
        tokens, children, siblings, target = (
            np.array(G5[name][b]) for name in ("candidates", "next_token", "next_sibling", "target")
        )
        parents = np.array(G5["parents"][b])
        answers.append(reference.walk_parents(tokens, parents, target))
        assert reference.walk_children(tokens, parents, target) == answers[b]
        assert reference.walk_links(tokens, children, siblings, target) == answers[b]
    assert answers == [[0, 3, 4, 5], [0, 4, 5]]


def test_three_walks_agree_on_random_trees():
    rng = np.random.default_rng(14)
    lengths = []
    for _ in range(300):
        horizon, nodes = int(rng.integers(1, 12)), int(rng.integers(1, 40))
        parents, counts = tree_cases.random_parents(rng, 1, nodes, horizon)
        # A vocabulary of four: siblings with equal tokens are common.
        tokens = rng.integers(0, 4, (1, nodes)).astype(np.int32)
        tree = DraftTree.from_parents(tokens, parents, counts, np.zeros(1, np.int32), horizon)
        target = tree_cases.targets(rng, tree, 4)
        count = int(counts[0])
        path = reference.walk_parents(tokens[0, :count], parents[0, :count], target[0])
        assert reference.walk_children(tokens[0, :count], parents[0, :count], target[0]) == path
        assert reference.walk_links(tokens[0], tree.first_child[0], tree.next_sibling[0], target[0]) == path
        lengths.append(len(path))
    assert np.mean(lengths) > 2
    assert max(lengths) > 6


def test_tau_is_one_plus_the_mass_of_the_tree():
    # Targets drawn from the product of the marginals: the mean acceptance length is what the builder maximises.
    rng = np.random.default_rng(15)
    rows = np.array([[0.5, 0.3, 0.2], [0.6, 0.3, 0.1], [0.4, 0.35, 0.25]])
    log_probs = np.log(rows).astype(np.float32)[None]
    ids = np.arange(9, dtype=np.int32).reshape(1, 3, 3)
    zero = np.zeros(1, np.int32)
    tree = reference.tree_build(log_probs, ids, zero, zero, 8)
    draws = 4000
    lengths = np.empty(draws)
    for i in range(draws):
        path = [int(rng.choice(ids[0, d], p=rows[d])) for d in range(3)]
        target = np.array([path[depth] if depth < 3 else 0 for depth in tree.depths[0]])
        lengths[i] = len(reference.walk_parents(tree.token_ids[0], tree.parents[0], target))
    mass = float(np.exp(tree.scores[0].astype(float)).sum())  # the root's score of 0 is the one
    assert abs(lengths.mean() - mass) < 4 * lengths.std() / np.sqrt(draws)


def test_verify_attn_is_softmax_over_the_seen_slots():
    rng = np.random.default_rng(16)
    q_nope, q_pe = rng.standard_normal((1, 2, 1, 4)), rng.standard_normal((1, 2, 1, 2))
    cache = rng.standard_normal((3, 2, 6))
    table = np.array([[2, 0, 1]], np.int32)
    mask = np.array([[[1], [3]]], np.uint64)
    out, lse = reference.verify_attn(q_nope, q_pe, cache, table, np.array([3]), mask, None, 0.5)
    tokens = cache[[2, 2, 0, 0, 1], [0, 1, 0, 1, 0]]
    for node in range(2):
        seen = tokens[: 4 + node]
        logits = 0.5 * (seen @ np.concatenate([q_nope[0, node, 0], q_pe[0, node, 0]]))
        weights = np.exp(logits)
        np.testing.assert_allclose(out[0, node, 0], weights @ seen[:, :4] / weights.sum(), rtol=1e-12)
        np.testing.assert_allclose(lse[0, node, 0], np.log(weights.sum()), rtol=1e-12)


def test_draft_topk_normalises_over_the_whole_vocabulary():
    logits = np.array([[0.0, 2.0, 2.0, -np.inf, 1.0], [1.0, np.nan, 0.0, 0.0, 0.0], [np.inf, 0, 0, 0, 0]], np.float32)
    answer = reference.draft_topk(logits, 3)
    assert answer.token_ids.tolist() == [[1, 2, 4], [-1] * 3, [-1] * 3]
    total = np.log(1 + 2 * np.exp(2) + np.e)
    np.testing.assert_allclose(answer.log_probs[0], [2 - total, 2 - total, 1 - total], rtol=1e-6)
    assert np.isnan(answer.log_probs[1:]).all()
    assert answer.status.tolist() == [0, RequestStatus.NAN, RequestStatus.POSITIVE]
