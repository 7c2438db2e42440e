# SPDX-License-Identifier: Apache-2.0
"""The stopwatch: one workload on one backend, hot or cold, as a fixed number of samples.

Hot repeats a call over the same buffers, the engine's steady state. Cold lets no call find its inputs in the
last-level cache. A CPU sample is the mean of a batch of calls (``kdbench.cpu_clock``), a GPU sample the slope between
two CUDA graphs (``kdbench.gpu_clock``). Outputs are poisoned and checked around every measurement: a wrong kernel has
no time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kdbench.call_builder import Call
from kdbench.ceilings import datasheet_floor
from kdbench.errors import BackendUnavailable, KdbenchError
from kdbench.native import Library, available, load
from kdbench.workloads import Workload

MODES = ("hot", "cold")
SAMPLES_PER_PROCESS = 20
# Wall time that the samples of one process aim at; warm-up comes on top, and is shorter.
BUDGET_S = 2.0
# A call this slow would hold up a whole run: it is refused rather than sampled.
LONGEST_CALL_S = 1.0
# All bits set is NaN in f32 and bf16 and -1 in an integer: no correct output keeps it.
POISON = 0xFF


class MeasuringError(KdbenchError):
    """A measurement that cannot be right, or cannot be made in bounded time."""


@dataclass(frozen=True)
class Measurement:
    """What one process measured.

    Attributes:
        mode: "hot" or "cold".
        samples: seconds a call, one value a sample.
        calls: calls behind one sample: a batch size on the CPU, the two graph lengths R1 and R2 on a GPU.
        copies: sets of inputs and outputs that calls rotate through (1 when hot).
        touched_bytes: inputs and outputs of one call.
        cache_bytes: last-level cache that cold had to beat; None when unknown.
        flushed: the cache was overwritten between samples, since copies alone could not fill it.
        empty_call_s: seconds of a call that does nothing, measured the same way; None with a reason in ``notes``.
        empty_launch_s: seconds of empty kernels with the grids, blocks and shared memory of this call; None on a CPU,
            or with a reason in ``notes``.
        launches: those launch shapes, as JSON.
        gpu_before, gpu_after: clocks, temperature, power and throttle reasons around the samples; empty on a CPU.
        notes: what a reader should know, e.g. that there was no roofline to check against.
    """

    mode: str
    samples: tuple[float, ...]
    calls: tuple[int, ...]
    copies: int
    touched_bytes: int
    cache_bytes: int | None
    flushed: bool
    empty_call_s: float | None
    empty_launch_s: float | None = None
    launches: tuple[Mapping[str, Any], ...] = ()
    gpu_before: Mapping[str, Any] = field(default_factory=dict)
    gpu_after: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Subject:
    """One workload made ready on one backend: inputs in its memory and a prepared call.

    Attributes:
        inputs: the workload's arrays, in host or device memory.
        call: the call that hot timing repeats.

    Raises:
        BackendUnavailable: the library or the GPU is missing, or the library lacks this kernel.
    """

    def __init__(self, workload: Workload, backend: str, library: Library | None = None) -> None:
        if library is None:
            if reason := available(backend):
                raise BackendUnavailable(reason)
            library = load(backend)
        self.workload = workload
        self.backend = backend
        self.library = library
        self.inputs: Mapping[str, Any] = workload.inputs(_array_module(backend))
        self.call = self.prepare(self.inputs)

    def prepare(self, inputs: Mapping[str, Any]) -> Call:
        """A call over other copies of the inputs, with outputs of its own."""
        return self.workload.prepare(inputs, self.backend, self.library)

    @property
    def touched_bytes(self) -> int:
        """Bytes of all inputs and outputs of one call; of what it changes in place, those that it must move."""
        in_place = self.call.in_place
        arrays = [array for name, array in self.inputs.items() if name not in in_place]
        moved = self.workload.bytes_moved if in_place else 0
        return moved + sum(int(array.nbytes) for array in (*arrays, *self.call.outputs.values()))

    def verify(self) -> None:
        """One launch into poisoned outputs, checked; DigestMismatch when it is wrong."""
        poison(self.call)
        self.call.launch()
        self.check(self.call)

    def check(self, call: Call) -> None:
        """Compare what ``call`` last wrote with the golden outputs."""
        written = {**call.outputs, **call.in_place}
        self.workload.check({name: _to_host(array) for name, array in written.items()})

    def clock(self, mode: str) -> Callable[[int], Measurement]:
        """A function from a number of samples to the measurement in ``mode``."""
        return lambda samples: measure(self, mode, samples)


def measure(subject: Subject, mode: str, samples: int = SAMPLES_PER_PROCESS) -> Measurement:
    """Time ``subject`` and check what the timed calls wrote.

    Args:
        subject: a prepared workload.
        mode: "hot" or "cold".
        samples: how many; always the same number for one kind of run, so that results can be cut at process boundaries.

    Raises:
        DigestMismatch: the timed calls wrote something else than the golden output.
        MeasuringError: a call is too slow to sample, or the result is faster than the hardware allows.
    """
    if mode not in MODES:
        raise MeasuringError(f"timing mode is {mode!r}, and {' or '.join(map(repr, MODES))} is expected")
    if samples < 1:
        raise MeasuringError(f"{samples} samples are wanted, and at least 1 is expected")
    if subject.backend == "cuda":
        from kdbench.gpu_clock import measure_gpu  # imports cupy

        return measure_gpu(subject, mode, samples)
    from kdbench.cpu_clock import measure_cpu

    return measure_cpu(subject, mode, samples)


def poison(call: Call) -> None:
    """Fill every output with a pattern that no correct output keeps; what a call changes in place is its input."""
    for array in call.outputs.values():
        array.reshape(-1).view(np.uint8).fill(POISON)


def refuse_impossible(workload: Workload, gpu: str | None, mode: str, seconds: float) -> str | None:
    """Raise MeasuringError when ``seconds`` beat the roofline floor; a note when there is no floor to compare with."""
    floor = datasheet_floor(gpu, workload.bytes_moved, workload.flops, mode)
    if floor is None:
        return f"no roofline check: the peak of {gpu or 'this CPU'} is not known"
    if seconds < floor:
        raise MeasuringError(
            f"{workload.name} took {seconds * 1e6:.3f} us, and {gpu} needs {floor * 1e6:.3f} us by its datasheet: "
            "the measurement or the count of bytes and FLOPs is wrong"
        )
    return None


def stopwatch_digest() -> str:
    """SHA-256 of the modules that decide what a sample is, so that records tell which stopwatch they came from."""
    state = hashlib.sha256()
    for name in ("timing", "cpu_clock", "gpu_clock", "call_builder", "workload_inputs", "counter_bits", "launch_shape"):
        state.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return state.hexdigest()


def _array_module(backend: str) -> Any:
    if backend != "cuda":
        return np
    import cupy

    return cupy


def _to_host(array: Any) -> np.ndarray[Any, Any]:
    host: np.ndarray[Any, Any] = array if isinstance(array, np.ndarray) else array.get()
    return host
