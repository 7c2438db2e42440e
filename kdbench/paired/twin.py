# SPDX-License-Identifier: Apache-2.0
"""One workload's calls for two libraries: the same inputs, outputs and workspace, at the same addresses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kdbench.call_builder import Call
from kdbench.native import Library
from kdbench.timing import Subject, poison
from kdbench.workloads import Workload

_ODD = 0x9E3779B97F4A7C15
# Inputs beyond this are made again rather than kept on disk.
_SHARED_LIMIT = 1 << 30


class TwinSubject(Subject):
    """A subject prepared by base's library, whose calls have twins of head's.

    Attributes:
        twins: per call of ``prepare``, in order, the two sides' calls.
    """

    def __init__(self, workload: Workload, backend: str, libraries: tuple[Library, Library], shared: Path) -> None:
        self.workload = workload
        self.backend = backend
        self.shared = shared
        self.inputs = _inputs(workload, backend, shared)
        self.use(libraries)

    def use(self, libraries: tuple[Library, Library]) -> None:
        """Prepare the calls for these libraries, base's and head's."""
        self.sides = libraries
        self.library = libraries[0]
        self.twins: list[tuple[Call, Call]] = []
        self.call = self.prepare(self.inputs)

    def prepare(self, inputs: Mapping[str, Any]) -> Call:
        """Base's call over ``inputs``; its twin is kept."""
        base, head = self.sides
        call = self.workload.prepare(inputs, self.backend, base)
        if head.workspace_size(call.symbol, call.params) > call.params.workspace_size:
            # The larger workspace serves both.
            larger = self.workload.prepare(inputs, self.backend, head)
            call = larger.twin(base)
        self.twins.append((call, call.twin(head)))
        return call

    def verify_both(self) -> tuple[int, int]:
        """Run both sides into poisoned outputs, check what they wrote, and return its checksums.

        Outputs that a process of this session has checked are known by their checksum.
        """
        found = []
        for side, call in enumerate(self.twins[0]):
            poison(call)
            call.launch()
            found.append(checksum(call))
            known = self.shared / f"{self.workload.name}-{self.backend}-{side}-{found[-1]:016x}.ok"
            if not known.exists():
                self.check(call)
                known.touch()
        return found[0], found[1]


def checksum(call: Call) -> int:
    """A 64-bit sum over everything that a call wrote, in which places count."""
    total = 0
    for name, array in {**call.outputs, **call.in_place}.items():
        xp = np if isinstance(array, np.ndarray) else _cupy()
        octets = array.reshape(-1).view(xp.uint8)
        whole = octets.size // 8 * 8
        words = octets[:whole].view(xp.uint64)
        weights = xp.arange(words.size, dtype=xp.uint64) * xp.uint64(_ODD) | xp.uint64(1)
        rest = int.from_bytes(bytes(octets[whole:].tolist()), "little")
        value = (int((words * weights).sum(dtype=xp.uint64)) if words.size else 0) + rest * _ODD
        total = (total * 31 + value + sum(name.encode())) % (1 << 64)
    return total


def _inputs(workload: Workload, backend: str, shared: Path) -> Mapping[str, Any]:
    xp: Any = _cupy() if backend == "cuda" else np
    if workload.shape.get("hashed"):
        return workload.inputs(xp)  # made on the device, sooner than read
    made = shared / workload.name
    if made.is_dir():
        return {path.stem: xp.asarray(np.load(path)) for path in sorted(made.glob("*.npy"))}
    arrays = workload.inputs(np)
    if sum(array.nbytes for array in arrays.values()) <= _SHARED_LIMIT:
        fresh = shared / f".{workload.name}"
        fresh.mkdir(exist_ok=True)
        for name, array in arrays.items():
            np.save(fresh / f"{name}.npy", array)
        fresh.rename(made)
    return {name: xp.asarray(array) for name, array in arrays.items()}


def _cupy() -> Any:
    import cupy

    return cupy
