# SPDX-License-Identifier: Apache-2.0
"""verify_mla's modes on every backend against float64 and each other, with NaN wherever nobody looks."""

from __future__ import annotations

import numpy as np
import pytest
from attention_cases import NAN_BF16
from mla_cases import LSE_ERROR, OUT_ERROR, assert_mla_close, mla_case

import kdbench
from kdbench import kernels
from kdbench.arrays import bf16_to_f32, f32_to_bf16, to_numpy

MODES = ("absorb", "mha")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """Each mode in turn."""
    return request.param


@pytest.mark.parametrize("kind", ["chain", "tree", "arbitrary"])
@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_ragged_requests_against_float64(place, mode, page_size, kind):
    case = mla_case(
        np.random.default_rng(page_size),
        seq_lens=[0, 77, 16, 130],
        counts=[5, 17, 1, 12],
        nodes=17,
        heads=4,
        page_size=page_size,
        kind=kind,
    )
    status = place(np.full(4, -7, np.int32))
    assert_mla_close(*kdbench.verify_mla(*case.arguments(place), mode=mode, status=status), case.expected())
    assert to_numpy(status).tolist() == [0] * 4


@pytest.mark.parametrize("nodes", [1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 193, 257])
def test_node_counts_around_tiles_and_mask_words(place, mode, nodes):
    counts = [nodes, max(1, nodes - 1)]
    case = mla_case(
        np.random.default_rng(nodes), seq_lens=[40, 3], counts=counts, nodes=nodes, heads=2, page_size=16, kind="tree"
    )
    assert_mla_close(*kdbench.verify_mla(*case.arguments(place), mode=mode), case.expected())


@pytest.mark.parametrize("page_size", [1, 64])
@pytest.mark.parametrize("prefix", [0, 1, 63, 64, 65, 127, 128, 129])
def test_prefixes_around_tiles(place, mode, page_size, prefix):
    case = mla_case(
        np.random.default_rng(prefix),
        seq_lens=[prefix],
        counts=[3],
        nodes=4,
        heads=2,
        page_size=page_size,
        kind="arbitrary",
    )
    assert_mla_close(*kdbench.verify_mla(*case.arguments(place), mode=mode), case.expected())


@pytest.mark.parametrize("heads", [1, 3, 16, 128])
def test_head_counts(place, mode, heads):
    case = mla_case(
        np.random.default_rng(heads), seq_lens=[70], counts=[3], nodes=4, heads=heads, page_size=16, kind="tree"
    )
    assert_mla_close(*kdbench.verify_mla(*case.arguments(place), mode=mode), case.expected())


def test_a_table_much_wider_than_the_requests(place, mode):
    # Work and workspace are sized by the table: with heads enough for several chunks of keys and values.
    case = mla_case(
        np.random.default_rng(60), seq_lens=[70, 9], counts=[3, 2], nodes=3, heads=17, page_size=64, kind="tree"
    )
    narrow = [to_numpy(a) for a in kdbench.verify_mla(*case.arguments(place), mode=mode)]
    table = case.attention.block_table
    wide = np.full((2, 250), -1, np.int32)
    wide[:, : table.shape[1]] = table
    out, lse = kdbench.verify_mla(*case.replace(block_table=wide).arguments(place), mode=mode)
    assert_mla_close(out, lse, case.expected())
    # Slots are split otherwise, but a request's few tiles give the same answer nearly to the bit.
    np.testing.assert_allclose(to_numpy(lse), narrow[1], atol=1e-4)


def test_a_long_prefix_and_the_largest_tree(place, mode):
    rng = np.random.default_rng(61)
    case = mla_case(rng, seq_lens=[3000, 5], counts=[4, 4], nodes=4, heads=2, page_size=64, kind="tree")
    assert_mla_close(*kdbench.verify_mla(*case.arguments(place), mode=mode), case.expected())
    case = mla_case(rng, seq_lens=[70], counts=[1025], nodes=1025, heads=1, page_size=64, kind="tree")
    assert_mla_close(*kdbench.verify_mla(*case.arguments(place), mode=mode), case.expected())


