# SPDX-License-Identifier: Apache-2.0
"""One workload's arrays where an implementation wants them: NumPy on the host, Torch on either side."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kdbench import workload_inputs
from kdbench.arrays import to_numpy
from kdbench.native import Library
from kdbench.peers.libraries import Libraries
from kdbench.workloads import Workload

_Array = np.ndarray[Any, Any]
# bf16 inputs, which workloads hold as uint16 words.
_BF16 = frozenset({"q_nope", "q_pe", "kv_cache", "logits"})
_LOGITS_SEED = 5_000_000


@dataclass(frozen=True, eq=False)
class Inputs:
    """The arrays of one workload, and where they are.

    Attributes:
        backend: "cpu" or "cuda".
        library: our native library of that backend.
        libraries: other people's.
        arrays: the workload's arrays where the backend works: Torch tensors on a GPU, NumPy arrays on a CPU.
        host: the same as NumPy arrays, brought over from a GPU when first looked at.
        shared: what copies of one workload have in common, such as plans and workspaces; keys are the adapters' own.
    """

    workload: Workload
    backend: str
    library: Library
    libraries: Libraries
    arrays: dict[str, Any]
    host: Mapping[str, _Array]
    shared: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, workload: Workload, backend: str, library: Library, libraries: Libraries) -> Inputs:
        """The workload's inputs, made on the backend's device."""
        arrays = _placed(workload.inputs(_module(backend)), backend)
        return cls(workload, backend, library, libraries, arrays, _Host(arrays))

    def copy(self) -> Inputs:
        """The same values at other addresses of the device; host arrays and ``shared`` are common."""
        twin = {name: array.clone() if self.backend == "cuda" else array.copy() for name, array in self.arrays.items()}
        return replace(self, arrays=twin)

    def with_logits(self) -> Inputs:
        """The same with ``logits`` bf16[B, D, V], from which a tree_build workload's candidates could have come."""
        batch, horizon = int(self.workload.shape["batch"]), int(self.workload.shape["horizon"])
        rows, seed = batch * horizon, self.workload.seed + _LOGITS_SEED
        made = workload_inputs.draft_logits(seed, rows=rows, dtype="bf16", hashed=True, xp=_module(self.backend))
        logits = {"logits": made["logits"].reshape(batch, horizon, -1)}
        arrays = {**self.arrays, **_placed(logits, self.backend)}
        return replace(self, arrays=arrays, host=_Host(arrays), shared={})

    def torch(self, name: str) -> Any:
        """One array as a Torch tensor on the backend's device, bf16 as such."""
        array = self.arrays[name]
        return array if self.backend == "cuda" else _tensor(name, array)

    def device(self, array: _Array) -> Any:
        """A host array of an adapter's own as a Torch tensor on the backend's device."""
        return _tensor("", array).to(self.backend)

    def shape(self, name: str) -> tuple[int, ...]:
        """An array's shape, without bringing it to the host."""
        return tuple(int(size) for size in self.arrays[name].shape)

    @property
    def touched_bytes(self) -> int:
        """Bytes of the arrays; outputs come on top."""
        return sum(int(array.nbytes) for array in self.arrays.values())


class _Host(Mapping[str, _Array]):
    """Arrays in host memory, fetched once each and on demand: a cache of latents may be gigabytes."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = arrays
        self._fetched: dict[str, _Array] = {}

    def __getitem__(self, name: str) -> _Array:
        if name not in self._fetched:
            array = to_numpy(self._arrays[name])
            self._fetched[name] = array.view(np.uint64) if name == "tree_mask" else array
        return self._fetched[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def _module(backend: str) -> Any:
    return np if backend == "cpu" else importlib.import_module("cupy")


def _placed(arrays: Mapping[str, Any], backend: str) -> dict[str, Any]:
    if backend == "cpu":
        return dict(arrays)
    torch = importlib.import_module("torch")
    importlib.import_module("cupy").cuda.Device().synchronize()
    return {name: _named(name, torch.from_dlpack(_signed(array))) for name, array in arrays.items()}


def _tensor(name: str, array: _Array) -> Any:
    return _named(name, importlib.import_module("torch").from_numpy(_signed(np.ascontiguousarray(array))))


def _named(name: str, tensor: Any) -> Any:
    """bf16 words as bfloat16, everything else as it is."""
    torch = importlib.import_module("torch")
    return tensor.view(torch.bfloat16) if name in _BF16 and tensor.dtype == torch.int16 else tensor


def _signed(array: Any) -> Any:
    """Words as signed integers of their size: Torch computes little on unsigned ones, and our library takes both."""
    signed = {"uint16": np.int16, "uint64": np.int64}.get(str(array.dtype))
    return array if signed is None else array.view(signed)
