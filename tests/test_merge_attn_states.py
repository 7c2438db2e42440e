# SPDX-License-Identifier: Apache-2.0
"""merge_attn_states against float64, and that attention cut in two and merged is attention."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from attention_cases import NAN_BF16, SCALE, AttentionCase, assert_close, attention_case
from guarded import Canaries

import kdbench
from kdbench import cascade, reference
from kdbench.arrays import bf16_to_f32, f32_to_bf16, to_numpy

State = tuple[np.ndarray, np.ndarray]


def random_state(rng: np.random.Generator, shape: tuple[int, ...], spread: float = 3.0) -> State:
    """out as bf16 words of ``shape``, lse f32 of its leading sizes."""
    return f32_to_bf16(rng.standard_normal(shape)), rng.normal(0, spread, shape[:-1]).astype(np.float32)


def merge(place, a: State, b: State, **options) -> State:
    out, lse = kdbench.merge_attn_states(*map(place, (*a, *b)), **options)
    return to_numpy(out), to_numpy(lse)


def assert_merged(have: State, a: State, b: State) -> None:
    want_out, want_lse = reference.merge_attn_states(*a, *b)
    np.testing.assert_allclose(have[1], want_lse, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(bf16_to_f32(have[0]), want_out, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("head_dim", [8, 24, 64, 128, 256, 264, 512])
@pytest.mark.parametrize("leading", [(1,), (2, 5, 3), (0, 4)])
def test_random_states_against_float64(place, leading, head_dim):
    rng = np.random.default_rng(head_dim)
    a, b = (random_state(rng, (*leading, head_dim)) for _ in range(2))
    have = merge(place, a, b)
    assert have[0].shape == (*leading, head_dim)
    assert_merged(have, a, b)


def test_weights_far_apart_and_far_from_zero(place):
    rng = np.random.default_rng(1)
    a, b = (random_state(rng, (6, 64)) for _ in range(2))
    a[1][:], b[1][:] = [300, -300, 1e30, 88, -1e30, 0], [299, -300, -1e30, -88, -1e30, 200]
    assert_merged(merge(place, a, b), a, b)


def test_sides_commute_bit_for_bit(place):
    rng = np.random.default_rng(2)
    a, b = (random_state(rng, (500, 512)) for _ in range(2))
    b[1][::7] = a[1][::7]
    b[1][::11] = -np.inf
    for have, want in zip(merge(place, a, b), merge(place, b, a), strict=True):
        assert np.array_equal(have, want)


def test_merging_is_associative_within_rounding(place):
    rng = np.random.default_rng(3)
    a, b, c = (random_state(rng, (300, 512)) for _ in range(3))
    left, right = merge(place, merge(place, a, b), c), merge(place, a, merge(place, b, c))
    np.testing.assert_allclose(left[1], right[1], atol=3e-6)
    values = [bf16_to_f32(side[0]).astype(float) for side in (left, right)]
    # Either way rounds twice to bf16.
    assert 0 < np.linalg.norm(values[0] - values[1]) <= 4e-3 * np.linalg.norm(values[0])


def test_a_side_that_saw_nothing_may_hold_anything(place):
    rng = np.random.default_rng(4)
    a, b = (random_state(rng, (3, 512)) for _ in range(2))
    a[1][[0, 2]] = b[1][[1, 2]] = -np.inf
    a[0][[0, 2]] = b[0][[1, 2]] = NAN_BF16
    out, lse = merge(place, a, b)
    assert np.array_equal(out[:2], [b[0][0], a[0][1]])
    assert np.array_equal(lse, [b[1][0], a[1][1], -np.inf])
    assert not out[2].any()


def test_nan_and_infinity_stay_visible(place):
    rng = np.random.default_rng(5)
    a, b = (random_state(rng, (6, 64)) for _ in range(2))
    a[1][:5], b[1][:5] = [np.nan, 1, np.nan, np.inf, 2], [0, np.nan, -np.inf, 0, np.inf]
    out, lse = merge(place, a, b)
    assert np.isnan(lse).tolist() == [True] * 5 + [False]
    assert np.isnan(bf16_to_f32(out)).all(axis=1).tolist() == [True] * 5 + [False]


@pytest.mark.parametrize("side", [0, 1])
def test_in_place_and_nothing_else_is_written(place, side):
    rng = np.random.default_rng(6)
    states = [random_state(rng, (70, 2, 136)) for _ in range(2)]
    want = merge(place, *states)
    canaries = Canaries(place)
    guarded = [(canaries.array(out.shape, "uint16"), canaries.array(lse.shape, "float32")) for out, lse in states]
    for (out, lse), state in zip(guarded, states, strict=True):
        out[:], lse[:] = place(state[0]), place(state[1])
    have = kdbench.merge_attn_states(*guarded[0], *guarded[1], out=guarded[side])
    assert have[0] is guarded[side][0]
    canaries.check()
    for got, wanted in zip(have, want, strict=True):
        assert np.array_equal(to_numpy(got), wanted)
    other = guarded[1 - side]
    assert np.array_equal(to_numpy(other[0]), states[1 - side][0])
    assert np.array_equal(to_numpy(other[1]), states[1 - side][1])


def slots_before(case: AttentionCase, boundary: list[int]) -> AttentionCase:
    """Attention of all rows over logical slots [0, boundary[b])."""
    nodes = case.q_nope.shape[1]
    lengths, mask = cascade.prefix_as_tree(np.array(boundary), nodes)
    # Without num_nodes the slots of all N nodes must stand in the block table, seen or not.
    table = np.concatenate([np.where(case.block_table < 0, 0, case.block_table)] * nodes, axis=1)
    return dataclasses.replace(case, seq_lens=lengths, tree_mask=mask, num_nodes=None, block_table=table)


def slots_behind(case: AttentionCase, boundary: list[int]) -> AttentionCase:
    """Attention over logical slots [boundary[b], P) and the tree; of page size 1."""
    table = np.full_like(case.block_table, -1)
    for b, cut in enumerate(boundary):
        table[b, : table.shape[1] - cut] = case.block_table[b, cut:]
    return dataclasses.replace(case, block_table=table, seq_lens=(case.seq_lens - boundary).astype(np.int32))


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.97, 1.0])
def test_attention_split_at_any_boundary_and_merged_is_whole(place, share):
    rng = np.random.default_rng(round(share * 100))
    case = attention_case(
        rng, seq_lens=[100, 33, 7], counts=[9, 9, 9], nodes=9, heads=4, page_size=1, kind="tree", spare_pages=0
    )
    boundary = [round(int(prefix) * share) for prefix in case.seq_lens]
    front = kdbench.verify_attn(*slots_before(case, boundary).arguments(place))
    back = kdbench.verify_attn(*slots_behind(case, boundary).arguments(place))
    assert np.isneginf(to_numpy(front[1])).all() == (share == 0)
    assert_close(*kdbench.merge_attn_states(*front, *back), case.expected())


@pytest.mark.parametrize("kind", ["chain", "tree", "arbitrary"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_a_plain_prefix_kernel_and_the_tail_merged_are_verify_attn(place, page_size, kind):
    rng = np.random.default_rng(page_size)
    case = attention_case(
        rng, seq_lens=[0, 90, 201], counts=[20, 20, 20], nodes=20, heads=2, page_size=page_size, kind=kind
    )
    if kind == "arbitrary":  # every row sees itself, or it would be a pad, whose prefix nobody may see either
        case.tree_mask[..., 0] |= np.uint64(1) << np.arange(20, dtype=np.uint64)
        case.kv_cache[case.kv_cache == NAN_BF16] = 0
    prefix = plain_prefix_attention(case)
    tail = kdbench.verify_attn(*case.arguments(place), tail_only=True)
    out, lse = kdbench.merge_attn_states(*map(place, prefix), *tail)
    assert_close(out, lse, case.expected())


def plain_prefix_attention(case: AttentionCase) -> State:
    """What a prefix kernel without any mask gives: bf16 out, natural-log lse from the definition, log of a sum."""
    q = np.concatenate([bf16_to_f32(case.q_nope), bf16_to_f32(case.q_pe)], axis=-1).astype(float)
    out, lse = np.full(case.q_nope.shape, np.nan), np.full(case.q_nope.shape[:-1], -np.inf)
    for b, prefix in enumerate(case.seq_lens):
        if prefix:
            slots = np.arange(prefix)
            pages = case.block_table[b, slots // case.kv_cache.shape[1]]
            keys = bf16_to_f32(case.kv_cache[pages, slots % case.kv_cache.shape[1]]).astype(float)
            weights = np.exp(SCALE * q[b] @ keys.T)
            out[b] = weights @ keys[:, :512] / weights.sum(-1, keepdims=True)
            lse[b] = np.log(weights.sum(-1))
    return f32_to_bf16(out.astype(np.float32)), lse.astype(np.float32)


@pytest.mark.parametrize(
    ("shapes", "sentence"),
    [
        (((4, 12), (4,), (4, 12), (4,)), "head_dim is 12, and a multiple of 8 is expected"),
        (((4, 520), (4,), (4, 520), (4,)), "head_dim is 520, outside 8 to 512"),
        (((4, 64), (3,), (4, 64), (4,)), r"lse_a has shape \[3\], and \[4\] is expected"),
        (
            ((4, 64), (4,), (4, 72), (4,)),
            r"out_b has shape \[4, 72\], and \[4, head_dim\] is expected with head_dim = 64",
        ),
    ],
)
def test_argument_errors(cpu_library, shapes, sentence):
    arrays = [np.zeros(shape, np.uint16 if i % 2 == 0 else np.float32) for i, shape in enumerate(shapes)]
    with pytest.raises(kdbench.InvalidArgument, match=sentence):
        kdbench.merge_attn_states(*arrays)


def test_arrays_that_overlap_in_part_are_refused(cpu_library):
    memory, lse = np.zeros((9, 64), np.uint16), np.zeros(8, np.float32)
    with pytest.raises(kdbench.KernelError, match="out overlaps out_a in part"):
        kdbench.merge_attn_states(memory[:8], lse, memory[:8].copy(), lse, out=(memory[1:], lse))
