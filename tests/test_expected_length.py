# SPDX-License-Identifier: Apache-2.0
"""Expected acceptance lengths, and the size of tree that CaDDTree's rule keeps."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import tree_cases

import kdbench
from kdbench import reference
from kdbench.errors import InvalidArgument
from kdbench.expected_length import path_mass


def test_masses_are_those_of_exp():
    costs = np.random.default_rng(51).uniform(0, 1, 20000) ** 4 * 2.0**46
    for cost in [0, 1, 2**40, 2**50, *costs.astype(np.int64).tolist()]:
        assert (
            abs(path_mass(cost) * 2.0**-40 - math.exp(-cost * 2.0**-40)) <= 2**-29 * math.exp(-cost * 2.0**-40) + 2**-40
        )
    assert path_mass(0) == 2**40
    assert path_mass(2**51 - 1) == 0


def stop_rule(lengths, costs):
    """The rule as the paper writes it, a node at a time."""
    num_nodes, rate = 1, lengths[0] / costs[0]
    for node in range(1, len(lengths)):
        if lengths[node] / costs[node] <= rate:
            break
        num_nodes, rate = node + 1, lengths[node] / costs[node]
    return num_nodes


@pytest.mark.parametrize("style", tree_cases.STYLES)
def test_the_rule_equals_a_plain_loop(style):
    rng = np.random.default_rng(52)
    arguments = tree_cases.candidates(rng, 12, 6, 8, style)
    tree = reference.tree_build(*arguments, 60, expected_lengths=True)
    kept = set()
    for scale in (0.01, 0.3, 3.0):
        shared = 1 + scale * np.arange(61) / 60
        bent = shared + scale * (np.arange(61) / 60) ** 2 * rng.uniform(0, 3, (12, 1))
        for costs in (shared, bent):
            counts = kdbench.worthwhile_num_nodes(tree.expected_lengths, costs)
            each = np.broadcast_to(costs, (12, 61))
            wanted = [stop_rule(tree.expected_lengths[b].astype(float), each[b]) for b in range(12)]
            assert counts.dtype == np.int32
            assert counts.tolist() == wanted
            assert (counts <= tree.num_nodes).all()
            kept.update(wanted)
    assert len(kept) > 3


def test_a_cut_tree_is_the_tree_of_the_smaller_budget():
    arguments = tree_cases.candidates(np.random.default_rng(53), 5, 6, 8, "softmax")
    tree = reference.tree_build(*arguments, 60, expected_lengths=True)
    counts = kdbench.worthwhile_num_nodes(tree.expected_lengths, 1 + 0.02 * np.arange(61))
    assert 1 < counts.min() < counts.max() < 61
    targets = tree_cases.targets(np.random.default_rng(54), tree, 10)
    cut = reference.tree_accept(dataclasses.replace(tree, num_nodes=counts), targets)
    for b, count in enumerate(counts):
        one = [array[b : b + 1] for array in arguments]
        small = reference.tree_build(*one, int(count) - 1, expected_lengths=True)
        assert small.expected_lengths[0, -1] == tree.expected_lengths[b, count - 1]
        alone = reference.tree_accept(small, targets[b : b + 1, :count])
        assert alone.accepted_path.tolist() == cut.accepted_path[b : b + 1].tolist()


@pytest.mark.parametrize(
    ("lengths", "costs", "sentence"),
    [
        (np.ones((2, 3)), np.ones(4), r"round_costs has shape \(4,\), and \(3,\) or \(2, 3\)"),
        (np.ones(3), np.ones(3), r"expected_lengths has shape \(3,\)"),
        (np.ones((2, 3)), np.array([1.0, 0.0, 1.0]), "not a finite number above 0"),
        (np.ones((2, 3)), np.array([1.0, np.nan, 1.0]), "not a finite number above 0"),
    ],
)
def test_bad_input_is_one_sentence(lengths, costs, sentence):
    with pytest.raises(InvalidArgument, match=sentence):
        kdbench.worthwhile_num_nodes(lengths, costs)
