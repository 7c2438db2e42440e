# SPDX-License-Identifier: Apache-2.0
"""What the public calls share: outputs, streams, prepared calls, Torch, and CPU against CUDA."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tree_cases
from attention_cases import assert_close, attention_case
from golden_vectors import G1, G1_ACCEPTS
from tree_cases import on_backend

import kdbench
from kdbench import kernels, native, reference
from kdbench.arrays import f32_to_bf16, to_numpy
from kdbench.errors import KernelError
from kdbench.tree import DraftTree


def build(place, arguments, budget, **options) -> DraftTree:
    return kdbench.tree_build(*map(place, arguments), budget, **options)


class TestOutputsAndStreams:
    def test_results_are_written_into_out(self, place):
        *arguments, budget = G1.inputs()
        tree = build(place, arguments, budget, dfs_order=True)
        expected = tree.to_numpy()
        for array in tree.arrays().values():
            array[:] = 3
        assert build(place, arguments, budget, out=tree) is tree
        tree_cases.assert_same_tree(tree, expected)
        target = place(np.array([G1_ACCEPTS[0][0]], np.int32))
        answer = kdbench.tree_accept(tree, target)
        answer.accepted_path[:] = 9
        assert kdbench.tree_accept(tree, target, out=answer) is answer
        assert to_numpy(answer.accepted_path).tolist() == [G1_ACCEPTS[0][1]]
        logits = place(np.arange(8, dtype=np.float32).reshape(1, 8))
        topk = kdbench.draft_topk(logits, 2)
        topk.token_ids[:] = 0
        assert kdbench.draft_topk(logits, 2, out=topk) is topk
        assert to_numpy(topk.token_ids).tolist() == [[7, 6]]
        case = attention_case(
            np.random.default_rng(72), seq_lens=[4], counts=[2], nodes=2, heads=1, page_size=16, kind="tree"
        )
        pair = kdbench.verify_attn(*case.arguments(place))
        pair[0][:] = 0
        again = kdbench.verify_attn(*case.arguments(place), out=pair)
        assert (again[0] is pair[0], again[1] is pair[1]) == (True, True)
        assert_close(*pair, case.expected())

    def test_a_prepared_call_sees_new_values_at_every_launch(self, place):
        *arguments, budget = G1.inputs()
        placed = [place(array.copy()) for array in arguments]
        call = kernels.prepare_tree_build(*placed, budget)
        call.launch()
        placed[3][:] = 1000
        call.launch()
        assert to_numpy(call.outputs["positions"])[0].tolist() == [1000 + d for d in G1.expected["depths"]]
        assert set(call.outputs) == set(build(place, arguments, budget).arrays())
        assert call.symbol == "kdt_tree_build"
        call.set_stream(0)
        call.launch()
        call.params.topk = 0
        with pytest.raises(KernelError, match="topk"):
            call.launch()

    def test_ml_dtypes_give_ml_dtypes(self, cpu_library):
        ml_dtypes = pytest.importorskip("ml_dtypes")
        case = attention_case(
            np.random.default_rng(73), seq_lens=[4], counts=[2], nodes=2, heads=1, page_size=16, kind="tree"
        )
        named = [a.view(ml_dtypes.bfloat16) for a in (case.q_nope, case.q_pe, case.kv_cache)]
        out, lse = kdbench.verify_attn(*named, *case.arguments(lambda a: a)[3:])
        assert out.dtype == ml_dtypes.bfloat16
        assert_close(out, lse, case.expected())


class TestTorch:
    @pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
    def tensor(self, request):
        torch = pytest.importorskip("torch")
        if reason := native.available(request.param):
            pytest.skip(reason)
        if request.param == "cuda" and not torch.cuda.is_available():
            pytest.skip("this Torch is built without CUDA")

        def make(array: np.ndarray):
            if array.dtype == np.uint16:
                return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(request.param)
            return torch.from_numpy(array).to(request.param)

        return make

    def test_a_round_in_torch(self, tensor):
        torch = pytest.importorskip("torch")
        *arguments, budget = G1.inputs()
        tree = kdbench.tree_build(*map(tensor, arguments), budget, dfs_order=True)
        assert isinstance(tree.parents, torch.Tensor)
        assert tree.tree_mask.dtype == torch.uint64
        tree_cases.assert_same_tree(tree, reference.tree_build(*arguments, budget, dfs_order=True))
        target, path, *_ = G1_ACCEPTS[0]
        answer = kdbench.tree_accept(tree, tensor(np.array([target], np.int32)))
        assert answer.accepted_path.tolist() == [path]

    def test_attention_in_torch(self, tensor):
        torch = pytest.importorskip("torch")
        case = attention_case(
            np.random.default_rng(74), seq_lens=[40, 5], counts=[5, 7], nodes=7, heads=2, page_size=16, kind="tree"
        )
        arguments = list(case.arguments(tensor))
        out, lse = kdbench.verify_attn(*arguments)
        assert out.dtype == torch.bfloat16
        assert_close(out, lse, case.expected())
        arguments[5] = arguments[5].view(torch.int64)  # the dtype that Torch can compute masks in
        assert torch.equal(kdbench.verify_attn(*arguments)[1], lse)

    def test_bf16_logits_in_torch(self, tensor):
        logits = f32_to_bf16(np.random.default_rng(75).standard_normal((2, 100)))
        assert (
            kdbench.draft_topk(tensor(logits), 5).token_ids.tolist()
            == reference.draft_topk(logits, 5).token_ids.tolist()
        )


@pytest.mark.gpu
class TestCpuEqualsCuda:
    def test_trees_and_paths_in_every_bit(self, cpu_library):
        import cupy

        for seed in range(40):
            rng = np.random.default_rng(seed)
            shape = int(rng.integers(1, 20)), int(rng.integers(1, 16)), int(rng.integers(1, 40))
            arguments = tree_cases.candidates(rng, *shape, tree_cases.STYLES[seed % len(tree_cases.STYLES)])
            budget = int(rng.integers(0, 300))
            on_cpu = kdbench.tree_build(*arguments, budget, dfs_order=True)
            tree_cases.assert_same_tree(
                kdbench.tree_build(*map(cupy.asarray, arguments), budget, dfs_order=True),
                dataclasses.replace(on_cpu, status=on_cpu.status & ~int(native.RequestStatus.SLOW_PATH)),
            )
            target = tree_cases.targets(rng, on_cpu, 30)
            tree_cases.assert_same_acceptance(
                kdbench.tree_accept(on_backend(cupy.asarray, on_cpu), cupy.asarray(target)),
                kdbench.tree_accept(on_cpu, target),
            )

    def test_a_side_stream(self):
        import cupy

        *arguments, budget = G1.inputs()
        stream = cupy.cuda.Stream(non_blocking=True)
        placed = [cupy.asarray(array) for array in arguments]
        cupy.cuda.Device().synchronize()
        tree = kdbench.tree_build(*placed, budget, stream=stream, dfs_order=True)
        stream.synchronize()
        tree_cases.assert_same_tree(tree, reference.tree_build(*arguments, budget, dfs_order=True))

    def test_a_captured_graph_reads_lengths_on_the_device(self):
        import cupy

        case = attention_case(
            np.random.default_rng(76), seq_lens=[40, 9], counts=[5, 7], nodes=7, heads=2, page_size=16, kind="tree"
        )
        call = kernels.prepare_verify_attn(*case.arguments(cupy.asarray))
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
        assert_close(call.outputs["out"], call.outputs["lse"], case.expected())