def test_the_modes_equal_each_other(place):
    case = mla_case(
        np.random.default_rng(62), seq_lens=[200, 31], counts=[40, 33], nodes=40, heads=3, page_size=16, kind="tree"
    )
    (absorb, absorb_lse), (mha, mha_lse) = (kdbench.verify_mla(*case.arguments(place), mode=mode) for mode in MODES)
    absorb, mha = (bf16_to_f32(to_numpy(out)).astype(float) for out in (absorb, mha))
    assert np.linalg.norm(absorb - mha) <= OUT_ERROR * np.linalg.norm(absorb)
    np.testing.assert_allclose(to_numpy(absorb_lse), to_numpy(mha_lse), atol=LSE_ERROR)
    assert np.array_equal(np.isneginf(to_numpy(absorb_lse)), np.isneginf(to_numpy(mha_lse)))


def test_absorb_is_verify_attn_between_two_projections(place):
    case = mla_case(np.random.default_rng(63), seq_lens=[50], counts=[9], nodes=9, heads=2, page_size=16, kind="tree")
    q_nope, q_pe, w_uk, w_uv, *others = case.arguments(lambda array: array)
    absorbed = f32_to_bf16(np.einsum("bnhd,hdr->bnhr", *(bf16_to_f32(a).astype(float) for a in (q_nope, w_uk))))
    latent, lse = kdbench.verify_attn(place(absorbed), place(q_pe), *map(place, others[:-1]), others[-1])
    latent = bf16_to_f32(to_numpy(latent)).astype(float)
    want = np.einsum("bnhr,hrd->bnhd", latent, bf16_to_f32(w_uv).astype(float))
    out, have_lse = kdbench.verify_mla(*case.arguments(place), mode="absorb")
    # Sums in another order may round an absorbed query to its other neighbour, and little more.
    have = bf16_to_f32(to_numpy(out)).astype(float)
    assert np.linalg.norm(have - want) <= 3e-3 * np.linalg.norm(want)
    np.testing.assert_allclose(to_numpy(have_lse), to_numpy(lse), atol=1e-3)


def test_an_empty_mask_row_alone_marks_a_pad(place, mode):
    case = mla_case(
        np.random.default_rng(64), seq_lens=[9, 30], counts=[6, 8], nodes=8, heads=2, page_size=16, kind="tree"
    )
    # Without num_nodes the slots of all N nodes must stand in the block table.
    case.attention.block_table[case.attention.block_table < 0] = 0
    out, lse = kdbench.verify_mla(*case.replace(num_nodes=None).arguments(place), mode=mode)
    assert_mla_close(out, lse, case.expected())
    assert np.isneginf(to_numpy(lse)[0, 6:]).all()


def test_garbage_that_nobody_sees_changes_no_bit(place, mode):
    case = mla_case(
        np.random.default_rng(65), seq_lens=[33, 7], counts=[9, 4], nodes=9, heads=2, page_size=16, kind="arbitrary"
    )
    expected = [to_numpy(a) for a in kdbench.verify_mla(*case.arguments(place), mode=mode)]
    cache = case.attention.kv_cache
    unseen = cache == NAN_BF16
    assert unseen.any()
    other = case.replace(kv_cache=np.where(unseen, np.uint16(0x4000), cache))
    other.attention.q_nope[1, 4:] = 0x3F80
    for have, want in zip(kdbench.verify_mla(*other.arguments(place), mode=mode), expected, strict=True):
        assert np.array_equal(to_numpy(have), want)


def test_mask_bits_of_pads_count_for_nothing(place, mode):
    case = mla_case(np.random.default_rng(66), seq_lens=[12], counts=[5], nodes=40, heads=2, page_size=16, kind="tree")
    wild = case.attention.tree_mask.copy()
    wild[:, :, 0] |= np.uint64(~0 << 5 & 2**64 - 1)
    wild[:, 5:] = 2**64 - 1
    assert_mla_close(*kdbench.verify_mla(*case.replace(tree_mask=wild).arguments(place), mode=mode), case.expected())


