# SPDX-License-Identifier: Apache-2.0
"""verify_attn on every backend against float64, with NaN wherever nobody looks."""

from __future__ import annotations

import dataclasses

import attention_cases
import numpy as np
import pytest
from attention_cases import assert_close, attention_case

import kdbench
from kdbench.arrays import bf16_to_f32, f32_to_bf16, to_numpy


@pytest.mark.parametrize("kind", ["chain", "tree", "arbitrary"])
@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_ragged_requests_against_float64(place, page_size, kind):
    rng = np.random.default_rng(page_size)
    case = attention_case(
        rng,
        seq_lens=[0, 77, 16, 130],
        counts=[5, 17, 1, 12],
        nodes=17,
        heads=4,
        page_size=page_size,
        kind=kind,
    )
    status = place(np.full(4, -7, np.int32))
    out, lse = kdbench.verify_attn(*case.arguments(place), status=status)
    assert_close(out, lse, case.expected())
    assert to_numpy(status).tolist() == [0] * 4


@pytest.mark.parametrize("page_size", [1, 3, 32])
def test_pages_that_follow_each_other_in_the_cache(place, page_size):
    rng = np.random.default_rng(200 + page_size)
    case = attention_case(
        rng,
        seq_lens=[200, 63, 129],
        counts=[9, 4, 7],
        nodes=9,
        heads=8,
        page_size=page_size,
        kind="tree",
        scattered=False,
    )
    # Two entries exchanged break the first request's run in its second tile of 64 slots, not in its first.
    case.block_table[0, [64 // page_size + 1, 64 // page_size + 2]] = case.block_table[
        0, [64 // page_size + 2, 64 // page_size + 1]
    ]
    assert_close(*kdbench.verify_attn(*case.arguments(place)), case.expected())


@pytest.mark.parametrize("nodes", [1, 2, 15, 16, 31, 32, 33, 63, 64, 65, 129])
def test_node_counts_around_tiles_and_mask_words(place, nodes):
    rng = np.random.default_rng(nodes)
    counts = [nodes, max(1, nodes - 1)]
    case = attention_case(rng, seq_lens=[40, 3], counts=counts, nodes=nodes, heads=2, page_size=16, kind="tree")
    assert_close(*kdbench.verify_attn(*case.arguments(place)), case.expected())


@pytest.mark.parametrize("heads", [1, 3, 8, 16, 64, 128])
def test_head_counts(place, heads):
    rng = np.random.default_rng(heads)
    case = attention_case(rng, seq_lens=[70], counts=[3], nodes=4, heads=heads, page_size=16, kind="tree")
    assert_close(*kdbench.verify_attn(*case.arguments(place)), case.expected())


def test_a_long_prefix(place):
    rng = np.random.default_rng(61)
    case = attention_case(rng, seq_lens=[3000, 5], counts=[4, 4], nodes=4, heads=2, page_size=64, kind="tree")
    assert_close(*kdbench.verify_attn(*case.arguments(place)), case.expected())


@pytest.mark.parametrize("kind", ["chain", "tree", "arbitrary"])
@pytest.mark.parametrize("page_size", [1, 64])
def test_tail_only_against_float64_whatever_the_prefix_holds(place, page_size, kind):
    rng = np.random.default_rng(70 + page_size)
    seq_lens, counts = [0, 77, 64, 130], [5, 65, 1, 40]
    case = attention_case(rng, seq_lens=seq_lens, counts=counts, nodes=65, heads=3, page_size=page_size, kind=kind)
    for b, prefix in enumerate(seq_lens):
        slots = np.arange(prefix)
        case.kv_cache[case.block_table[b, slots // page_size], slots % page_size] = attention_cases.NAN_BF16
        case.block_table[b, : prefix // page_size] = -1
    status = place(np.full(4, -7, np.int32))
    out, lse = kdbench.verify_attn(*case.arguments(place), status=status, tail_only=True)
    assert to_numpy(status).tolist() == [0] * 4
    # The oracle reads gathered slots, none of them in the prefix.
    assert_close(out, lse, case.expected(tail_only=True))


def test_an_empty_mask_row_alone_marks_a_pad(place):
    rng = np.random.default_rng(62)
    case = attention_case(rng, seq_lens=[9, 30], counts=[6, 8], nodes=8, heads=2, page_size=16, kind="tree")
    # Without num_nodes the slots of all N nodes must stand in the block table.
    case.block_table[case.block_table < 0] = 0
    without = dataclasses.replace(case, num_nodes=None)
    out, lse = kdbench.verify_attn(*without.arguments(place))
    assert_close(out, lse, case.expected())
    assert np.isneginf(to_numpy(lse)[0, 6:]).all()


def test_a_chain_is_causal_attention_and_one_node_is_decoding(place):
    rng = np.random.default_rng(63)
    case = attention_case(rng, seq_lens=[20, 20], counts=[6, 1], nodes=6, heads=2, page_size=1, kind="chain")
    out, lse = kdbench.verify_attn(*case.arguments(place))
    for b, count in enumerate([6, 1]):
        keys = bf16_to_f32(case.kv_cache[case.block_table[b, : 20 + count], 0]).astype(float)
        query = bf16_to_f32(np.concatenate([case.q_nope[b], case.q_pe[b]], axis=-1)).astype(float)[:count]
        logits = attention_cases.SCALE * np.einsum("ihd,td->iht", query, keys)
        logits[np.arange(20 + count) > 20 + np.arange(count)[:, None, None] + np.zeros((1, 2, 1))] = -np.inf
        weights = np.exp(logits)
        want = np.einsum("iht,td->ihd", weights / weights.sum(-1, keepdims=True), keys[:, :512])
        have = bf16_to_f32(to_numpy(out)[b, :count]).astype(float)
        assert np.linalg.norm(have - want) <= 3e-3 * np.linalg.norm(want)
        # The natural logarithm, not the binary one.
        np.testing.assert_allclose(to_numpy(lse)[b, :count], np.log(weights.sum(-1)), atol=1e-3)


def test_siblings_with_other_ancestors_differ_from_causal_attention(place):
    rng = np.random.default_rng(64)
    case = attention_case(rng, seq_lens=[4], counts=[3], nodes=3, heads=1, page_size=16, kind="chain")
    tree = dataclasses.replace(case, tree_mask=np.array([[[1], [3], [5]]], np.uint64))
    causal, _ = kdbench.verify_attn(*case.arguments(place))
    masked, lse = kdbench.verify_attn(*tree.arguments(place))
    assert_close(masked, lse, tree.expected())
    causal, masked = to_numpy(causal), to_numpy(masked)
    assert np.array_equal(causal[0, :2], masked[0, :2])
    assert not np.array_equal(causal[0, 2], masked[0, 2])


def test_garbage_that_nobody_sees_changes_no_bit(place):
    rng = np.random.default_rng(65)
    case = attention_case(rng, seq_lens=[33, 7], counts=[9, 4], nodes=9, heads=2, page_size=16, kind="arbitrary")
    expected = [to_numpy(a) for a in kdbench.verify_attn(*case.arguments(place))]
    unseen = case.kv_cache == attention_cases.NAN_BF16
    assert unseen.any()
    other = dataclasses.replace(case, kv_cache=np.where(unseen, np.uint16(0x4000), case.kv_cache))
    other.q_nope[1, 4:] = attention_cases.NAN_BF16
    other.q_pe[1, 4:] = attention_cases.NAN_BF16
    for have, want in zip(kdbench.verify_attn(*other.arguments(place)), expected, strict=True):
        assert np.array_equal(to_numpy(have), want)


def test_mask_bits_of_pads_count_for_nothing(place):
    rng = np.random.default_rng(66)
    case = attention_case(rng, seq_lens=[12], counts=[5], nodes=40, heads=2, page_size=16, kind="tree")
    wild = case.tree_mask.copy()
    wild[:, :, 0] |= np.uint64(~0 << 5 & 2**64 - 1)
    wild[:, 5:] = 2**64 - 1
    out, lse = kdbench.verify_attn(*dataclasses.replace(case, tree_mask=wild).arguments(place))
    assert_close(out, lse, case.expected())


def test_the_same_inputs_give_the_same_bits(place):
    rng = np.random.default_rng(67)
    case = attention_case(rng, seq_lens=[300, 90], counts=[33, 20], nodes=33, heads=4, page_size=16, kind="tree")
    first = [to_numpy(a) for a in kdbench.verify_attn(*case.arguments(place))]
    for _ in range(3):
        for have, want in zip(kdbench.verify_attn(*case.arguments(place)), first, strict=True):
            assert np.array_equal(to_numpy(have), want)


def test_paths_agree(place):
    rng = np.random.default_rng(69)
    case = attention_case(rng, seq_lens=[200, 63], counts=[9, 20], nodes=20, heads=8, page_size=64, kind="tree")
    best, lse = kdbench.verify_attn(*case.arguments(place))
    portable, portable_lse = kdbench.verify_attn(*case.arguments(place), path="portable")
    assert_close(portable, portable_lse, case.expected())
    np.testing.assert_allclose(to_numpy(lse), to_numpy(portable_lse), atol=1e-3)
    a, b = bf16_to_f32(to_numpy(best)), bf16_to_f32(to_numpy(portable))
    assert np.linalg.norm(a - b) <= 4e-3 * np.linalg.norm(a)


def test_a_path_that_is_not_there_is_refused(cpu_library):
    rng = np.random.default_rng(70)
    case = attention_case(rng, seq_lens=[3], counts=[2], nodes=2, heads=1, page_size=16, kind="tree")
    with pytest.raises(kdbench.errors.InvalidArgument, match=r"^path is 'wgmma', wanted one of 'best', 'portable'"):
        kdbench.verify_attn(*case.arguments(lambda a: a), path="wgmma")
    with pytest.raises(kdbench.errors.KernelError, match=r"no Hopper path"):
        kdbench.verify_attn(*case.arguments(lambda a: a), path="hopper")


def test_large_scores_do_not_overflow(place):
    rng = np.random.default_rng(68)
    case = attention_case(rng, seq_lens=[50], counts=[3], nodes=3, heads=2, page_size=16, kind="tree")
    case.q_nope[:] = f32_to_bf16(rng.standard_normal(case.q_nope.shape) * 60)
    out, lse = kdbench.verify_attn(*case.arguments(place))
    want_out, want_lse = case.expected()
    assert want_lse.max() > 300
    # Scores of hundreds leave few bits behind the point: the bound is relative here.
    np.testing.assert_allclose(to_numpy(lse), want_lse, rtol=1e-4)
    assert np.linalg.norm(bf16_to_f32(to_numpy(out)) - want_out) <= 0.02 * np.linalg.norm(want_out)
