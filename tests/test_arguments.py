# SPDX-License-Identifier: Apache-2.0
"""Every wrong argument of a public call is InvalidArgument with one clear sentence."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from attention_cases import attention_case
from golden_vectors import G1
from mla_cases import mla_case

import kdbench
from kdbench import kernels, reference
from kdbench.errors import InvalidArgument

ARGUMENT_ERRORS = {
    "budget too large": (lambda a: a.update(budget=1025), "^tree_budget is 1025, outside 0 to 1024$"),
    "budget negative": (lambda a: a.update(budget=-1), "^tree_budget is -1, outside 0 to 1024$"),
    "budget not a number": (lambda a: a.update(budget="8"), "^tree_budget is '8', and an integer is expected$"),
    "horizon": (
        lambda a: a.update(log_probs=np.zeros((1, 32, 3), np.float32), ids=np.zeros((1, 32, 3), np.int32)),
        "^draft_horizon D is 32, outside 0 to 31$",
    ),
    "topk": (
        lambda a: a.update(log_probs=np.zeros((1, 3, 0), np.float32), ids=np.zeros((1, 3, 0), np.int32)),
        "^topk K is 0, outside 1 to 1024$",
    ),
    "dtype": (lambda a: a.update(log_probs=np.zeros((1, 3, 3))), "^topk_log_probs has dtype float64"),
    "rank": (lambda a: a.update(log_probs=np.zeros((3, 3), np.float32)), r"^topk_log_probs has shape \[3, 3\]"),
    "shape": (
        lambda a: a.update(ids=np.zeros((1, 3, 4), np.int32)),
        r"^topk_token_ids has shape \[1, 3, 4\], and \[B, D, K\] is expected with K = 3 from topk_log_probs$",
    ),
    "order": (
        lambda a: a.update(log_probs=np.asfortranarray(a["log_probs"])),
        "^topk_log_probs is not contiguous in row-major order",
    ),
    "no array": (lambda a: a.update(root=7), "^root_token_ids is a int, not a NumPy, CuPy or Torch array$"),
    "batch": (lambda a: a.update(lengths=np.zeros(2, np.int32)), "^seq_lens has shape .* with B = 1 from topk_log"),
    "rising": (
        lambda a: a.update(log_probs=a["log_probs"][:, :, ::-1].copy()),
        r"^topk_log_probs\[0, 0\] is not descending: -2.3\d* is before -1.2",
    ),
    "repeated": (
        lambda a: a.update(ids=np.full((1, 3, 3), 5, np.int32)),
        r"^topk_token_ids\[0, 0\] holds token 5 more than once$",
    ),
    "backend": (lambda a: a.update(backend="gpu"), "^backend is 'gpu', and 'cpu' or 'cuda' is expected$"),
    "memory": (
        lambda a: a.update(backend="cuda"),
        "^backend 'cuda' needs arrays in device memory, and these are on cpu$",
    ),
    "stream": (lambda a: a.update(stream="main"), "^stream must be None, an integer handle"),
    "out": (
        lambda a: a.update(out=reference.tree_build(*G1.inputs()[:4], 6)),
        "^out is a tree of tree_budget 6 and draft_horizon 3, and 7 and 3 are expected$",
    ),
    "out's batch": (
        lambda a: a.update(out=reference.tree_build(*(np.repeat(x, 2, axis=0) for x in G1.inputs()[:4]), 7)),
        r"^token_ids has shape \[2, 8\], and \[1, 8\] is expected$",
    ),
    "out's type": (lambda a: a.update(out=3), "^out is a int, and DraftTree is expected$"),
    "out's fields": (
        lambda a: a.update(out=dataclasses.replace(reference.tree_build(*G1.inputs()), parents=None)),
        "^out.parents is None, and an array to write into is expected$",
    ),
    "no expected_lengths": (
        lambda a: a.update(out=reference.tree_build(*G1.inputs()), expected_lengths=True),
        "^expected_lengths is wanted, and out has none",
    ),
    "no dfs_order": (
        lambda a: a.update(out=reference.tree_build(*G1.inputs()), dfs_order=True),
        "^dfs_order is wanted, and out has none",
    ),
}


@pytest.mark.parametrize("name", ARGUMENT_ERRORS)
def test_tree_build_argument_errors(cpu_library, name):
    change, sentence = ARGUMENT_ERRORS[name]
    log_probs, ids, root, lengths, budget = G1.inputs()
    a = {"log_probs": log_probs, "ids": ids, "root": root, "lengths": lengths, "budget": budget}
    change(a)
    positional = [a.pop(key) for key in ("log_probs", "ids", "root", "lengths", "budget")]
    with pytest.raises(InvalidArgument, match=sentence) as caught:
        kdbench.tree_build(*positional, **a)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("low", [-np.inf, np.nextafter(np.float32(-64), np.float32(-65))])
def test_columns_below_the_floor_may_repeat_a_token(cpu_library, low):
    log_probs = np.array([[[-0.1, low, low]]], np.float32)
    ids = np.zeros((1, 1, 3), np.int32)
    zero = np.zeros(1, np.int32)
    assert kdbench.tree_build(log_probs, ids, zero, zero, 2).num_nodes.tolist() == [2]


def test_columns_at_the_floor_may_not_repeat_a_token(cpu_library):
    log_probs = np.array([[[-0.1, -64, -64]]], np.float32)
    zero = np.zeros(1, np.int32)
    with pytest.raises(InvalidArgument, match=r"^topk_token_ids\[0, 0\] holds token 5 more than once$"):
        kdbench.tree_build(log_probs, np.array([[[4, 5, 5]]], np.int32), zero, zero, 2)
    assert kdbench.tree_build(log_probs, np.array([[[4, 5, 6]]], np.int32), zero, zero, 3).num_nodes.tolist() == [4]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: {"target": np.zeros((1, 9), np.int32)}, r"^target_tokens has shape \[1, 9\]"),
        (lambda t: {"target": np.zeros((1, 8), np.int64)}, "^target_tokens has dtype int64, and int32 is expected$"),
        (lambda t: {"tree": dataclasses.replace(t, draft_horizon=32)}, "^draft_horizon is 32, outside 0 to 31$"),
        (lambda t: {"tree": dataclasses.replace(t, num_nodes=np.zeros(2, np.int32))}, r"^num_nodes has shape \[2\]"),
        (
            lambda t: {
                "tree": dataclasses.replace(
                    t, token_ids=np.zeros((1, 0), np.int32), parents=np.zeros((1, 0), np.int32)
                ),
                "target": np.zeros((1, 0), np.int32),
            },
            "^the number of nodes N is 0, outside 1 to 1025$",
        ),
        (
            lambda t: {"out": reference.tree_accept(dataclasses.replace(t, draft_horizon=4), np.zeros((1, 8), int))},
            r"^accepted_path has shape \[1, 5\], and \[1, 4\] is expected$",
        ),
        (lambda t: {"tree": None}, "^tree is a NoneType, and DraftTree is expected$"),
        (lambda t: {"tree": dataclasses.replace(t, parents=None)}, "^parents is a NoneType, not a NumPy"),
        (lambda t: {"out": 5}, "^out is a int, and Acceptance is expected$"),
        (
            lambda t: {
                "out": dataclasses.replace(reference.tree_accept(t, np.zeros((1, 8), np.int32)), bonus_token=None)
            },
            "^out.bonus_token is None, and an array to write into is expected$",
        ),
        (lambda t: {"lengths": np.zeros(2, np.int32)}, r"^seq_lens has shape \[2\], and \[B\] is expected with B = 1"),
        (
            lambda t: {
                "lengths": np.zeros(1, np.int32),
                "out": reference.tree_accept(t, np.zeros((1, 8), np.int32)),
            },
            "^seq_lens are given, and out has no source_slots: both or neither are expected$",
        ),
        (
            lambda t: {"out": reference.tree_accept(t, np.zeros((1, 8), np.int32), np.zeros(1, np.int32))},
            "^out has source_slots, and no seq_lens are given: both or neither are expected$",
        ),
    ],
)
def test_tree_accept_argument_errors(cpu_library, change, sentence):
    tree = reference.tree_build(*G1.inputs())
    changed = change(tree)
    with pytest.raises(InvalidArgument, match=sentence):
        kdbench.tree_accept(
            changed.get("tree", tree),
            changed.get("target", np.zeros((1, 8), np.int32)),
            changed.get("lengths"),
            out=changed.get("out"),
        )


@pytest.mark.parametrize(
    ("index", "value", "sentence"),
    [
        (0, np.zeros((1, 2, 1, 511), np.uint16), r"^q_nope has shape .* \[B, N, H, 512\] is expected$"),
        (0, np.zeros((1, 2, 1, 512), np.float32), "^q_nope has dtype float32, and bfloat16 or uint16 is expected$"),
        (0, np.zeros((1, 2, 129, 512), np.uint16), "^q_pe has shape .* with H = 129 from q_nope$"),
        (1, np.zeros((1, 2, 1, 65), np.uint16), r"^q_pe has shape .* \[B, N, H, 64\] is expected$"),
        (2, np.zeros((3, 16, 512), np.uint16), r"^kv_cache has shape .* \[num_pages, page_size, 576\] is expected$"),
        (2, np.zeros((0, 16, 576), np.uint16), "^num_pages is 0, outside 1 to"),
        (2, np.zeros((3, 0, 576), np.uint16), "^page_size is 0, outside 1 to"),
        (3, np.zeros((1, 0), np.int32), "^max_pages_per_seq is 0, outside 1 to"),
        (3, np.zeros((1, 2), np.int64), "^block_table has dtype int64"),
        (5, np.zeros((1, 2, 2), np.uint64), r"^tree_mask has shape \[1, 2, 2\], and \[B, N, 1\] is expected$"),
        (5, np.zeros((1, 2, 1), np.uint32), "^tree_mask has dtype uint32, and uint64 or int64 is expected$"),
        (6, np.zeros(2, np.int32), r"^num_nodes has shape \[2\]"),
        (7, 0.0, "^softmax_scale is 0.0 as a float32, and a finite number above 0 is expected$"),
        (7, -1, "^softmax_scale is -1.0 as a float32"),
        (7, 1e300, "^softmax_scale is inf as a float32"),
        pytest.param(7, 10**400, "^softmax_scale is inf as a float32", id="beyond float64"),
        (7, 1e-50, "^softmax_scale is 0.0 as a float32"),
        (7, "a", "^softmax_scale is a str, and a number is expected$"),
        (7, None, "^softmax_scale is a NoneType, and a number is expected$"),
        (7, np.zeros(2), "^softmax_scale is a ndarray, and a number is expected$"),
        (7, float("nan"), "^softmax_scale is nan"),
        (7, float("inf"), "^softmax_scale is inf"),
    ],
)
def test_verify_attn_argument_errors(cpu_library, index, value, sentence):
    case = attention_case(
        np.random.default_rng(77), seq_lens=[4], counts=[2], nodes=2, heads=1, page_size=16, kind="tree"
    )
    arguments = list(case.arguments(lambda a: a))
    arguments[index] = value
    with pytest.raises(InvalidArgument, match=sentence):
        kdbench.verify_attn(*arguments)


@pytest.mark.parametrize(("value", "sentence"), [(2, "is 2, outside 0 to 1"), ("yes", "is 'yes', and an integer is")])
def test_tail_only_is_yes_or_no(cpu_library, value, sentence):
    case = attention_case(
        np.random.default_rng(80), seq_lens=[4], counts=[2], nodes=2, heads=1, page_size=16, kind="tree"
    )
    with pytest.raises(InvalidArgument, match=f"^tail_only {sentence}"):
        kdbench.verify_attn(*case.arguments(lambda a: a), tail_only=value)


@pytest.mark.parametrize(
    ("index", "value", "sentence"),
    [
        (0, np.zeros((1, 2, 1, 512), np.uint16), r"^q_nope has shape .* \[B, N, H, 128\] is expected$"),
        (1, np.zeros((1, 2, 1, 65), np.uint16), r"^q_pe has shape .* \[B, N, H, 64\] is expected$"),
        (2, np.zeros((1, 512, 128), np.uint16), r"^w_uk has shape .* \[H, 128, 512\] is expected"),
        (2, np.zeros((2, 128, 512), np.uint16), "^w_uk has shape .* with H = 1 from q_nope$"),
        (2, np.zeros((1, 128, 512), np.float32), "^w_uk has dtype float32, and bfloat16 or uint16 is expected$"),
        (3, np.zeros((1, 128, 512), np.uint16), r"^w_uv has shape .* \[H, 512, 128\] is expected"),
        (4, np.zeros((3, 16, 512), np.uint16), r"^kv_cache has shape .* \[num_pages, page_size, 576\] is expected$"),
        (5, np.zeros((1, 0), np.int32), "^max_pages_per_seq is 0, outside 1 to"),
        (7, np.zeros((1, 2, 2), np.uint64), r"^tree_mask has shape \[1, 2, 2\], and \[B, N, 1\] is expected$"),
        (8, np.zeros(2, np.int32), r"^num_nodes has shape \[2\]"),
        (9, 0.0, "^softmax_scale is 0.0 as a float32"),
    ],
)
def test_verify_mla_argument_errors(cpu_library, index, value, sentence):
    case = mla_case(np.random.default_rng(80), seq_lens=[4], counts=[2], nodes=2, heads=1, page_size=16, kind="tree")
    arguments = list(case.arguments(lambda a: a))
    arguments[index] = value
    with pytest.raises(InvalidArgument, match=sentence):
        kdbench.verify_mla(*arguments)


def test_verify_mla_output_and_mode_errors(cpu_library):
    case = mla_case(np.random.default_rng(81), seq_lens=[4], counts=[2], nodes=2, heads=1, page_size=16, kind="tree")
    arguments = case.arguments(lambda a: a)
    out, lse = kdbench.verify_mla(*arguments)
    with pytest.raises(InvalidArgument, match=r"^out has shape .*, and \[1, 2, 1, 128\] is expected$"):
        kdbench.verify_mla(*arguments, out=(np.zeros((1, 2, 1, 512), np.uint16), lse))
    with pytest.raises(InvalidArgument, match=r"^out is a ndarray, and a tuple \(out, lse\) is expected$"):
        kdbench.verify_mla(*arguments, out=out)
    with pytest.raises(InvalidArgument, match=r"^mode is 'mqa', and 'auto', 'absorb' or 'mha' is expected$"):
        kdbench.verify_mla(*arguments, mode="mqa")


@pytest.mark.parametrize("scale", [1, np.float64(1), np.array(1.0)])
def test_any_number_is_a_softmax_scale(cpu_library, scale):
    case = attention_case(
        np.random.default_rng(79), seq_lens=[4], counts=[2], nodes=2, heads=1, page_size=16, kind="tree"
    )
    arguments = case.arguments(lambda a: a)[:7]
    out, lse = kdbench.verify_attn(*arguments, scale)
    expected, expected_lse = kdbench.verify_attn(*arguments, 1.0)
    assert np.array_equal(out, expected)
    assert np.array_equal(lse, expected_lse)


def test_verify_attn_output_errors(cpu_library):
    case = attention_case(
        np.random.default_rng(78), seq_lens=[4], counts=[2], nodes=2, heads=1, page_size=16, kind="tree"
    )
    arguments = case.arguments(lambda a: a)
    out, lse = kdbench.verify_attn(*arguments)
    for wrong in (out, 5):
        with pytest.raises(InvalidArgument, match=r"^out is a (ndarray|int), and a tuple \(out, lse\) is expected$"):
            kdbench.verify_attn(*arguments, out=wrong)
    for wrong in ((), (out,), (out, lse, lse), (out, None)):
        with pytest.raises(InvalidArgument, match=r"^out is not a pair of arrays, and a tuple \(out, lse\) is"):
            kdbench.verify_attn(*arguments, out=wrong)
    with pytest.raises(InvalidArgument, match=r"^out has dtype float32, and uint16 is expected$"):
        kdbench.verify_attn(*arguments, out=(out.astype(np.float32), lse))
    with pytest.raises(InvalidArgument, match=r"^lse has shape \[1, 2\], and \[1, 2, 1\] is expected$"):
        kdbench.verify_attn(*arguments, out=(out, lse[..., 0].copy()))
    with pytest.raises(InvalidArgument, match=r"^status has shape \[2\], and \[1\] is expected$"):
        kdbench.verify_attn(*arguments, status=np.zeros(2, np.int32))
    lse.flags.writeable = False
    with pytest.raises(InvalidArgument, match=r"^lse is read-only, and the call writes to it$"):
        kdbench.verify_attn(*arguments, out=(out, lse))


@pytest.mark.parametrize(
    ("logits", "k", "sentence"),
    [
        (np.zeros((2, 5), np.float32), 6, "^k is 6, outside 1 to 5$"),
        (np.zeros((2, 5), np.float32), 0, "^k is 0, outside 1 to 5$"),
        (np.zeros((2, 2000), np.float32), 1025, "^k is 1025, outside 1 to 1024$"),
        (np.zeros((2, 0), np.float32), 1, "^vocab_size is 0, outside 1 to"),
        (np.zeros((2, 5)), 1, "^logits has dtype float64, and float32 or bfloat16 or uint16 is expected$"),
        (np.float32(1), 1, "^logits"),
    ],
)
def test_draft_topk_argument_errors(cpu_library, logits, k, sentence):
    with pytest.raises(InvalidArgument, match=sentence):
        kdbench.draft_topk(logits, k)


def test_draft_topk_output_errors(cpu_library):
    logits = np.zeros((2, 5), np.float32)
    with pytest.raises(InvalidArgument, match=r"^out is a tuple, and DraftTopk is expected$"):
        kdbench.draft_topk(logits, 2, out=())
    out = dataclasses.replace(kdbench.draft_topk(logits, 2), token_ids=None)
    with pytest.raises(InvalidArgument, match=r"^out.token_ids is None, and an array to write into is expected$"):
        kdbench.draft_topk(logits, 2, out=out)


def test_a_library_of_another_backend(cpu_library):
    with pytest.raises(InvalidArgument, match=r"^backend is 'cuda', but the library is a cpu one$"):
        kernels.prepare_draft_topk(np.zeros((1, 4), np.float32), 2, backend="cuda", library=cpu_library)
