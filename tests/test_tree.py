# SPDX-License-Identifier: Apache-2.0
"""DraftTree: its invariants catch every kind of damage, and it converts to and from other layouts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tree_cases
from golden_vectors import G1, G3, G5, G6

from kdbench import reference, sglang_layout
from kdbench.errors import InvalidTree
from kdbench.native import RequestStatus
from kdbench.tree import DraftTree
from kdbench.tree_invariants import closure, links, preorder

ZERO = np.zeros(1, np.int32)


def g1_tree() -> DraftTree:
    return reference.tree_build(*G1.inputs(), dfs_order=True, expected_lengths=True)


def short_tree() -> DraftTree:
    return reference.tree_build(*G3.inputs(), dfs_order=True, expected_lengths=True)


class TestValidate:
    def test_sound_trees_pass(self):
        rng = np.random.default_rng(31)
        for style in tree_cases.STYLES:
            reference.tree_build(*tree_cases.candidates(rng, 3, 5, 6, style), 20, dfs_order=True).validate()
        reference.tree_build(*tree_cases.candidates(rng, 2, 0, 3, "softmax"), 4).validate()

    @pytest.mark.parametrize(
        ("field", "index", "value", "sentence"),
        [
            ("num_nodes", 0, 0, "num_nodes is 0, outside 1 to 8"),
            ("num_nodes", 0, 9, "num_nodes is 9, outside 1 to 8"),
            ("num_nodes", 0, 7, "7 of 8, which SHORT_TREE contradicts"),
            ("status", 0, RequestStatus.SHORT_TREE, "8 of 8, which SHORT_TREE contradicts"),
            ("status", 0, RequestStatus.NAN, "refuses the request, but it has 8 nodes"),
            ("parents", (0, 0), 0, "node 0: the parent of the root is 0"),
            ("parents", (0, 4), 4, "node 4: parent 4 is not an earlier node"),
            ("parents", (0, 4), 5, "node 4: parent 5 is not an earlier node"),
            ("parents", (0, 4), -1, "node 4: parent -1 is not an earlier node"),
            ("depths", (0, 3), 2, "node 3: depths is 2, and 1 follows"),
            ("positions", (0, 4), 44, "node 4: positions is 44, and 43 follows"),
            ("first_child", (0, 1), 6, "node 1: first_child is 6, and 2 follows"),
            ("next_sibling", (0, 6), -1, "node 6: next_sibling is -1, and 7 follows"),
            ("tree_mask", (0, 4, 0), 31, r"node 4: tree_mask is \[31\], and \[23\] follows"),
            ("tree_mask", (0, 1, 0), 3 | 1 << 63, "node 1: tree_mask"),
            ("scores", (0, 0), -1, "node 0: the score of the root is -1"),
            ("scores", (0, 5), -1.2, "node 5: score -1.2.* scores must not rise"),
            ("scores", (0, 5), np.nan, "node 5: score nan"),
            ("dfs_order", (0, 3), 5, "node 3: dfs_order is 5, and 4 follows"),
            ("expected_lengths", (0, 3), 2.5, "node 3: expected_lengths is 2.5, and 2.2[23]"),
            ("expected_lengths", (0, 7), np.nan, "node 7: expected_lengths is nan"),
        ],
    )
    def test_damage_is_found(self, field, index, value, sentence):
        tree = g1_tree()
        getattr(tree, field)[index] = value
        with pytest.raises(InvalidTree, match=f"^request 0.*{sentence}"):
            tree.validate()

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("token_ids", 5),
            ("parents", 0),
            ("depths", 1),
            ("positions", 41),
            ("first_child", 2),
            ("next_sibling", 2),
            ("tree_mask", 1),
            ("scores", 0),
            ("dfs_order", 3),
            ("expected_lengths", 3),
        ],
    )
    def test_damaged_pads_are_found(self, field, value):
        tree = short_tree()
        getattr(tree, field)[0, 3] = value
        with pytest.raises(InvalidTree, match=f"request 0, node 3: {field} is"):
            tree.validate()

    def test_a_node_below_the_horizon_is_found(self):
        tree = dataclasses.replace(g1_tree(), draft_horizon=2)
        with pytest.raises(InvalidTree, match="node 4: depth 3 is beyond draft_horizon 2"):
            tree.validate()

    def test_the_request_is_named(self):
        rng = np.random.default_rng(32)
        tree = reference.tree_build(*tree_cases.candidates(rng, 3, 4, 4, "softmax"), 9)
        tree.depths[2, 1] = 7
        with pytest.raises(InvalidTree, match="request 2, node 1: depths"):
            tree.validate()


class TestDerivedArrays:
    def test_links_and_preorder_lead_to_every_node_once(self):
        rng = np.random.default_rng(33)
        for _ in range(100):
            parents, counts = tree_cases.random_parents(rng, 1, int(rng.integers(1, 90)), 12)
            real = parents[0, : counts[0]]
            first_child, next_sibling = links(real)
            for node in range(len(real)):
                children, child = [], first_child[node]
                while child >= 0:
                    children.append(int(child))
                    child = next_sibling[child]
                assert children == np.flatnonzero(real == node).tolist()
            order = preorder(first_child, next_sibling)
            assert sorted(order) == list(range(len(real)))
            # In pre-order, the nodes after one and below it are exactly its subtree.
            rows = closure(real, 2)
            subtree = [sum(int(row[n >> 6]) >> (n & 63) & 1 for row in rows) for n in range(len(real))]
            for place, node in enumerate(order):
                inside = order[place : place + subtree[node]]
                assert all(int(rows[n, node >> 6]) >> (int(node) & 63) & 1 for n in inside)

    def test_from_parents_rebuilds_what_tree_build_makes(self):
        rng = np.random.default_rng(34)
        built = reference.tree_build(*tree_cases.candidates(rng, 4, 6, 5, "cut off"), 70)
        assert len(set(built.num_nodes.tolist())) > 1
        made = DraftTree.from_parents(
            built.token_ids, built.parents, built.num_nodes, built.positions[:, 0].copy(), built.draft_horizon
        )
        made.validate()
        for name in ("token_ids", "parents", "depths", "positions", "first_child", "next_sibling", "tree_mask"):
            assert np.array_equal(getattr(made, name), getattr(built, name)), name

    def test_from_parents_reads_torch_tensors(self):
        torch = pytest.importorskip("torch")
        tree = g1_tree()
        tensors = [torch.from_numpy(getattr(tree, name)) for name in ("token_ids", "parents", "num_nodes")]
        made = DraftTree.from_parents(*tensors, torch.tensor([40], dtype=torch.int32), 3)
        assert np.array_equal(made.tree_mask, tree.tree_mask)

    @pytest.mark.parametrize(
        ("parents", "count", "horizon", "sentence"),
        [
            ([-1, 0, 2], 3, 3, "request 0, node 2: parent 2 is not an earlier node"),
            ([-1, -1, 0], 3, 3, "request 0, node 1: parent -1"),
            ([-1, 0, 1], 0, 3, "request 0: num_nodes is 0, outside 1 to 3"),
            ([-1, 0, 1], 4, 3, "request 0: num_nodes is 4, outside 1 to 3"),
            ([-1, 0, 1], 3, 1, "request 0: depth 2 is beyond draft_horizon 1"),
        ],
    )
    def test_from_parents_refuses_what_is_no_tree(self, parents, count, horizon, sentence):
        tokens = np.zeros((1, 3), np.int32)
        with pytest.raises(InvalidTree, match=sentence):
            DraftTree.from_parents(tokens, np.array([parents]), np.array([count]), ZERO, horizon)


class TestSglangLayout:
    def test_the_arrays_of_a_built_tree(self):
        tree = reference.tree_build(*(np.concatenate([a, a]) for a in G1.inputs()[:4]), G1.budget)
        theirs = sglang_layout.to_sglang(tree)
        assert theirs.candidates.tolist() == tree.token_ids.tolist()
        assert theirs.retrive_index.tolist() == [list(range(8)), list(range(8, 16))]
        assert theirs.retrive_next_token.tolist() == [G1.expected["first_child"]] * 2
        assert theirs.retrive_next_sibling.tolist() == [G1.expected["next_sibling"]] * 2
        assert theirs.positions.tolist() == G1.expected["positions"] * 2
        assert all(getattr(theirs, field.name).dtype == np.int64 for field in dataclasses.fields(theirs))

    def test_their_mask_reconstruction(self):
        tree = DraftTree.from_parents(
            np.zeros((1, 4), np.int32),
            np.array([G6["parents"]]),
            np.array([4]),
            np.array([G6["seq_len"]], np.int32),
            2,
        )
        theirs = sglang_layout.to_sglang(tree)
        assert tree.tree_mask[0, :, 0].tolist() == G6["tree_mask"]
        assert sglang_layout.unpack_mask(tree.tree_mask)[0].astype(int).tolist() == G6["mask"]
        assert theirs.retrive_next_token[0].tolist() == G6["next_token"]
        assert theirs.retrive_next_sibling[0].tolist() == G6["next_sibling"]
        assert theirs.positions.tolist() == G6["positions"]

    @pytest.mark.parametrize("nodes", [2, 33, 64, 65, 129])
    def test_unpacked_masks_are_the_ancestor_closure(self, nodes):
        rng = np.random.default_rng(nodes)
        parents, counts = tree_cases.random_parents(rng, 2, nodes, 9)
        tree = DraftTree.from_parents(np.zeros_like(parents), parents, counts, np.zeros(2, np.int32), 9)
        bits = sglang_layout.unpack_mask(tree.tree_mask)
        for b in range(2):
            expected = np.zeros((nodes, nodes), bool)
            for node in range(counts[b]):
                above = node
                while above >= 0:
                    expected[node, above] = True
                    above = parents[b, above]
            assert np.array_equal(bits[b], expected)
            assert np.array_equal(bits[b].sum(axis=1)[: counts[b]], tree.depths[b, : counts[b]] + 1)

    def test_the_full_mask_shows_the_prefix_to_real_rows_only(self):
        mask = np.array([[[1], [3], [0]], [[1], [3], [5]]], np.uint64)
        rows = [
            [1, 1, 1, 0, 0],
            [1, 1, 1, 1, 0],
            [0, 0, 0, 0, 0],
            [1, 1, 0, 0],
            [1, 1, 1, 0],
            [1, 1, 0, 1],
        ]
        flat = sglang_layout.full_mask(mask, np.array([2, 1]))
        assert flat.astype(int).tolist() == [bit for row in rows for bit in row]

    def test_parents_of_links_in_any_order(self):
        children, siblings = np.array(G5["next_token"]), np.array(G5["next_sibling"])
        assert sglang_layout.parents_from_links(children, siblings).tolist() == G5["parents"]
        # DB-Guo's builder links the newest sibling first.
        newest = sglang_layout.parents_from_links(
            np.array([[3, 7, 4, 5, -1, -1, -1, -1]]), np.array([[-1, -1, -1, 1, -1, -1, 2, 6]])
        )
        assert newest.tolist() == [G1.expected["parents"]]

    def test_cyclic_links_end(self):
        parents = sglang_layout.parents_from_links(np.array([[1, 0, -1]]), np.array([[-1, 2, 1]]))
        assert parents.tolist() == [[-1, 0, 0]]

    def test_their_acceptance(self):
        answer = sglang_layout.acceptance_from_sglang(
            np.array(G5["predicts"]), np.array(G5["accept_index"]), np.array(G5["accept_token_num"]), 6
        )
        for name in ("accepted_path", "acceptance_length", "bonus_token"):
            assert getattr(answer, name).tolist() == G5[name]
