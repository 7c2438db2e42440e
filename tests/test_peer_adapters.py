# SPDX-License-Identifier: Apache-2.0
"""Every adapter against a model of the library that it speaks to: layouts, numbering, plans, merges."""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tree_cases import candidates as random_candidates

from kdbench import kernels, native, workloads
from kdbench.baselines import heap_builder
from kdbench.peers import (
    accept_peers,
    adapter,
    attention_engines,
    attention_peers,
    check,
    contest,
    eagle_layout,
    ours,
    topk_peers,
    torch_attention,
    tree_peers,
)
from kdbench.peers.inputs import Inputs
from kdbench.peers.libraries import Libraries

torch = pytest.importorskip("torch")
import fake_peers  # noqa: E402 - needs torch


class FakeLibraries(Libraries):
    """All libraries present, as models."""

    def missing(self, name: str) -> str | None:
        return None

    def module(self, name: str) -> Any:
        if name == "flashinfer_mla":
            return fake_peers.FlashInferModule()
        if name == "flashinfer":
            return types.SimpleNamespace(top_k=lambda x, k, sorted: torch.topk(x.float(), k))
        return types.SimpleNamespace(extend_attention_fwd=fake_peers.triton_extend)

    def from_file(self, name: str) -> bool:
        return True

    def version(self, name: str) -> str:
        return f"a model of {name}"


@pytest.fixture
def place(cpu_library: native.Library) -> Any:
    fake_peers.register()

    def placed(name: str, **shape: Any) -> Inputs:
        workload = workloads.get(name)
        changed = dataclasses.replace(workload, shape={**workload.shape, **shape})
        return Inputs.of(changed, "cpu", cpu_library, FakeLibraries())

    return placed


def error_of(peer: adapter.Peer, inputs: Inputs, wanted: adapter.HostOutputs) -> float:
    """How far it is from ``wanted``, run twice so that what stays from the first run would be seen."""
    prepared = peer.prepare(inputs)
    prepared.launch()
    return check.check(peer.scope, prepared.to_host(prepared.launch()), wanted, inputs)


def ours_of(scope: str, inputs: Inputs) -> adapter.HostOutputs:
    prepared = ours.Ours(inputs.workload.kernel, scope).prepare(inputs)
    return prepared.to_host(prepared.launch())


@pytest.mark.parametrize("peer", [tree_peers.SglangLink(), tree_peers.SglangSelectAndLink()], ids=lambda p: p.name)
@pytest.mark.parametrize("name", ["b15-d7-k8-n32-flat", "b64-d7-k16-n1-sharp", "b64-d15-k16-n32-tied"])
def test_sglang_builds_our_very_tree(place: Any, peer: adapter.Peer, name: str) -> None:
    inputs = place(name)
    assert error_of(peer, inputs, ours_of(adapter.LOG_PROBS_TO_TREE, inputs)) == 0


def test_a_tree_that_sglang_cannot_take_is_said_to_be_one(place: Any) -> None:
    with pytest.raises(adapter.Unsuitable, match="at most 1024, and N is 1025"):
        tree_peers.SglangLink().prepare(place("b1024-d7-k64-n1-flat"))
    with pytest.raises(adapter.Unsuitable, match="knows no pads"):
        tree_peers.SglangLink().prepare(place("b64-d7-k16-n1-sharp", budget=1000, topk=2))


@pytest.mark.parametrize("style", ["softmax", "bf16", "equal", "integers"])
def test_any_full_tree_survives_the_candidate_lists(style: str) -> None:
    fake_peers.register()
    rng = np.random.default_rng(5)
    for budget, horizon, topk in ((1, 1, 1), (2, 2, 3), (9, 4, 3), (40, 6, 8), (130, 9, 20)):
        given = random_candidates(rng, 3, horizon, topk, style)
        tree = heap_builder.build(*given, budget)
        assert tree.num_nodes.min() == budget + 1 or topk == 1
        made = eagle_layout.candidates(tree)
        best = np.sort(np.argsort(-made.scores, axis=1, kind="stable")[:, :budget], axis=1)
        np.testing.assert_array_equal(best, made.selected_index)
        nodes = budget + 1
        arrays = [torch.from_numpy(a) for a in (made.parent_list, made.selected_index, given[3].astype(np.int64))]
        mask, positions = torch.zeros(3, nodes, nodes, dtype=torch.bool), torch.zeros(3, nodes, dtype=torch.int64)
        links = torch.full((2, 3, nodes), -1)
        torch.ops.sgl_kernel.build_tree_kernel_efficient(
            *arrays, mask, positions, torch.zeros_like(positions), *links, made.topk, made.depth, nodes, 1
        )
        answer = eagle_layout.restored(positions.numpy(), links.numpy(), mask.numpy(), made.order)
        for name, array in answer.items():
            np.testing.assert_array_equal(array, getattr(tree, name), err_msg=name)


