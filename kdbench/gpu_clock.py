# SPDX-License-Identifier: Apache-2.0
"""GPU timing: the slope between two CUDA graphs of the same launch.

One sample replays a graph of R1 launches and one of R2, each between two events on one stream: ``t = (T(R2) - T(R1))
/ (R2 - R1)``. What a replay costs once (graph launch, events, the first node) cancels, and so does drift, since the
two replays are neighbours. The gap between nodes stays in, as it does in an engine; the slope of an empty kernel is
recorded beside it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from kdbench.call_builder import Call
from kdbench.launch_shape import SMALLEST, LaunchShape, empty_launches, launch_shapes
from kdbench.machine import gpu_state
from kdbench.timing import BUDGET_S, LONGEST_CALL_S, Measurement, MeasuringError, Subject, poison, refuse_impossible

# Work by which a sample's two graphs differ: far above the resolution of events, and the longer the steadier.
_LONG_SPAN_S = 4e-3
_MAX_SPAN = 2000
_LONGEST_GRAPH = _MAX_SPAN + _MAX_SPAN // 10
# Cold graphs hold a copy a node when inputs are small; fewer nodes keep preparation in bounds.
_MAX_COLD_COPIES = 600
# Copies must outgrow the L2 cache this many times: L2 is hashed and not quite least-recently-used.
_L2_FACTOR = 5
_MEMORY_LIMIT = 8 << 30
# From idle the clocks take tens of milliseconds to rise, and under tensor load half a second to meet the power cap.
_WARM_UP_S = {"latency": 0.1, "memory": 0.3, "compute": 0.5}
_MAX_WARM_UP_S = 1.0
_SETTLED = 0.01


def measure_gpu(subject: Subject, mode: str, samples: int) -> Measurement:
    """See ``kdbench.timing.measure``."""
    import cupy

    device = cupy.cuda.Device()
    properties = cupy.cuda.runtime.getDeviceProperties(device.id)
    stream = cupy.cuda.Stream(non_blocking=True)
    # Inputs were copied on the default stream, which a non-blocking one does not wait for.
    device.synchronize()
    try:
        return _measure_on(stream, subject, mode, samples, properties)
    finally:
        device.synchronize()
        subject.call.set_stream(0)


def _measure_on(stream: Any, subject: Subject, mode: str, samples: int, properties: Mapping[str, Any]) -> Measurement:
    import cupy

    device = cupy.cuda.Device()
    notes: list[str] = []
    l2 = int(properties["l2CacheSize"])
    pilot = pilot_seconds(stream, subject.call)
    if pilot > LONGEST_CALL_S:
        raise MeasuringError(
            f"one call of {subject.workload.name} takes {pilot:.1f} s: more than {LONGEST_CALL_S} s are not sampled"
        )
    calls, limit = ([subject.call], _LONGEST_GRAPH) if mode == "hot" else cold_calls(subject, l2)
    # Neighbouring replays begin with the same copies; within one they are far enough apart. Nothing is left of a set of
    # inputs that alone outgrows the cache.
    flush = flusher(stream, 2 * l2) if mode == "cold" and len(calls) > 1 else None
    for call in calls:
        call.set_stream(stream.ptr)
    device.synchronize()
    short, long = _graph_lengths(pilot, samples, limit)
    slope = Slope(stream, [call.launch for call in calls], short, long, flush)
    _warm_up(slope, subject.workload.roofline)
    before = gpu_state()
    for call in calls:
        poison(call)
    device.synchronize()
    times = [slope.sample() for _ in range(samples)]
    device.synchronize()
    after = gpu_state()
    # The timed graphs themselves wrote these. A short graph need not have reached the last copy.
    written = calls[: min(len(calls), long)]
    for call in {id(call): call for call in (written[0], written[-1])}.values():
        subject.check(call)
    shapes = _shapes(stream, subject.call, notes)
    empty = _empty_slope(stream, (SMALLEST,), notes)
    name = properties["name"].decode() if isinstance(properties["name"], bytes) else str(properties["name"])
    if note := refuse_impossible(subject.workload, name, mode, median(times)):
        notes.append(note)
    return Measurement(
        mode=mode,
        samples=tuple(times),
        calls=(short, long),
        copies=len(calls),
        touched_bytes=subject.touched_bytes,
        cache_bytes=l2,
        flushed=flush is not None,
        empty_call_s=empty,
        empty_launch_s=_empty_slope(stream, shapes, notes) if shapes else None,
        launches=tuple(shape.record() for shape in shapes),
        gpu_before=before,
        gpu_after=after,
        notes=tuple(notes),
    )


class Slope:
    """Two captured graphs of the same launches, and samples of the slope between them."""

    def __init__(
        self,
        stream: Any,
        launches: Sequence[Callable[[], None]],
        short: int,
        long: int,
        flush: Callable[[], None] | None = None,
    ) -> None:
        import cupy

        self._cuda = cupy.cuda
        self._stream = stream
        self._flush = flush
        self._span = long - short
        self._graphs = [capture(stream, launches, nodes) for nodes in (short, long)]
        self._events = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in self._graphs]

    def sample(self) -> float:
        """Seconds a launch; the stream is idle afterwards."""
        for graph, (start, stop) in zip(self._graphs, self._events, strict=True):
            if self._flush:
                self._flush()
            start.record(self._stream)
            graph.launch(self._stream)
            stop.record(self._stream)
        self._events[-1][1].synchronize()
        short, long = (self._cuda.get_elapsed_time(start, stop) for start, stop in self._events)
        return float(long - short) * 1e-3 / self._span


def capture(stream: Any, launches: Sequence[Callable[[], None]], nodes: int) -> Any:
    """A graph of ``nodes`` launches in a row, going round ``launches``."""
    stream.begin_capture()
    try:
        for node in range(nodes):
            launches[node % len(launches)]()
    finally:
        # Also after a failed launch: a stream left capturing breaks everything after it.
        graph = stream.end_capture()
    graph.upload(stream)
    return graph


def pilot_seconds(stream: Any, call: Call) -> float:
    """Seconds of one launch, roughly; also loads the module and lets lazy initialisation happen outside capture."""
    import cupy

    call.set_stream(stream.ptr)
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    for launches in (2, 10):
        start.record(stream)
        for _ in range(launches):
            call.launch()
        stop.record(stream)
        stop.synchronize()
        seconds = float(cupy.cuda.get_elapsed_time(start, stop)) * 1e-3 / launches
        if seconds > 0.1:
            break
    return max(seconds, 1e-7)


def _graph_lengths(pilot: float, samples: int, limit: int) -> tuple[int, int]:
    """(R1, R2): (200, 2200) for microseconds, (2, 10) for half a millisecond, fewer when the budget says so.

    Args:
        pilot: seconds a launch.
        samples: how many will be taken.
        limit: nodes that a graph may have.
    """
    span = min(_MAX_SPAN, max(8, math.ceil(_LONG_SPAN_S / pilot)))
    affordable = int(BUDGET_S / samples / pilot / 1.2)
    span = max(1, min(span, affordable, limit - max(1, limit // 11)))
    short = max(1 if span < 8 else 2, span // 10)
    return short, short + span


def _warm_up(slope: Slope, roofline: str) -> None:
    """Replays that are thrown away, until the clocks have risen and neighbouring slopes agree."""
    start = time.perf_counter()
    last = slope.sample()
    while (spent := time.perf_counter() - start) < _MAX_WARM_UP_S:
        now = slope.sample()
        if spent >= _WARM_UP_S[roofline] and abs(now - last) <= _SETTLED * abs(last):
            return
        last = now


def cold_calls(subject: Subject, l2: int) -> tuple[list[Call], int]:
    """Calls over copies of inputs and outputs, and the most nodes that a graph of them may have and still be cold."""
    touched = subject.touched_bytes
    wanted = 1 if touched >= _L2_FACTOR * l2 else _L2_FACTOR * l2 // touched + 2
    copies = max(1, min(wanted, _MAX_COLD_COPIES, _MEMORY_LIMIT // touched))
    calls = [subject.call]
    while len(calls) < copies:
        calls.append(subject.prepare({name: array.copy() for name, array in subject.inputs.items()}))
    return calls, _LONGEST_GRAPH if copies == wanted else copies


def flusher(stream: Any, size: int) -> Callable[[], None]:
    """A write that empties the cache. It goes between replays: inside a graph it would swamp a 2 us kernel."""
    import cupy

    block = cupy.empty(size, cupy.uint8)

    def flush() -> None:
        block.data.memset_async(0, size, stream)

    return flush


def _shapes(stream: Any, call: Call, notes: list[str]) -> tuple[LaunchShape, ...]:
    """The launches that ``call`` consists of; none, with a note, when the driver does not tell."""
    try:
        return launch_shapes(stream, call.launch)
    except Exception as error:  # the kernel's own time stands
        notes.append(f"no launch shape: {type(error).__name__}: {error}")
        return ()


def _empty_slope(stream: Any, shapes: Sequence[LaunchShape], notes: list[str]) -> float | None:
    """Seconds of empty kernels with these launch shapes, a slope's floor; None with a note when there are none."""
    try:
        with stream:
            launches = empty_launches(shapes)
            for launch in launches:
                launch()
            slope = Slope(stream, launches, 200 * len(launches), 2200 * len(launches))
        slope.sample()
        return len(launches) * median(slope.sample() for _ in range(5))
    except Exception as error:  # no NVRTC, or none for this GPU: whatever it raises, the kernel's own time stands
        notes.append(f"no empty-kernel slope: {type(error).__name__}: {error}")
        return None
