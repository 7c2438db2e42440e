# SPDX-License-Identifier: Apache-2.0
"""A letter on a GPU: a graph of one side's launches between two stamps of the device's own clocks.

The stamps are nodes of the graph: %globaltimer gives the time, clock64 over it the SM clock that the launches ran
under, and neither holds what a replay costs. The nodes beside the stamps are some microsecond of a millisecond, the
same on both sides. Without NVRTC to compile the stamps, a letter is a slope between two graphs, and has no clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from kdbench.gpu_clock import Slope, capture, cold_calls, flusher, pilot_seconds
from kdbench.paired.twin import TwinSubject
from kdbench.timing import LONGEST_CALL_S, MeasuringError

_LETTER_S = 8e-4
_MOST_NODES = 800
# Of one series in one process.
_BUDGET_S = 0.08
_MOST_BLOCKS, _LEAST_BLOCKS = 8, 4
_WARM_UP_S = {"latency": 0.006, "memory": 0.015, "compute": 0.03}
_STAMP = r"""
extern "C" __global__ void kdbench_stamp(unsigned long long* out) {
    unsigned long long ns; unsigned int sm;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
    out[0] = ns; out[1] = clock64(); out[2] = sm;
}
"""


class GpuLetters:
    """Letters of one subject, hot or cold.

    Attributes:
        calls: launches behind one letter.
        blocks: how many blocks to take.
    """

    def __init__(self, stream: Any, subject: TwinSubject, mode: str) -> None:
        import cupy

        self._stream = stream
        l2 = int(cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["l2CacheSize"])
        for twin in subject.twins[0]:
            twin.set_stream(stream.ptr)
        pilot = max(pilot_seconds(stream, twin) for twin in subject.twins[0])
        if pilot > LONGEST_CALL_S:
            raise MeasuringError(
                f"one call of {subject.workload.name} takes {pilot:.1f} s: more than {LONGEST_CALL_S} s are not sampled"
            )
        copies, limit = ([subject.call], _MOST_NODES) if mode == "hot" else cold_calls(subject, l2)
        self._flush = flusher(stream, 2 * l2) if mode == "cold" and len(copies) > 1 else None
        cupy.cuda.Device().synchronize()  # copies were made on the default stream
        self.calls = max(2, min(_MOST_NODES, limit, math.ceil(_LETTER_S / pilot)))
        twins = subject.twins
        for pair in twins:
            for call in pair:
                call.set_stream(stream.ptr)
        stamp = _stamper(stream)
        launches = [[twin[side].launch for twin in twins] for side in (0, 1)]
        self._slopes: list[Slope] = []
        if stamp is None:
            short = max(1, self.calls // 10)
            self._slopes = [Slope(stream, side, short, short + self.calls, self._flush) for side in launches]
        else:
            self._marks = cupy.zeros((2, 4), cupy.uint64)
            first, last = (lambda: stamp(self._marks[0])), (lambda: stamp(self._marks[1]))
            self._graphs = [_stamped(stream, side, self.calls, first, last) for side in launches]
        blocks = int(_BUDGET_S / (4 * pilot * self.calls)) // 2 * 2
        self.blocks = max(_LEAST_BLOCKS, min(_MOST_BLOCKS, blocks))
        start, wanted = time.perf_counter(), _WARM_UP_S[subject.workload.roofline]
        while time.perf_counter() - start < wanted:
            self.letter(0)
            self.letter(1)

    def letter(self, side: int) -> tuple[float, float | None]:
        """Seconds a launch of one side, and the SM clock in Hz where it can be read."""
        if self._slopes:
            return self._slopes[side].sample(), None
        if self._flush:
            self._flush()
        self._graphs[side].launch(self._stream)
        (start, ticks, sm, _), (end, later, also, _) = self._marks.get(stream=self._stream).tolist()
        seconds = (end - start) * 1e-9
        return seconds / self.calls, (later - ticks) / seconds if sm == also and later > ticks else None


def _stamped(
    stream: Any, launches: list[Callable[[], None]], nodes: int, first: Callable[[], None], last: Callable[[], None]
) -> Any:
    row = [first, *(launches[node % len(launches)] for node in range(nodes)), last]
    return capture(stream, row, len(row))


def _stamper(stream: Any) -> Callable[[Any], None] | None:
    """Launches the stamp on ``stream``; None where it cannot be compiled or the timer's step is too coarse."""
    import cupy

    try:
        kernel = cupy.RawKernel(_STAMP, "kdbench_stamp")
        marks = cupy.zeros((2, 4), cupy.uint64)
        with stream:
            seen = set()
            for _ in range(20):
                kernel((1,), (1,), (marks,))
                seen.add(int(marks[0, 0]))
    except Exception:  # no NVRTC, or none for this GPU
        return None
    if len(seen) < 15:  # steps of tens of microseconds
        return None

    def stamp(out: Any) -> None:
        with stream:
            kernel((1,), (1,), (out,))

    return stamp
