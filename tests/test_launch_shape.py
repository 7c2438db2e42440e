# SPDX-License-Identifier: Apache-2.0
"""Launch shapes as the driver tells them, and empty kernels in these shapes."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from kdbench import gpu_clock, launch_shape, workloads
from kdbench.launch_shape import SMALLEST, LaunchShape
from kdbench.timing import Subject, measure


class Driver:
    """Answers for graphs whose nodes are given: a shape is a kernel node, None another."""

    def __init__(self, *nodes: LaunchShape | None) -> None:
        self.nodes = nodes
        self.destroyed: list[int] = []
        self.runtime = SimpleNamespace(
            streamBeginCapture=lambda stream: None,
            streamEndCapture=lambda stream: 7,
            graphDestroy=self.destroyed.append,
        )

    def call(self, name: str, *arguments: Any) -> None:
        getattr(self, name)(*arguments)

    def cuGraphGetNodes(self, graph: Any, nodes: Any, count: Any) -> None:
        assert graph.value == 7
        if nodes is None:
            count._obj.value = len(self.nodes)
        else:
            nodes[: len(self.nodes)] = range(100, 100 + len(self.nodes))

    def cuGraphNodeGetType(self, node: Any, kind: Any) -> None:
        kind._obj.value = 2 if self.nodes[node.value - 100] is None else 0

    def cuGraphKernelNodeGetParams_v2(self, node: Any, params: Any) -> None:
        shape, found = self.nodes[node.value - 100], params._obj
        assert shape is not None
        found.grid[:], found.block[:], found.shared_bytes = shape.grid, shape.block, shape.shared_bytes

    def cuGraphKernelNodeGetAttribute(self, node: Any, attribute: Any, value: Any) -> None:
        shape = self.nodes[node.value - 100]
        assert shape is not None
        assert attribute.value == 4
        # The driver says 0 of a launch without clusters.
        value._obj[:3] = (0, 0, 0) if shape.cluster == (1, 1, 1) else shape.cluster


def asked(monkeypatch: pytest.MonkeyPatch, *nodes: LaunchShape | None) -> tuple[Driver, Any]:
    driver = Driver(*nodes)
    monkeypatch.setattr(launch_shape, "_call", driver.call)
    monkeypatch.setitem(sys.modules, "cupy.cuda", SimpleNamespace(runtime=driver.runtime))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=driver.runtime)))
    return driver, SimpleNamespace(ptr=1)


def test_the_struct_is_laid_out_as_cuda_h_has_it() -> None:
    params = launch_shape._KernelNodeParams
    assert ctypes.sizeof(params) == 72
    assert [getattr(params, name).offset for name in ("grid", "block", "shared_bytes", "kernel_params", "ctx")] == [
        *(8, 20, 32, 40, 64)
    ]


def test_shapes_are_read_from_a_captured_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = (
        LaunchShape((132, 2, 1), (384, 1, 1), 200_000, (2, 1, 1)),
        LaunchShape((8, 1, 1), (64, 4, 1), 0, (1, 1, 1)),
    )
    driver, stream = asked(monkeypatch, *wanted)
    launched: list[int] = []
    assert launch_shape.launch_shapes(stream, lambda: launched.append(1)) == wanted
    assert launched == [1]
    assert driver.destroyed == [7]
    assert wanted[0].record() == {
        "grid": (132, 2, 1), "block": (384, 1, 1), "shared_bytes": 200_000, "cluster": (2, 1, 1)
    }  # fmt: skip


def test_a_call_that_also_copies_has_no_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, stream = asked(monkeypatch, SMALLEST, None)
    with pytest.raises(RuntimeError, match="not made of kernels alone"):
        launch_shape.launch_shapes(stream, lambda: None)
    assert driver.destroyed == [7]


def test_clusters_have_no_empty_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace())
    with pytest.raises(RuntimeError, match="clusters"):
        launch_shape.empty_launches([LaunchShape((8, 1, 1), (32, 1, 1), 0, (8, 1, 1))])


def test_no_driver_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(launch_shape.ctypes, "CDLL", missing)
    with pytest.raises(RuntimeError, match="the driver has no cuGraphGetNodes: libcuda"):
        launch_shape._call("cuGraphGetNodes")


@pytest.mark.gpu
def test_a_gpu_tells_the_shape_of_a_kernel() -> None:
    cupy = pytest.importorskip("cupy")
    stream = cupy.cuda.Stream(non_blocking=True)
    wanted = LaunchShape((17, 3, 1), (96, 2, 1), 100_000, (1, 1, 1))
    with stream:
        (launch,) = launch_shape.empty_launches([wanted])
        launch()
        assert launch_shape.launch_shapes(stream, launch) == (wanted,)
    notes: list[str] = []
    empty = gpu_clock._empty_slope(stream, (wanted,), notes)
    assert notes == []
    assert empty is not None
    assert 1e-7 < empty < 2e-5


@pytest.mark.gpu
def test_a_measurement_has_its_empty_launch() -> None:
    pytest.importorskip("cupy")
    found = measure(Subject(workloads.get("b64-d7-k16-n1-sharp"), "cuda"), "hot", 3)
    assert len(found.launches) >= 1
    assert found.empty_launch_s is not None, found.notes
    assert 0 < found.empty_launch_s < min(found.samples)