@pytest.mark.parametrize("peer", [accept_peers.SglangAccept(), accept_peers.PythonWalk()], ids=lambda p: p.name)
@pytest.mark.parametrize(
    "name", ["b7-d7-n1-full-chain", "b15-d15-n32-half-chain", "b64-d7-n8-none", "b256-d15-n32-half"]
)
def test_accepted_paths_are_ours(place: Any, peer: adapter.Peer, name: str) -> None:
    inputs = place(name)
    assert error_of(peer, inputs, ours_of(adapter.TARGETS_TO_PATH, inputs)) == 0


@pytest.mark.parametrize("peer", [topk_peers.TorchTopk(), topk_peers.FlashInferTopk()], ids=lambda p: p.name)
def test_topk_is_ours_up_to_ties(place: Any, peer: adapter.Peer) -> None:
    inputs = place("r7-k16-bf16")
    assert error_of(peer, inputs, ours_of(adapter.LOGITS_TO_TOPK, inputs)) < 1e-4


ENGINES = (attention_engines.FlashMla(), attention_engines.FlashInferMla(), attention_engines.VllmFa3())
PAGE_1, PAGE_64 = "h8-n16-p128-b2-ps1", "h16-n16-p256-b1-ps64"


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)
@pytest.mark.parametrize("name", [PAGE_1, PAGE_64])
def test_engines_without_a_mask_see_every_slot(place: Any, engine: attention_engines.Engine, name: str) -> None:
    inputs = place(name)
    if name == PAGE_1 and not engine.any_page:
        with pytest.raises(adapter.Unsuitable, match="pages of 64 slots, and this workload's have 1"):
            attention_peers.Unmasked(engine).prepare(inputs)
        return
    assert error_of(attention_peers.Unmasked(engine), inputs, contest._unmasked(inputs)) < 3e-3


@pytest.mark.parametrize("own_tail", [True, False], ids=["own tail", "ancestors"])
@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)
@pytest.mark.parametrize("name", [PAGE_1, PAGE_64])
def test_cascades_give_the_tree(
    place: Any, engine: attention_engines.Engine, name: str, own_tail: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "verify_attn", fake_peers.tail_of_ours)
    monkeypatch.setattr(kernels, "merge_attn_states", fake_peers.merge_of_ours, raising=False)
    inputs, peer = place(name), attention_peers.Cascade(engine, own_tail)
    assert peer.missing(inputs.libraries) is None
    if not engine.any_page and (name == PAGE_1 or not own_tail):
        with pytest.raises(adapter.Unsuitable):
            peer.prepare(inputs)
        return
    assert error_of(peer, inputs, ours_of(adapter.TREE_MASK, inputs)) < 6e-3


@pytest.mark.parametrize(
    "peer", [attention_peers.TritonExtend(), torch_attention.TorchAttention()], ids=lambda peer: peer.name
)
@pytest.mark.parametrize("name", [PAGE_1, PAGE_64, "h8-n8-p0-b4-ps1"])
def test_whole_kernels_give_the_tree(place: Any, peer: adapter.Peer, name: str) -> None:
    inputs = place(name)
    assert error_of(peer, inputs, ours_of(adapter.TREE_MASK, inputs)) < 3e-3


def test_the_installed_flashinfer_is_asked_through_its_wrapper(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.SimpleNamespace(BatchMLAPagedAttentionWrapper=fake_peers.FlashInferWrapper)
    monkeypatch.setattr(FakeLibraries, "from_file", lambda *_: False)
    monkeypatch.setattr(FakeLibraries, "module", lambda *_: package)
    engine = attention_engines.FlashInferMla()
    for name in (PAGE_1, PAGE_64):
        inputs = place(name)
        assert error_of(attention_peers.Unmasked(engine), inputs, contest._unmasked(inputs)) < 3e-3
        cascade = attention_peers.Cascade(engine, own_tail=False)
        assert error_of(cascade, inputs, ours_of(adapter.TREE_MASK, inputs)) < 6e-3


def test_cascades_say_why_they_cannot(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = attention_engines.VllmFa3()
    monkeypatch.delattr(kernels, "merge_attn_states", raising=False)
    peer = attention_peers.Cascade(engine, own_tail=True)
    assert peer.missing(FakeLibraries()) == "this kdbench has no merge_attn_states"
    with pytest.raises(adapter.Unsuitable, match="has no prefix"):
        attention_peers.Cascade(engine, own_tail=False).prepare(place("h8-n8-p0-b4-ps1"))
    with pytest.raises(adapter.Unsuitable, match="MiB in float32: it is for small shapes"):
        torch_attention.TorchAttention().prepare(place(PAGE_64, prefix=1 << 20, nodes=16))
    reason = Libraries().missing("vllm_fa3")
    assert reason is not None
    assert "vllm is not installed, nor named with --library vllm_fa3=" in reason


def test_a_file_that_is_no_library_is_a_reason(tmp_path: Path) -> None:
    broken = tmp_path / "common_ops.abi3.so"
    broken.write_bytes(b"nothing")
    reason = Libraries({"sgl_kernel": broken}).missing("sgl_kernel")
    assert reason is not None
    assert reason.startswith(f"{broken} cannot be loaded:")
    assert Libraries({"sgl_kernel": broken}).version("sgl_kernel").startswith("common_ops.abi3.so sha256:")
