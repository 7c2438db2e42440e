# SPDX-License-Identifier: Apache-2.0
"""Bad trees in one request of tree_accept: a status word, the neighbours right, no hang, no write outside."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tree_cases
from guarded import Canaries
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_cases import on_backend

import kdbench
from kdbench import reference
from kdbench.native import RequestStatus
from kdbench.tree import Acceptance, DraftTree, blank_tree

INT_MAX, INT_MIN = 2**31 - 1, -(2**31)
fuzz = settings(max_examples=150, deadline=None, derandomize=True, database=None)


def accept_guarded(place, tree, target, seq_lens=None) -> Acceptance:
    batch, horizon = len(target), tree.draft_horizon
    canaries = Canaries(place)
    paths = ("accepted_path",) if seq_lens is None else ("accepted_path", "source_slots")
    shapes = dict.fromkeys(paths, (batch, horizon + 1)) | dict.fromkeys(
        ("acceptance_length", "bonus_token", "status"), (batch,)
    )
    out = Acceptance(**{name: canaries.array(shape, "int32") for name, shape in shapes.items()})
    kdbench.tree_accept(on_backend(place, tree), place(target), None if seq_lens is None else place(seq_lens), out=out)
    canaries.check()
    return out.to_numpy()


class TestTreeAccept:
    @staticmethod
    def batch(seed: int = 84) -> tuple[DraftTree, np.ndarray]:
        rng = np.random.default_rng(seed)
        tree = reference.tree_build(*tree_cases.candidates(rng, 4, 6, 5, "softmax"), 24)
        return tree, tree_cases.targets(rng, tree, 7)

    @pytest.mark.parametrize(
        ("node_parents", "what"),
        [
            ({5: 9, 9: 5}, "cycle"),
            ({7: 7}, "self-parent"),
            ({3: 4}, "a later node"),
            ({24: 25}, "out of range"),
            ({24: INT_MAX}, "far out of range"),
            ({1: -1}, "no parent"),
            ({24: -1}, "no parent at the end"),
            ({12: INT_MIN}, "most negative"),
        ],
    )
    def test_an_impossible_parent_refuses_one_request(self, place, node_parents, what):
        tree, target = self.batch()
        sound = reference.tree_accept(tree, target)
        assert (sound.acceptance_length > 1).any()
        for bad in range(4):
            broken = dataclasses.replace(tree, parents=tree.parents.copy())
            for node, parent in node_parents.items():
                broken.parents[bad, node] = parent
            answer = accept_guarded(place, broken, target)
            assert answer.status[bad] == RequestStatus.BAD_TREE
            assert answer.accepted_path[bad].tolist() == [0] + [-1] * 6
            assert answer.acceptance_length[bad] == 1
            assert answer.bonus_token[bad] == target[bad, 0]
            others = np.arange(4) != bad
            for name, array in answer.arrays().items():
                assert np.array_equal(array[others], sound.arrays()[name][others])

    @pytest.mark.parametrize("length", [-1, INT_MIN, INT_MAX, INT_MAX - 24])
    def test_a_length_without_slots_refuses_one_request(self, place, length):
        tree, target = self.batch()
        lengths = np.array([9, length, 0, INT_MAX - 25], np.int32)
        sound = reference.tree_accept(tree, target)
        answer = accept_guarded(place, tree, target, lengths)
        tree_cases.assert_same_acceptance(answer, reference.tree_accept(tree, target, lengths))
        assert answer.status.tolist() == [0, RequestStatus.BAD_LENGTH, 0, 0]
        assert answer.accepted_path[1].tolist() == [0] + [-1] * 6
        assert answer.bonus_token[1] == target[1, 0]
        assert answer.source_slots[1].tolist() == [-1] * 7
        for b in (0, 2, 3):
            path = sound.accepted_path[b]
            assert answer.source_slots[b].tolist() == [int(lengths[b]) + node if node >= 0 else -1 for node in path]
        # A length that nobody asked about is not looked at.
        assert reference.tree_accept(tree, target).status.tolist() == [0] * 4
        # The count is judged first, and the tree after the length.
        broken = dataclasses.replace(tree, num_nodes=np.array([26, 0, 25, 25], np.int32), parents=tree.parents.copy())
        broken.parents[3, 4] = 4
        lengths[[0, 3]] = -1
        answer = accept_guarded(place, broken, target, lengths)
        kinds = [RequestStatus.BAD_COUNT, RequestStatus.BAD_COUNT, 0, RequestStatus.BAD_LENGTH]
        assert answer.status.tolist() == kinds
        tree_cases.assert_same_acceptance(answer, reference.tree_accept(broken, target, lengths))

    @pytest.mark.parametrize("count", [0, -1, INT_MIN, 26, INT_MAX])
    def test_an_impossible_count_refuses_one_request(self, place, count):
        tree, target = self.batch()
        broken = dataclasses.replace(tree, num_nodes=np.array([25, count, 25, 25], np.int32))
        answer = accept_guarded(place, broken, target)
        assert answer.status.tolist() == [0, RequestStatus.BAD_COUNT, 0, 0]
        assert answer.acceptance_length[1] == (count > 0)
        assert answer.accepted_path[1].tolist() == [0 if count > 0 else -1] + [-1] * 6
        assert answer.bonus_token[1] == (target[1, 0] if count > 0 else -1)
        tree_cases.assert_same_acceptance(answer, reference.tree_accept(broken, target))

    def test_a_path_beyond_the_horizon_refuses_one_request(self, place):
        nodes = 9
        parents = np.tile(np.arange(-1, nodes - 1, dtype=np.int32), (3, 1))
        tokens = np.tile(np.arange(nodes, dtype=np.int32), (3, 1))
        target = tokens + 1
        target[0, 5] = 0  # this path has exactly five drafts
        target[2, 2] = 0  # and this one two: the tree is as deep, the path is not
        tree = DraftTree.from_parents(tokens, parents, np.full(3, nodes), np.zeros(3, np.int32), 8)
        answer = accept_guarded(place, dataclasses.replace(tree, draft_horizon=5), target)
        assert answer.status.tolist() == [0, RequestStatus.TOO_DEEP, 0]
        assert answer.acceptance_length.tolist() == [6, 1, 3]
        assert answer.bonus_token.tolist() == [0, 1, 0]
        assert answer.accepted_path[1].tolist() == [0, -1, -1, -1, -1, -1]
        flat = accept_guarded(place, dataclasses.replace(tree, draft_horizon=0), target)
        assert flat.status.tolist() == [RequestStatus.TOO_DEEP] * 3

    def test_what_stands_in_pads_and_at_the_root_is_not_looked_at(self, place):
        tree, target = self.batch()
        tree = dataclasses.replace(tree, num_nodes=np.array([25, 10, 1, 17], np.int32))
        expected = reference.tree_accept(tree, target)
        for b, count in enumerate(tree.num_nodes):
            tree.parents[b, count:] = [INT_MIN, INT_MAX, 0, 3, 500][b]
            tree.token_ids[b, count:] = target[b, 0]
        tree.parents[:, 0] = 7
        answer = accept_guarded(place, tree, target)
        tree_cases.assert_same_acceptance(answer, expected)
        assert (answer.status == 0).all()

    def test_the_lowest_of_equal_siblings_is_taken(self, place):
        tokens = np.array([[9, 4, 4, 4, 5, 6]], np.int32)
        parents = np.array([[-1, 0, 0, 0, 2, 1]], np.int32)
        tree = DraftTree.from_parents(tokens, parents, np.array([6]), np.zeros(1, np.int32), 2)
        # Only the second twin could go on to token 5: the first one is taken all the same.
        answer = accept_guarded(place, tree, np.array([[4, 5, 5, 5, 0, 0]], np.int32))
        assert answer.accepted_path.tolist() == [[0, 1, -1]]
        assert answer.bonus_token.tolist() == [5]

    def test_any_parents_and_counts(self, place):
        statuses: set[int] = set()

        @fuzz
        @given(
            seed=st.integers(0, 2**32 - 1),
            nodes=st.integers(1, 80),
            horizon=st.integers(0, 31),
            damage=st.sampled_from([0.0, 0.02, 0.5]),
        )
        def check(seed, nodes, horizon, damage):
            rng = np.random.default_rng(seed)
            parents, counts = tree_cases.random_parents(rng, 8, nodes, 31)
            hit = rng.random(parents.shape) < damage
            parents[hit] = rng.choice([INT_MIN, -2, -1, 0, 1, nodes - 1, nodes, INT_MAX], int(hit.sum()))
            counts[rng.random(8) < damage] = rng.choice([0, -5, nodes + 1, INT_MAX, INT_MIN])
            tree = dataclasses.replace(
                blank_tree(np.zeros(8, np.int32), np.zeros(8, np.int32), nodes - 1, horizon),
                token_ids=rng.integers(0, 3, parents.shape).astype(np.int32),
                parents=parents,
                num_nodes=counts,
            )
            target = rng.integers(0, 3, parents.shape).astype(np.int32)
            expected = reference.tree_accept(tree, target)
            tree_cases.assert_same_acceptance(accept_guarded(place, tree, target), expected)
            lengths = rng.choice(np.array([0, 5, INT_MAX - nodes, INT_MAX - nodes + 1, -1, INT_MIN], np.int32), 8)
            slots = reference.tree_accept(tree, target, lengths)
            tree_cases.assert_same_acceptance(accept_guarded(place, tree, target, lengths), slots)
            statuses.update(expected.status.tolist() + slots.status.tolist())

        check()
        kinds = RequestStatus.BAD_TREE, RequestStatus.BAD_COUNT, RequestStatus.TOO_DEEP, RequestStatus.BAD_LENGTH
        assert statuses == {0, *(int(kind) for kind in kinds)}
