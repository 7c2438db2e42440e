# SPDX-License-Identifier: Apache-2.0
"""draft_topk on every backend against float64."""

from __future__ import annotations

import numpy as np
import pytest
import tree_cases

import kdbench
from kdbench import native, reference
from kdbench.arrays import f32_to_bf16


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("rows", "vocabulary", "k"), [(3, 1000, 10), (5, 7, 7), (1, 1, 1), (2, 33000, 1024)])
def test_against_float64(place, dtype, rows, vocabulary, k):
    rng = np.random.default_rng(vocabulary)
    values = (rng.standard_normal((rows, vocabulary)) * 4 + 10).astype(np.float32)
    values[0, rng.random(vocabulary) < 0.2] = -np.inf
    logits = values if dtype == "f32" else f32_to_bf16(values)
    expected = reference.draft_topk(logits, k)
    answer = kdbench.draft_topk(place(logits), k).to_numpy()
    # Which tokens, and their order among equal logits, is exact; only the normaliser is rounded.
    assert np.array_equal(answer.token_ids, expected.token_ids)
    np.testing.assert_allclose(answer.log_probs, expected.log_probs, atol=1e-5)
    assert (answer.status == 0).all()
    assert (answer.log_probs <= 0).all()


def test_it_feeds_tree_build(place):
    rng = np.random.default_rng(71)
    logits = (rng.standard_normal((2, 4, 300)) * 4).astype(np.float32)
    topk = kdbench.draft_topk(place(logits), 16)
    assert topk.log_probs.shape == (2, 4, 16)
    assert topk.status.shape == (2, 4)
    zeros = np.zeros(2, np.int32)
    tree = kdbench.tree_build(topk.log_probs, topk.token_ids, place(zeros), place(zeros), 20)
    host = topk.to_numpy()
    expected = reference.tree_build(host.log_probs, host.token_ids, zeros, zeros, 20)
    tree_cases.assert_same_tree(tree, expected)


def test_impossible_rows(place):
    logits = np.zeros((4, 6), np.float32)
    logits[0] = -np.inf
    logits[1, 3] = np.nan
    logits[2, 5] = np.inf
    answer = kdbench.draft_topk(place(logits), 3).to_numpy()
    expected = reference.draft_topk(logits, 3)
    assert np.array_equal(answer.token_ids, expected.token_ids)
    np.testing.assert_allclose(answer.log_probs, expected.log_probs, atol=1e-6)
    assert answer.status.tolist() == [0, native.RequestStatus.NAN, native.RequestStatus.POSITIVE, 0]
    assert np.isneginf(answer.log_probs[0]).all()


def test_no_rows(place):
    assert kdbench.draft_topk(place(np.zeros((0, 9), np.float32)), 2).log_probs.shape == (0, 2)
