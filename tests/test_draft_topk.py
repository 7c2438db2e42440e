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


def assert_exact(answer, expected):
    answer = answer.to_numpy()
    assert np.array_equal(answer.token_ids, expected.token_ids)
    np.testing.assert_allclose(answer.log_probs, expected.log_probs, atol=1e-5)
    assert np.array_equal(answer.status, expected.status)


@pytest.mark.parametrize("k", [1, 64, 65])
@pytest.mark.parametrize("rows", [1, 7, 15, 16, 17, 120])
def test_few_and_many_rows(place, rows, k):
    """A GPU shares few rows among many blocks, and many rows among none."""
    values = (np.random.default_rng(rows).standard_normal((rows, 9003)) * 4).astype(np.float32)
    for logits in (values, f32_to_bf16(values)):
        assert_exact(kdbench.draft_topk(place(logits), k), reference.draft_topk(logits, k))


@pytest.mark.parametrize("k", [1, 64, 1024])
def test_a_whole_vocabulary(place, k):
    """163840 logits: equal ones only, ties across the row, a tail of -inf, NaN at the very end, ever better ones."""
    vocabulary = 163840
    values = np.zeros((6, vocabulary), np.float32)
    values[1] = np.floor(np.random.default_rng(1).standard_normal(vocabulary) * 2)
    values[2, vocabulary // 3 :] = -np.inf
    values[3, -1] = np.nan
    values[4] = np.linspace(-20, 20, vocabulary)
    values[5, 99999] = 1000
    for logits in (values, f32_to_bf16(values)):
        assert_exact(kdbench.draft_topk(place(logits), k), reference.draft_topk(logits, k))


def test_a_row_alone_and_among_others(place):
    """How many blocks share a row depends on the number of rows; the tokens and their order do not."""
    values = (np.random.default_rng(3).standard_normal((130, 20000)) * 4).astype(np.float32)
    logits = f32_to_bf16(values)
    together = kdbench.draft_topk(place(logits), 64).to_numpy()
    for row in (0, 64, 129):
        alone = kdbench.draft_topk(place(logits[row : row + 1]), 64).to_numpy()
        assert np.array_equal(alone.token_ids[0], together.token_ids[row])
        np.testing.assert_allclose(alone.log_probs[0], together.log_probs[row], atol=2e-6)


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
