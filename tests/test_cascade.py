# SPDX-License-Identifier: Apache-2.0
"""Prefix by another kernel, tree by ours, merged: the same as verify_attn in one."""

from __future__ import annotations

import numpy as np
import pytest
from attention_cases import NAN_BF16, SCALE, AttentionCase, assert_close, attention_case

import kdbench
from kdbench import cascade
from kdbench.arrays import to_numpy


def prefix_state(place, case: AttentionCase):
    """Out and lse of verify_attn over the prefix alone."""
    lengths, mask = cascade.prefix_as_tree(case.seq_lens, case.q_nope.shape[1])
    arrays = (case.q_nope, case.q_pe, case.kv_cache, case.block_table, lengths, mask)
    return kdbench.verify_attn(*map(place, arrays), None, SCALE)


def whole_trees(seed: int, *, page_size: int, kind: str = "tree") -> AttentionCase:
    rng = np.random.default_rng(seed)
    return attention_case(
        rng, seq_lens=[0, 9, 40, 333], counts=[12] * 4, nodes=12, heads=4, page_size=page_size, kind=kind
    )


@pytest.mark.parametrize("kind", ["chain", "tree"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_two_parts_are_the_whole(place, page_size, kind):
    case = whole_trees(page_size, page_size=page_size, kind=kind)
    prefix = prefix_state(place, case)
    assert np.isneginf(to_numpy(prefix[1])[0]).all()
    before = [to_numpy(array).copy() for array in prefix]
    status = place(np.full(4, -7, np.int32))
    out, lse = cascade.verify_tail_and_merge(*prefix, *case.arguments(place), status=status)
    assert_close(out, lse, case.expected())
    assert to_numpy(status).tolist() == [0] * 4
    for array, want in zip(prefix, before, strict=True):
        assert np.array_equal(to_numpy(array), want)


def test_pads_keep_the_prefix_and_real_nodes_do_not_see_it_twice(place):
    rng = np.random.default_rng(8)
    case = attention_case(rng, seq_lens=[50, 20], counts=[7, 3], nodes=7, heads=2, page_size=1, kind="tree")
    # prefix_as_tree needs the slots of all N nodes.
    case.block_table[case.block_table < 0] = 0
    prefix = prefix_state(place, case)
    out, lse = (to_numpy(array) for array in cascade.verify_tail_and_merge(*prefix, *case.arguments(place)))
    assert np.array_equal(out[1, 3:], to_numpy(prefix[0])[1, 3:])
    assert np.array_equal(lse[1, 3:], to_numpy(prefix[1])[1, 3:])
    want_out, want_lse = case.expected()
    out[1, 3:], lse[1, 3:] = 0, -np.inf
    assert_close(out, lse, (want_out, want_lse))


def test_prepared_calls_follow_their_inputs(place):
    case = whole_trees(5, page_size=16)
    prefix = [place(to_numpy(array).copy()) for array in prefix_state(place, case)]
    out = place(np.full(case.q_nope.shape, NAN_BF16)), place(np.full(case.q_nope.shape[:3], np.nan, np.float32))
    calls = cascade.prepare_tail_and_merge(*prefix, *case.arguments(place), out=out)
    calls.set_stream(0)
    calls.launch()
    assert calls.outputs["out"] is out[0]
    assert_close(*out, case.expected())
    # With a prefix that saw nothing, only the tail is left.
    prefix[1][:] = -np.inf
    prefix[0][:] = NAN_BF16
    calls.launch()
    assert_close(*out, case.expected(tail_only=True))


@pytest.mark.parametrize("part", [0, 1])
def test_the_prefix_is_not_written_over(cpu_library, part):
    case = whole_trees(6, page_size=16)
    prefix = prefix_state(lambda array: array, case)
    out = [np.empty_like(array) for array in prefix]
    out[part] = prefix[part]
    name = ("out", "lse")[part]
    with pytest.raises(kdbench.InvalidArgument, match=f"^{name} is prefix_{name}, and an array of its own"):
        cascade.verify_tail_and_merge(*prefix, *case.arguments(lambda array: array), out=tuple(out))
