# SPDX-License-Identifier: Apache-2.0
"""Bad log-probs and logits in one request: a status word, the neighbours right, nothing written outside the outputs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tree_cases
from guarded import Canaries
from hypothesis import given, settings
from hypothesis import strategies as st

import kdbench
from kdbench import kernels, reference
from kdbench.native import RequestStatus
from kdbench.tree import DraftTopk, DraftTree, blank_tree

fuzz = settings(max_examples=150, deadline=None, derandomize=True, database=None)


def build_guarded(place, arguments, budget) -> DraftTree:
    """tree_build without the checks of values, between canaries."""
    horizon = arguments[0].shape[1]
    blank = blank_tree(arguments[2], arguments[3], budget, horizon, dfs_order=True)
    canaries = Canaries(place)
    tree = dataclasses.replace(blank, **canaries.like(blank.arrays()))
    kernels.prepare_tree_build(*map(place, arguments), budget, out=tree, dfs_order=True).launch()
    canaries.check()
    return tree.to_numpy()


class TestTreeBuild:
    BATCH = 5

    @pytest.mark.parametrize(
        ("values", "status"),
        [
            ([np.nan], RequestStatus.NAN),
            ([-np.nan], RequestStatus.NAN),
            ([0.25], RequestStatus.POSITIVE),
            ([np.inf], RequestStatus.POSITIVE),
            ([1e-45], RequestStatus.POSITIVE),
            ([np.nan, np.inf], RequestStatus.NAN | RequestStatus.POSITIVE),
        ],
    )
    @pytest.mark.parametrize("where", [(0, 0), (0, 5), (6, 0), (6, 5)], ids=str)
    def test_an_impossible_log_prob_refuses_one_request(self, place, values, status, where):
        rng = np.random.default_rng(81)
        arguments = tree_cases.candidates(rng, self.BATCH, 7, 6, "cut off")
        sound = reference.tree_build(*arguments, 30, dfs_order=True)
        for bad in (0, 2, self.BATCH - 1):
            log_probs = arguments[0].copy()
            for offset, value in enumerate(values):
                log_probs[bad, where[0], (where[1] + offset) % 6] = value
            tree = build_guarded(place, (log_probs, *arguments[1:]), 30)
            tree.validate()
            assert tree.status[bad] == status
            assert tree.num_nodes[bad] == 1
            for name, array in tree.arrays().items():
                others = np.arange(self.BATCH) != bad
                assert np.array_equal(array[others], getattr(sound, name)[others]), name
            tree_cases.assert_same_tree(tree, reference.tree_build(log_probs, *arguments[1:], 30, dfs_order=True))

    def test_nothing_usable_gives_the_root_alone(self, place):
        arguments = tree_cases.candidates(np.random.default_rng(82), 3, 4, 4, "softmax")
        arguments[0][1] = -np.inf
        arguments[0][2, 0] = -65
        tree = build_guarded(place, arguments, 9)
        tree.validate()
        assert tree.num_nodes.tolist() == [10, 1, 1]
        assert (tree.status & RequestStatus.SHORT_TREE).tolist() == [0, 1, 1]

    @pytest.mark.parametrize(("horizon", "topk", "most"), [(1, 1, 1), (3, 2, 14), (2, 4, 20), (31, 1, 31)])
    def test_a_budget_that_no_tree_can_fill(self, place, horizon, topk, most):
        arguments = tree_cases.candidates(np.random.default_rng(83), 2, horizon, topk, "bf16")
        for budget in (most, most + 1, 1024):
            tree = build_guarded(place, arguments, budget)
            tree.validate()
            assert tree.num_nodes.tolist() == [most + 1] * 2
            assert (tree.status & RequestStatus.SHORT_TREE).tolist() == [int(budget > most)] * 2
            tree_cases.assert_same_tree(tree, reference.tree_build(*arguments, budget, dfs_order=True))

    def test_any_bits_of_log_probs(self, place):
        refused = 0

        @fuzz
        @given(seed=st.integers(0, 2**32 - 1), horizon=st.integers(1, 6), topk=st.integers(1, 8))
        def check(seed, horizon, topk):
            nonlocal refused
            rng = np.random.default_rng(seed)
            arguments = tree_cases.candidates(rng, 4, horizon, topk, "softmax")
            bits = rng.integers(0, 2**32, (2, horizon, topk), np.uint32)
            wild = bits.view(np.float32).copy()
            wild[0] = -np.abs(wild[0])
            # Rows must descend where they are read: NaN sorts last, and refuses the request wherever it stands.
            arguments[0][1:3] = -np.sort(-wild, axis=-1)
            tree = build_guarded(place, arguments, 25)
            tree_cases.assert_same_tree(tree, reference.tree_build(*arguments, 25, dfs_order=True))
            tree.validate()
            refused += int((tree.status > 0xFF).sum())

        check()
        assert refused > 100

    def test_rows_out_of_order_and_repeated_tokens_do_no_harm(self, place):
        # The order of selection is undefined then; the result is still a tree, and the neighbours are right.
        for seed in range(20):
            rng = np.random.default_rng(seed)
            arguments = tree_cases.candidates(rng, 3, 5, 7, "softmax")
            expected = reference.tree_build(*arguments, 40, dfs_order=True)
            arguments[0][1] = rng.permuted(arguments[0][1], axis=-1)
            arguments[1][1] = 3
            tree = build_guarded(place, arguments, 40)
            rebuilt = DraftTree.from_parents(
                tree.token_ids, tree.parents, tree.num_nodes, arguments[3], tree.draft_horizon
            )
            # Siblings are linked in the order of their ranks, which is that of their indices in ordered rows only.
            for name in ("depths", "positions", "tree_mask"):
                assert np.array_equal(getattr(tree, name), getattr(rebuilt, name)), name
            for name, array in tree.arrays().items():
                assert np.array_equal(array[[0, 2]], getattr(expected, name)[[0, 2]]), name


class TestDraftTopk:
    @pytest.mark.parametrize("column", [0, 500, 998])
    @pytest.mark.parametrize(
        ("value", "status"),
        [(np.nan, RequestStatus.NAN), (-np.nan, RequestStatus.NAN), (np.inf, RequestStatus.POSITIVE)],
    )
    def test_an_impossible_logit_refuses_one_row(self, place, column, value, status):
        rng = np.random.default_rng(86)
        logits = (rng.standard_normal((5, 999)) * 3).astype(np.float32)
        sound = kdbench.draft_topk(place(logits), 20).to_numpy()
        for bad in (0, 2, 4):
            broken = logits.copy()
            broken[bad, column] = value
            canaries = Canaries(place)
            out = DraftTopk(
                log_probs=canaries.array((5, 20), "float32"),
                token_ids=canaries.array((5, 20), "int32"),
                status=canaries.array((5,), "int32"),
            )
            kdbench.draft_topk(place(broken), 20, out=out)
            canaries.check()
            answer = out.to_numpy()
            assert answer.status[bad] == status
            assert np.isnan(answer.log_probs[bad]).all()
            assert (answer.token_ids[bad] == -1).all()
            others = np.arange(5) != bad
            assert np.array_equal(answer.log_probs[others], sound.log_probs[others])
            assert np.array_equal(answer.token_ids[others], sound.token_ids[others])
            assert not answer.status[others].any()

    def test_a_refused_row_refuses_its_tree(self, place):
        logits = np.random.default_rng(87).standard_normal((2, 3, 50)).astype(np.float32)
        logits[1, 2, 7] = np.nan
        topk = kdbench.draft_topk(place(logits), 8)
        zeros = place(np.zeros(2, np.int32))
        tree = kdbench.tree_build(topk.log_probs, topk.token_ids, zeros, zeros, 12).to_numpy()
        assert tree.num_nodes.tolist() == [13, 1]
        assert tree.status[1] == RequestStatus.NAN
