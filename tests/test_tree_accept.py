# SPDX-License-Identifier: Apache-2.0
"""tree_accept on every backend against the oracle, bit by bit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tree_cases
from golden_vectors import G1, G1_ACCEPTS, G5
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_cases import on_backend

import kdbench
from kdbench import reference
from kdbench.tree import DraftTree

# 300 cases of 8 requests: 2,400 trees a backend, the same ones in every run.
TREES_A_CASE = 8
property_test = settings(max_examples=300, deadline=None, derandomize=True, database=None)


@pytest.mark.parametrize(("target", "path", "length", "bonus"), G1_ACCEPTS)
def test_golden_paths(place, target, path, length, bonus):
    *arguments, budget = G1.inputs()
    tree = kdbench.tree_build(*map(place, arguments), budget)
    answer = kdbench.tree_accept(tree, place(np.array([target], np.int32))).to_numpy()
    assert answer.accepted_path.tolist() == [path]
    assert answer.acceptance_length.tolist() == [length]
    assert answer.bonus_token.tolist() == [bonus]
    assert answer.status.tolist() == [0]


def test_the_walk_of_sglang(place):
    tree = DraftTree.from_parents(
        np.array(G5["candidates"], np.int32),
        np.array(G5["parents"], np.int32),
        np.array([6, 6], np.int32),
        np.zeros(2, np.int32),
        G5["draft_horizon"],
    )
    answer = kdbench.tree_accept(on_backend(place, tree), place(np.array(G5["target"], np.int32))).to_numpy()
    for name in ("accepted_path", "acceptance_length", "bonus_token"):
        assert getattr(answer, name).tolist() == G5[name]


def test_random_trees_equal_the_oracle_in_every_bit(place):
    lengths: list[int] = []
    rejected = 0

    @property_test
    @given(
        seed=st.integers(0, 2**32 - 1),
        horizon=st.integers(0, 31),
        nodes=st.one_of(st.integers(1, 70), st.sampled_from([129, 400])),
        vocabulary=st.integers(2, 9),
    )
    def check(seed, horizon, nodes, vocabulary):
        nonlocal rejected
        rng = np.random.default_rng(seed)
        parents, counts = tree_cases.random_parents(rng, TREES_A_CASE, nodes, horizon)
        # So few tokens that siblings share them: the lowest index must win.
        tokens = rng.integers(0, vocabulary, parents.shape).astype(np.int32)
        tree = DraftTree.from_parents(tokens, parents, counts, np.zeros(TREES_A_CASE, np.int32), horizon)
        target = tree_cases.targets(rng, tree, vocabulary)
        expected = reference.tree_accept(tree, target)
        answer = kdbench.tree_accept(on_backend(place, tree), place(target))
        tree_cases.assert_same_acceptance(answer, expected)
        check_path(tree, target, answer.to_numpy())
        seq_lens = rng.integers(0, 9000, TREES_A_CASE).astype(np.int32)
        with_slots = kdbench.tree_accept(on_backend(place, tree), place(target), place(seq_lens))
        tree_cases.assert_same_acceptance(with_slots, reference.tree_accept(tree, target, seq_lens))
        lengths.extend(expected.acceptance_length.tolist())
        rejected += int((expected.acceptance_length < counts).sum())

    check()
    assert len(lengths) >= 2000
    assert np.mean(lengths) > 2.5
    assert max(lengths) > 12
    assert rejected > 1000


def check_path(tree, target, answer):
    for b, length in enumerate(answer.acceptance_length):
        path = answer.accepted_path[b, :length]
        assert path[0] == 0
        assert (answer.accepted_path[b, length:] == -1).all()
        assert (tree.parents[b, path[1:]] == path[:-1]).all()
        assert (tree.token_ids[b, path[1:]] == target[b, path[:-1]]).all()
        assert answer.bonus_token[b] == target[b, path[-1]]
        children = np.flatnonzero(tree.parents[b, : tree.num_nodes[b]] == path[-1])
        assert answer.bonus_token[b] not in tree.token_ids[b, children[children > 0]]


def test_a_tree_with_the_chain_is_as_good_as_the_chain(place):
    rng = np.random.default_rng(51)
    arguments = tree_cases.candidates(rng, 16, 7, 6, "softmax")
    tree = reference.tree_build(*arguments, 200)
    target = tree_cases.targets(rng, tree, 8)
    accepted = kdbench.tree_accept(on_backend(place, tree), place(target)).to_numpy()
    better = 0
    for b in range(16):
        spine, node = 1, 0
        while (child := tree.first_child[b, node]) >= 0 and tree.token_ids[b, child] == target[b, node]:
            spine, node = spine + 1, child
        assert accepted.acceptance_length[b] >= spine
        better += accepted.acceptance_length[b] > spine
    assert better > 3


def test_padding_and_its_garbage_change_nothing(place):
    rng = np.random.default_rng(52)
    parents, counts = tree_cases.random_parents(rng, 6, 20, 8)
    tokens = rng.integers(0, 5, parents.shape).astype(np.int32)
    tree = DraftTree.from_parents(tokens, parents, counts, np.zeros(6, np.int32), 8)
    target = tree_cases.targets(rng, tree, 5)
    expected = kdbench.tree_accept(on_backend(place, tree), place(target)).to_numpy()
    wide = {name: rng.integers(-5, 30, (6, 70)).astype(np.int32) for name in ("token_ids", "parents", "target_tokens")}
    real = np.arange(20) < counts[:, None]
    for name, values in (("token_ids", tokens), ("parents", parents), ("target_tokens", target)):
        wide[name][:, :20][real] = values[real]
    target_tokens = wide.pop("target_tokens")
    padded = on_backend(place, dataclasses.replace(tree, **wide))
    tree_cases.assert_same_acceptance(kdbench.tree_accept(padded, place(target_tokens)), expected)


def test_an_empty_batch(place):
    tree = reference.tree_build(*tree_cases.candidates(np.random.default_rng(53), 0, 2, 2, "equal"), 3)
    answer = kdbench.tree_accept(on_backend(place, tree), place(np.zeros((0, 4), np.int32)))
    assert answer.accepted_path.shape == (0, 3)
