# SPDX-License-Identifier: Apache-2.0
"""Of what kernels a call consists: grid, block and shared memory of each, read from a graph that captured it.

A kernel that is a chain of dependent steps has no floor in bytes or FLOPs. What it costs beyond an empty kernel of the
same launch shape is its own doing; so that shape has to be known, and only the driver can tell.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

_EMPTY_KERNEL = 'extern "C" __global__ void kdbench_empty() {}'
# Dynamic shared memory that a kernel gets without asking for more.
_SHARED_BY_DEFAULT = 48 << 10
_KERNEL_NODE = 0
_CLUSTER_DIMENSION = 4
_ATTRIBUTE_BYTES = 64


@dataclass(frozen=True)
class LaunchShape:
    """One kernel launch.

    Attributes:
        grid: blocks in x, y, z.
        block: threads of a block in x, y, z.
        shared_bytes: dynamic shared memory of a block.
        cluster: blocks of a cluster in x, y, z; (1, 1, 1) for a launch without clusters.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    cluster: tuple[int, int, int]

    def record(self) -> dict[str, Any]:
        """The shape as JSON."""
        return asdict(self)


# The least that can be launched.
SMALLEST = LaunchShape((1, 1, 1), (32, 1, 1), 0, (1, 1, 1))


class _KernelNodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h."""

    _fields_ = (
        ("func", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("kernel_params", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p),
        ("ctx", ctypes.c_void_p),
    )


def launch_shapes(stream: Any, launch: Callable[[], None]) -> tuple[LaunchShape, ...]:
    """The kernels that ``launch`` puts on ``stream`` (a cupy stream), in the order in which the driver lists them.

    Nothing runs: the launches are captured and thrown away.

    Raises:
        RuntimeError: the driver does not answer, or the call consists of something else than kernels.
    """
    from cupy.cuda import runtime

    runtime.streamBeginCapture(stream.ptr)
    try:
        launch()
    finally:
        graph = runtime.streamEndCapture(stream.ptr)
    try:
        return tuple(_shape(node) for node in _nodes(graph))
    finally:
        runtime.graphDestroy(graph)


def empty_launches(shapes: Sequence[LaunchShape]) -> list[Callable[[], None]]:
    """Functions that launch a kernel which does nothing, in these shapes, on the current cupy stream.

    Raises:
        RuntimeError: a shape has clusters, which cupy cannot launch; or whatever cupy raises without NVRTC.
    """
    import cupy

    launches: list[Callable[[], None]] = []
    for shape in shapes:
        if shape.cluster != SMALLEST.cluster:
            raise RuntimeError("a launch in clusters has no empty twin")
        kernel = cupy.RawKernel(_EMPTY_KERNEL, "kdbench_empty")
        if shape.shared_bytes > _SHARED_BY_DEFAULT:
            kernel.max_dynamic_shared_size_bytes = shape.shared_bytes
        launches.append(partial(kernel, shape.grid, shape.block, (), shared_mem=shape.shared_bytes))
    return launches


def _nodes(graph: int) -> list[int]:
    count = ctypes.c_size_t()
    _call("cuGraphGetNodes", ctypes.c_void_p(graph), None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    _call("cuGraphGetNodes", ctypes.c_void_p(graph), nodes, ctypes.byref(count))
    return [int(node) for node in nodes if node]


def _shape(node: int) -> LaunchShape:
    handle, kind = ctypes.c_void_p(node), ctypes.c_int(-1)
    _call("cuGraphNodeGetType", handle, ctypes.byref(kind))
    if kind.value != _KERNEL_NODE:
        raise RuntimeError("the call is not made of kernels alone")
    params = _KernelNodeParams()
    _call("cuGraphKernelNodeGetParams_v2", handle, ctypes.byref(params))
    cluster = (ctypes.c_uint * (_ATTRIBUTE_BYTES // 4))()
    _call("cuGraphKernelNodeGetAttribute", handle, ctypes.c_int(_CLUSTER_DIMENSION), ctypes.byref(cluster))
    return LaunchShape(
        _triple(params.grid),
        _triple(params.block),
        int(params.shared_bytes),
        _triple([max(1, size) for size in cluster[:3]]),
    )


def _triple(sizes: Any) -> tuple[int, int, int]:
    x, y, z = (int(size) for size in sizes)
    return x, y, z


def _call(name: str, *arguments: Any) -> None:
    try:
        status = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
    except (OSError, AttributeError) as error:
        raise RuntimeError(f"the driver has no {name}: {error}") from error
    if status:
        raise RuntimeError(f"{name} returned {status}")
