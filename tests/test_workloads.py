# SPDX-License-Identifier: Apache-2.0
"""The registry, what workloads cost, and that wrong outputs are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kdbench import (
    golden,
    native,
    reference,
    sampled_attention,
    verify_mla_workloads,
    workload_inputs,
    workloads,
)
from kdbench.errors import KdbenchError
from kdbench.timing import Subject, poison


def test_the_list_covers_what_is_promised() -> None:
    def shapes(kernel: str, key: str) -> set[Any]:
        return {workload.shape[key] for workload in workloads.every() if workload.kernel == kernel}

    assert shapes("tree_build", "budget") >= {15, 63, 64, 255, 256, 1023, 1024}
    assert shapes("tree_build", "horizon") == {7, 15}
    assert shapes("tree_build", "batch") == {1, 8, 32, 64}
    assert shapes("tree_build", "form") == {"sharp", "flat", "tied"}
    assert shapes("tree_accept", "accepted") == {"full", "half", "none"}
    assert shapes("tree_accept", "form") == {"bushy", "chain"}
    assert shapes("verify_attn", "heads") == {8, 16, 64, 128}
    assert {min(shapes("verify_attn", "nodes")), max(shapes("verify_attn", "nodes"))} == {1, 1025}
    assert {min(shapes("verify_attn", "prefix")), max(shapes("verify_attn", "prefix"))} == {0, 65536}
    assert shapes("verify_attn", "page_size") == {1, 64}
    assert shapes("kv_compact", "page_size") == {1, 64}
    assert {(s["layers"], s["batch"]) for s in (w.shape for w in workloads.every() if w.kernel == "kv_compact")} == {
        (layers, batch) for layers in (1, 61) for batch in (1, 32)
    }
    assert len([name for name in workloads.names("verify_attn") if workloads.get(name).shape.get("tail_only")]) == 5
    assert shapes("merge_attn_states", "heads") == {8, 16, 64, 128}
    quick = [workload for workload in workloads.every() if "quick" in workload.tags]
    assert 8 <= len(quick) <= 12
    assert {workload.kernel for workload in quick} == set(workloads.KERNELS)
    assert all("cpu" in workload.backends for workload in quick)


def test_flatness_and_pages_can_be_read_from_twins() -> None:
    """Each budget is there at batch 1 and 64, and each workload of page size 1 sized for a GPU has a twin of 64."""
    for budget in (63, 64, 255, 256, 1023, 1024):
        batches: dict[Any, set[int]] = {}
        for workload in workloads.every():
            if workload.kernel == "tree_build" and workload.shape["budget"] == budget:
                key = tuple(workload.shape[name] for name in ("horizon", "topk", "form"))
                batches.setdefault(key, set()).add(workload.shape["batch"])
        assert any({1, 64} <= found for found in batches.values()), budget
        accepted = {
            w.shape["batch"] for w in workloads.every() if w.shape.get("nodes") == budget + 1 and "accepted" in w.shape
        }
        assert {1, 64} <= accepted
    names = {workload.name for workload in workloads.every()}
    flat = [w.name for w in workloads.every() if w.shape.get("page_size") == 1 and "hashed" in w.shape]
    assert len(flat) == 9
    assert {name.replace("ps1", "ps64") for name in flat} <= names


def test_peak_workloads_are_large_and_made_on_the_device() -> None:
    peak = [workload for workload in workloads.every() if "peak" in workload.tags]
    assert {workload.name for workload in peak} >= {"h8-n8-p64k-b32-ps64-even", "r960-k64-bf16"}
    for workload in workloads.every():
        assert ("peak" in workload.tags) == (workload.bytes_moved > 300e6 and "hashed" in workload.shape), workload.name
    assert {workload.backends for workload in peak} == {("cuda",)}


def test_names_are_selected_by_backend_and_tag() -> None:
    everything = workloads.names("verify_attn")
    on_cpu = workloads.names("verify_attn", "cpu")
    assert set(workloads.names("verify_attn", "cpu", "quick")) < set(on_cpu) < set(everything)
    assert workloads.names("verify_attn", "cuda") == everything


def test_an_unknown_name_is_one_clear_sentence() -> None:
    with pytest.raises(KdbenchError, match=r"no workload 'b64-d7-k17-n1-sharp'.*b64-d7-k16-n1-sharp"):
        workloads.get("b64-d7-k17-n1-sharp")


@pytest.mark.parametrize("workload", workloads.every(), ids=lambda workload: workload.name)
def test_pinned_costs_are_the_computed_ones(workload: workloads.Workload) -> None:
    cost = workload.computed_cost()
    assert (workload.bytes_moved, workload.flops) == (cost.bytes_moved, cost.flops)
    assert cost.bytes_moved > 0


def test_attention_costs_count_useful_work_only() -> None:
    workload = workloads.get("h128-n16-p0-b32-ps64")
    sizes = workload_inputs.attention_sizes(workload.seed, batch=32, nodes=16, prefix=0, horizon=7)
    seen = sum(sum(int(word).bit_count() for word in row) for request in sizes["tree_mask"].tolist() for row in request)
    assert workload.flops == 2 * 128 * (576 + 512) * seen
    dense = 2 * 128 * (576 + 512) * int((sizes["num_nodes"].astype(np.int64) ** 2).sum())
    assert workload.flops < dense / 2
    assert workload.bytes_moved == int(sizes["num_nodes"].sum()) * (1152 + 128 * 2176)


def test_compaction_moves_each_row_once_in_and_once_out() -> None:
    workload = workloads.get("l61-d15-n32-ps64")
    sizes = workload_inputs.accepted_paths(workload.seed, batch=32, horizon=15, nodes=65, prefix=60)
    lengths = (sizes["accepted_path"] >= 0).sum(axis=1)
    assert lengths[0] == 16
    assert len(set(lengths.tolist())) > 3
    # Every node but the root stands beyond the horizon, and so moves.
    moves = int((lengths - 1).sum())
    assert workload.bytes_moved == 61 * moves * 2 * 1152 + moves * 8 + 32 * (16 * 4 + 8)
    assert workloads.get("l1-d15-n1-ps64").bytes_moved == 15 * (2 * 1152 + 8) + 16 * 4 + 8


@pytest.mark.usefixtures("cpu_library")
def test_what_is_changed_in_place_is_checked_and_not_poisoned() -> None:
    subject = Subject(workloads.get("l1-d15-n1-ps64"), "cpu")
    before = subject.inputs["kv_cache"].copy()
    poison(subject.call)
    np.testing.assert_array_equal(subject.inputs["kv_cache"], before)
    subject.verify()
    assert not np.array_equal(subject.inputs["kv_cache"], before)
    subject.verify()  # the same rows move again
    subject.inputs["kv_cache"][0, 0, 0, 0] ^= 1
    with pytest.raises(golden.DigestMismatch):
        subject.check(subject.call)
    assert subject.touched_bytes < before.nbytes


def test_sampled_rows_are_the_oracle_s() -> None:
    workload = workloads.get("h8-n16-p128-b2-ps1")
    arrays = workload.inputs()
    rows = sampled_attention.sample_rows(workload.seed, arrays["num_nodes"], 8)
    assert len({tuple(row) for row in rows.tolist()}) == len(rows) == 32
    for request, count in enumerate(arrays["num_nodes"].tolist()):
        assert {0, count - 1} <= set(rows[rows[:, 0] == request, 1].tolist())
    out, lse = sampled_attention.attend(arrays, rows, workloads.SOFTMAX_SCALE)
    whole, whole_lse = reference.verify_attn(**arrays, softmax_scale=workloads.SOFTMAX_SCALE)
    b, i, h = rows.T
    np.testing.assert_allclose(out, whole[b, i, h], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(lse, whole_lse[b, i, h], rtol=1e-13)


def test_a_tail_costs_and_sees_no_prefix() -> None:
    workload = workloads.get("h8-n16-p128-b2-ps1-tail")
    arrays = workload.inputs()
    bits = sum(int(word).bit_count() for word in arrays["tree_mask"].ravel())
    nodes = int(arrays["num_nodes"].sum())
    assert workload.flops == 2 * 8 * (576 + 512) * bits
    assert workload.bytes_moved == nodes * (1152 + 8 * 2176)
    rows = sampled_attention.sample_rows(workload.seed, arrays["num_nodes"], 8)
    out, lse = sampled_attention.attend(arrays, rows, workloads.SOFTMAX_SCALE, tail_only=True)
    whole, whole_lse = reference.verify_attn(**arrays, softmax_scale=workloads.SOFTMAX_SCALE, tail_only=True)
    b, i, h = rows.T
    np.testing.assert_allclose(out, whole[b, i, h], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(lse, whole_lse[b, i, h], rtol=1e-13)


def test_a_merge_reads_two_sides_and_writes_one() -> None:
    workload = workloads.get("h8-n16-b2-merge")
    arrays = workload.inputs()
    moved = sum(array.nbytes for array in arrays.values())
    assert (workload.bytes_moved, workload.flops) == (moved + moved // 2, 0)
    assert np.isneginf(arrays["lse_b"]).any()
    assert not np.isneginf(arrays["lse_a"]).any()


def test_sampled_rows_of_mla_are_the_oracle_s() -> None:
    workload = workloads.get("h4-n65-p128-b2-auto")
    arrays = workload.inputs()
    rows = sampled_attention.sample_rows(workload.seed, arrays["num_nodes"], 4)
    out, lse = verify_mla_workloads.attend(arrays, rows, workloads.SOFTMAX_SCALE)
    whole, whole_lse = reference.verify_mla(**arrays, softmax_scale=workloads.SOFTMAX_SCALE)
    b, i, h = rows.T
    np.testing.assert_allclose(out, whole[b, i, h], rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(lse, whole_lse[b, i, h], rtol=1e-13)


def test_mla_is_measured_both_ways_on_the_same_inputs() -> None:
    ways: dict[tuple[Any, ...], dict[str, workloads.Workload]] = {}
    for workload in map(workloads.get, workloads.names("verify_mla", "cuda")):
        sizes = tuple(workload.shape[key] for key in ("heads", "nodes", "prefix", "batch"))
        ways.setdefault(sizes, {})[workload.shape["mode"]] = workload
    pairs = [by_mode for by_mode in ways.values() if "auto" not in by_mode]
    assert {(nodes, prefix) for _, nodes, prefix, batch in ways if batch == 1} >= {
        (nodes, prefix) for nodes in (64, 128, 192, 256, 512, 1025) for prefix in (1024, 4096)
    }
    for by_mode in pairs:
        assert set(by_mode) == {"absorb", "mha"}
        assert by_mode["absorb"].golden_entry["inputs"] == by_mode["mha"].golden_entry["inputs"]
        assert by_mode["absorb"].golden_entry["outputs"] == by_mode["mha"].golden_entry["outputs"]


def test_mla_costs_count_the_mode_s_own_work() -> None:
    absorb, mha = (workloads.get(f"h4-n16-p128-b1-{mode}") for mode in ("absorb", "mha"))
    bits = sum(int(word).bit_count() for word in absorb.inputs()["tree_mask"].ravel())
    visible = 16 * 128 + bits
    assert absorb.flops == 4 * (16 * 2 * 2 * 512 * 128 + visible * 2 * (576 + 512))
    assert mha.flops == 4 * ((128 + 16) * 2 * 2 * 512 * 128 + visible * 2 * (192 + 128))
    assert absorb.bytes_moved == mha.bytes_moved == 2 * (144 * 576 + 4 * 512 * 256 + 16 * 4 * (192 + 128))


def test_projections_are_orthogonal() -> None:
    signs = golden.signs()
    np.testing.assert_array_equal(signs[:128].T @ signs[:128], 128 * np.eye(golden.NUM_PROJECTIONS))
    np.testing.assert_array_equal(signs.T @ signs, 512 * np.eye(golden.NUM_PROJECTIONS))


@pytest.mark.parametrize("kernel", workloads.KERNELS)
@pytest.mark.usefixtures("cpu_library")
def test_an_output_that_was_never_written_is_refused(kernel: str) -> None:
    subject = Subject(workloads.get(workloads.names(kernel, "cpu", "quick")[0]), "cpu")
    subject.verify()
    poison(subject.call)
    with pytest.raises(golden.DigestMismatch, match=f"{kernel} of workload {subject.workload.name}"):
        subject.check(subject.call)


@pytest.mark.usefixtures("cpu_library")
def test_slow_path_alone_is_no_mismatch() -> None:
    subject = Subject(workloads.get("b64-d7-k16-n1-sharp"), "cpu")
    subject.verify()
    outputs = dict(subject.call.outputs)
    outputs["status"] = outputs["status"] | np.int32(native.RequestStatus.SLOW_PATH)
    subject.workload.check(outputs)
    outputs["status"] = outputs["status"] | np.int32(native.RequestStatus.TRUNCATED | native.RequestStatus.NAN)
    with pytest.raises(golden.DigestMismatch):
        subject.workload.check(outputs)


@pytest.fixture
def attention() -> tuple[workloads.Workload, dict[str, np.ndarray]]:
    """A workload and the oracle's own outputs for it."""
    workload = workloads.get("h8-n16-p128-b2-ps1")
    arrays = workload.inputs()
    out, lse = reference.verify_attn(**arrays, softmax_scale=workloads.SOFTMAX_SCALE)
    words = np.ascontiguousarray(_bf16(out))
    return workload, {"out": words, "lse": lse.astype(np.float32), "status": np.zeros(2, np.int32)}


