# SPDX-License-Identifier: Apache-2.0
"""Random candidates, trees and targets, and the comparison of answers bit by bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from kdbench.native import RequestStatus
from kdbench.tree import Acceptance, DraftTree

STYLES = ("softmax", "bf16", "integers", "equal", "identical rows", "near zero", "cut off")


def log_probs(rng: np.random.Generator, shape: tuple[int, int, int], style: str) -> np.ndarray:
    """f32[B, D, K] in descending rows, without NaN; the styles differ in how many exact ties they hold."""
    batch, horizon, topk = shape
    if style == "integers":
        values = -rng.integers(0, 4, shape).astype(np.float32)
    elif style == "equal":
        values = np.full(shape, -0.6931472, np.float32)
    elif style == "identical rows":
        # log1p leaves values that are no multiples of 2^-40: equal masses by two paths, and float64 would round.
        values = np.log1p(-rng.random((batch, 1, topk)) * 0.9).astype(np.float32).repeat(horizon, axis=1)
    elif style == "near zero":
        values = -np.exp2(rng.uniform(-45, 0, shape)).astype(np.float32)
    else:
        logits = (rng.standard_normal((batch, horizon, topk + 5)) * 3).astype(np.float32)
        if style == "bf16":
            # Near 20 a step of bf16 is 1/8.
            logits = ((logits + 20).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        values = (logits - np.log(np.exp(logits.astype(np.float64)).sum(-1, keepdims=True))).astype(np.float32)
        values = np.minimum(values, 0)
        if style == "cut off":
            values = -np.sort(-values, axis=-1)[..., :topk]
            unusable = np.arange(topk) >= rng.integers(0, topk + 1, (*shape[:2], 1))
            values[unusable] = rng.choice(np.array([-np.inf, -64.5, -3e38], np.float32), int(unusable.sum()))
    return np.ascontiguousarray(-np.sort(-values, axis=-1)[..., :topk])


def token_ids(rng: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
    """i32[B, D, K] from a small vocabulary with 0, distinct within a row and repeated between rows."""
    vocabulary = np.broadcast_to(np.arange(shape[2] + 2, dtype=np.int32), (*shape[:2], shape[2] + 2))
    return np.ascontiguousarray(rng.permuted(vocabulary, axis=-1)[..., : shape[2]])


def candidates(rng: np.random.Generator, batch: int, horizon: int, topk: int, style: str) -> tuple[np.ndarray, ...]:
    """The first four arguments of tree_build."""
    shape = (batch, horizon, topk)
    return (
        log_probs(rng, shape, style),
        token_ids(rng, shape),
        rng.integers(0, 50, batch).astype(np.int32),
        rng.integers(0, 5000, batch).astype(np.int32),
    )


def random_parents(rng: np.random.Generator, batch: int, nodes: int, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Sound parents i32[B, N] that stay within ``horizon``, and num_nodes i32[B], for trees of any shape."""
    parents = np.full((batch, nodes), -1, np.int32)
    counts = rng.integers(1, nodes + 1, batch).astype(np.int32) if horizon else np.ones(batch, np.int32)
    for b in range(batch):
        depth = np.zeros(nodes, int)
        for node in range(1, counts[b]):
            allowed = np.flatnonzero(depth[:node] < horizon)
            # Recent parents make deep trees.
            parents[b, node] = rng.choice(allowed[-3:] if rng.random() < 0.6 else allowed)
            depth[node] = depth[parents[b, node]] + 1
    return parents, counts


def targets(rng: np.random.Generator, tree: DraftTree, vocabulary: int) -> np.ndarray:
    """i32[B, N] target tokens that agree with the tree along the way to one random node of each request."""
    batch, nodes = tree.token_ids.shape
    answer = rng.integers(0, vocabulary, (batch, nodes)).astype(np.int32)
    for b in range(batch):
        node = int(rng.integers(0, tree.num_nodes[b]))
        while node > 0:
            answer[b, tree.parents[b, node]] = tree.token_ids[b, node]
            node = int(tree.parents[b, node])
    return answer


def on_backend(place: Callable[[np.ndarray], Any], tree: DraftTree) -> DraftTree:
    """The same tree with its arrays through ``place``."""
    return dataclasses.replace(tree, **{name: place(array) for name, array in tree.arrays().items()})


def assert_same_tree(actual: DraftTree, expected: DraftTree) -> None:
    """Every array equal in every bit; SLOW_PATH only says how the answer was found."""
    _assert_same_arrays(actual.to_numpy().arrays(), expected.arrays())


def assert_same_acceptance(actual: Acceptance, expected: Acceptance) -> None:
    """As assert_same_tree."""
    _assert_same_arrays(actual.to_numpy().arrays(), expected.arrays())


def _assert_same_arrays(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert actual.keys() == expected.keys()
    for name, want in expected.items():
        have = actual[name]
        if name == "status":
            have = have & ~int(RequestStatus.SLOW_PATH)
        assert have.dtype == want.dtype, name
        assert have.shape == want.shape, name
        # uint8 views: -0 is not 0, and NaN would be NaN.
        if have.tobytes() != want.tobytes():
            np.testing.assert_array_equal(have, want, err_msg=name)
            raise AssertionError(f"{name} has equal values in different bits")
