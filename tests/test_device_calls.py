# SPDX-License-Identifier: Apache-2.0
"""How calls on device arrays are prepared, with stand-ins for CuPy and for the library: no GPU is needed."""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from array_owners import OnDevice

from kdbench import kernels, native
from kdbench.errors import InvalidArgument
from kdbench.tree import Acceptance, DraftTree

CURRENT_STREAM = 70


class CudaLibrary:
    """Stands in for a CUDA library: answers, and remembers what it was called with."""

    backend = "cuda"
    needed = 0

    def workspace_size(self, symbol: str, params: native.Params) -> int:
        return self.needed

    def function(self, symbol: str):
        return lambda reference: 0


@pytest.fixture
def allocations(monkeypatch) -> list[tuple[int, tuple[int, ...], str]]:
    """(stream, shape, dtype) of what was allocated through the stand-in for CuPy, whose current device is 1."""
    made: list[tuple[int, tuple[int, ...], str]] = []
    streams: list[int] = []

    @contextlib.contextmanager
    def external_stream(pointer):
        streams.append(pointer)
        yield
        streams.pop()

    def empty(shape, dtype):
        made.append((streams[-1], shape, dtype.name))
        return OnDevice(shape, dtype.str, pointer=0x9001)

    cupy = ModuleType("cupy")
    cupy.empty = empty
    cupy.cuda = SimpleNamespace(
        Stream=SimpleNamespace(from_external=lambda owner: external_stream(owner.__cuda_stream__()[1])),
        get_current_stream=lambda: SimpleNamespace(ptr=CURRENT_STREAM),
        runtime=SimpleNamespace(getDevice=lambda: 1),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return made


def device_tree(device: int = 1) -> DraftTree:
    nodes = OnDevice((2, 5), "<i4", device=device)
    batch = OnDevice((2,), "<i4", device=device)
    return DraftTree(
        token_ids=nodes,
        parents=nodes,
        depths=nodes,
        positions=nodes,
        first_child=nodes,
        next_sibling=nodes,
        tree_mask=OnDevice((2, 5, 1), "<u8", device=device),
        scores=OnDevice((2, 5), "<f4", device=device),
        num_nodes=batch,
        status=batch,
        tree_budget=4,
        draft_horizon=3,
    )


def prepare(tree: DraftTree | None = None, library: CudaLibrary | None = None, **options) -> kernels.Call:
    targets = OnDevice((2, 5), "<i4", device=1)
    return kernels.prepare_tree_accept(tree or device_tree(), targets, library=library or CudaLibrary(), **options)


def test_outputs_are_allocated_on_the_current_stream_and_device(allocations):
    call = prepare()
    assert call.params.stream == CURRENT_STREAM
    assert allocations == [(CURRENT_STREAM, (2, 4), "int32")] + [(CURRENT_STREAM, (2,), "int32")] * 3
    assert call.params.parents == 0x7000
    assert call.params.accepted_path == 0x9001
    assert call.params.workspace is None
    call.launch()
    call.set_stream(5)
    assert call.params.stream == 5


def test_a_given_stream_is_taken(allocations):
    assert prepare(stream=33).params.stream == 33
    assert {stream for stream, *_ in allocations} == {33}
    # The null stream is a stream, too.
    assert prepare(stream=0).params.stream is None
    assert allocations[-1][0] == 0


def test_given_outputs_are_taken(allocations):
    one = OnDevice((2,), "<i4", pointer=0x8000)
    out = Acceptance(
        accepted_path=OnDevice((2, 4), "<i4"), acceptance_length=one, bonus_token=one, status=OnDevice((2,), "<i4")
    )
    call = prepare(out=out)
    assert not allocations
    assert call.outputs["accepted_path"] is out.accepted_path
    assert call.params.bonus_token == 0x8000


def test_the_workspace_is_device_memory_and_aligned(allocations):
    library = CudaLibrary()
    library.needed = 1000
    call = prepare(library=library)
    stream, (nbytes,), dtype = allocations[-1]
    assert (stream, dtype) == (CURRENT_STREAM, "uint8")
    assert call.params.workspace == 0x9100
    assert call.params.workspace_size == 1000
    assert call.params.workspace + 1000 <= 0x9001 + nbytes


def test_arrays_on_another_device_are_refused(allocations):
    with pytest.raises(InvalidArgument, match=r"^target_tokens is on cuda:1, but token_ids is on cuda:0$"):
        prepare(device_tree(device=0))
    sys.modules["cupy"].cuda.runtime.getDevice = lambda: 0
    with pytest.raises(InvalidArgument, match=r"^the arrays are on cuda:1, but the current device is cuda:0$"):
        prepare()


def test_host_and_device_are_not_mixed(allocations):
    with pytest.raises(InvalidArgument, match=r"^target_tokens is on cpu, but token_ids is on cuda:1$"):
        kernels.prepare_tree_accept(device_tree(), np.zeros((2, 5), np.int32), library=CudaLibrary())
    targets = OnDevice((2, 5), "<i4")
    with pytest.raises(InvalidArgument, match=r"^backend 'cpu' needs arrays in host memory, and these are on cuda:1$"):
        kernels.prepare_tree_accept(device_tree(), targets, backend="cpu")


def test_a_read_only_output_is_refused(allocations):
    one = OnDevice((2,), "<i4")
    out = Acceptance(
        accepted_path=OnDevice((2, 4), "<i4", read_only=True), acceptance_length=one, bonus_token=one, status=one
    )
    with pytest.raises(InvalidArgument, match=r"^accepted_path is read-only"):
        prepare(out=out)