def _bf16(values: np.ndarray) -> np.ndarray:
    bits = values.astype(np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded >> 16).astype(np.uint16)


def test_rounding_to_bf16_passes(attention: tuple[workloads.Workload, dict[str, np.ndarray]]) -> None:
    workload, outputs = attention
    workload.check(outputs)


def _shift_lse(outputs: dict[str, np.ndarray]) -> None:
    outputs["lse"][:, 0] *= np.float32(1 / np.log(2))  # as if it were log2


def _causal_instead_of_tree(outputs: dict[str, np.ndarray]) -> None:
    outputs["out"][:] = np.roll(outputs["out"], 1, axis=2)


def _scale_down(outputs: dict[str, np.ndarray]) -> None:
    values = (outputs["out"].astype(np.uint32) << 16).view(np.float32)
    outputs["out"][:] = _bf16(values * 0.99)


def _nan(outputs: dict[str, np.ndarray]) -> None:
    outputs["out"][0, 3, 5, 200] = 0x7FC0


def _pad(outputs: dict[str, np.ndarray]) -> None:
    outputs["out"][1, 15] = 0x3F80


def _status(outputs: dict[str, np.ndarray]) -> None:
    outputs["status"][1] = native.RequestStatus.BAD_PAGE


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_shift_lse, "lse is off"),
        (_causal_instead_of_tree, "out is off"),
        (_scale_down, "out is off|norm of out"),
        (_nan, "NaN or infinity"),
        (_pad, "pads are not"),
        (_status, "request status"),
    ],
)
def test_wrong_attention_is_refused(
    attention: tuple[workloads.Workload, dict[str, np.ndarray]], spoil: Any, message: str
) -> None:
    workload, outputs = attention
    spoil(outputs)
    with pytest.raises(golden.DigestMismatch, match=message):
        workload.check(outputs)


def test_wrong_topk_is_refused() -> None:
    workload = workloads.get("r7-k16-f32")
    answer = reference.draft_topk(workload.inputs()["logits"], 16)
    outputs = {"topk_log_probs": answer.log_probs, "topk_token_ids": answer.token_ids, "status": answer.status}
    workload.check(outputs)
    shifted = {**outputs, "topk_log_probs": outputs["topk_log_probs"] + np.float32(0.001)}
    with pytest.raises(golden.DigestMismatch, match="first log-prob of row"):
        workload.check(shifted)
    swapped = {**outputs, "topk_token_ids": outputs["topk_token_ids"][:, ::-1].copy()}
    with pytest.raises(golden.DigestMismatch, match="token ids"):
        workload.check(swapped)


def test_a_missing_golden_output_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = workloads.get("b64-d7-k16-n1-sharp")
    monkeypatch.setattr(golden, "load", dict)
    with pytest.raises(KdbenchError, match="has no golden output"):
        workload.check({})