def test_the_same_inputs_give_the_same_bits(place, mode):
    case = mla_case(
        np.random.default_rng(67), seq_lens=[300, 90], counts=[33, 20], nodes=33, heads=4, page_size=16, kind="tree"
    )
    first = [to_numpy(a) for a in kdbench.verify_mla(*case.arguments(place), mode=mode)]
    for _ in range(3):
        for have, want in zip(kdbench.verify_mla(*case.arguments(place), mode=mode), first, strict=True):
            assert np.array_equal(to_numpy(have), want)


def test_large_scores_do_not_overflow(place, mode):
    case = mla_case(np.random.default_rng(68), seq_lens=[50], counts=[3], nodes=3, heads=2, page_size=16, kind="tree")
    case.attention.q_nope[:] = f32_to_bf16(np.random.default_rng(69).standard_normal(case.attention.q_nope.shape) * 90)
    out, lse = kdbench.verify_mla(*case.arguments(place), mode=mode)
    want_out, want_lse = case.expected()
    assert want_lse.max() > 200
    # Scores of hundreds leave few bits behind the point: the bounds are relative here.
    np.testing.assert_allclose(to_numpy(lse), want_lse, rtol=5e-3)
    assert np.isfinite(bf16_to_f32(to_numpy(out))).all()
    assert np.linalg.norm(bf16_to_f32(to_numpy(out)) - want_out) <= 0.2 * np.linalg.norm(want_out)


def test_auto_is_the_mode_of_the_plan(place, backend):
    case = mla_case(np.random.default_rng(70), seq_lens=[100], counts=[9], nodes=9, heads=2, page_size=16, kind="chain")
    sizes = {"batch": 1, "max_nodes": 9, "num_qo_heads": 2, "page_size": 16}
    pages = case.attention.block_table.shape[1]
    plan = kdbench.verify_mla_plan(**sizes, max_pages_per_seq=pages, backend=backend)
    auto = kdbench.verify_mla(*case.arguments(place))
    chosen = kdbench.verify_mla(*case.arguments(place), mode=plan.mode)
    assert all(np.array_equal(to_numpy(a), to_numpy(b)) for a, b in zip(auto, chosen, strict=True))


def test_a_prepared_call_writes_into_out(place, mode):
    case = mla_case(np.random.default_rng(71), seq_lens=[4], counts=[2], nodes=2, heads=1, page_size=16, kind="tree")
    pair = kdbench.verify_mla(*case.arguments(place), mode=mode)
    pair[0][:] = 0
    again = kdbench.verify_mla(*case.arguments(place), mode=mode, out=pair)
    assert (again[0] is pair[0], again[1] is pair[1]) == (True, True)
    assert_mla_close(*pair, case.expected())
    call = kernels.prepare_verify_mla(*case.arguments(place), mode=mode)
    call.launch()
    assert np.array_equal(to_numpy(call.outputs["out"]), to_numpy(pair[0]))


@pytest.mark.gpu
def test_a_captured_graph_reads_lengths_on_the_device(mode):
    import cupy

    case = mla_case(
        np.random.default_rng(72), seq_lens=[40, 9], counts=[5, 7], nodes=7, heads=2, page_size=16, kind="tree"
    )
    call = kernels.prepare_verify_mla(*case.arguments(cupy.asarray), mode=mode)
    stream = cupy.cuda.Stream(non_blocking=True)
    # Inputs were copied on the default stream, which this one does not wait for.
    cupy.cuda.Device().synchronize()
    call.set_stream(stream.ptr)
    with stream:
        call.launch()
        stream.begin_capture()
        call.launch()
        graph = stream.end_capture()
    graph.launch(stream)
    stream.synchronize()
    assert_mla_close(call.outputs["out"], call.outputs["lse"], case.expected())
