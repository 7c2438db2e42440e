# SPDX-License-Identifier: Apache-2.0
"""Clocks that can be read in turns: one sample of one implementation, then one of the next.

A GPU's clock and power drift within seconds, so implementations that are timed one after the other are not compared at
all. Here each round takes one sample of every implementation, and a ratio is taken within rounds. A sample is the slope
between two CUDA graphs of the same launches, as ``kdbench.gpu_clock`` has it, captured by Torch because other people's
kernels allocate through it; or, for what no graph can hold, the wall clock around calls that are waited for.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from kdbench.peers.adapter import Outputs
from kdbench.timing import LONGEST_CALL_S, POISON, MeasuringError

Launch = Callable[[], Outputs]

# Work by which a sample's two graphs differ, and the most launches that they differ by.
_SPAN_S = 4e-3
_MOST_SPAN = 2000
# A wall-clock sample lasts at least this long.
_BATCH_S = 4e-3
_WARM_UP_S = 0.15


class Sampler(ABC):
    """One implementation under one clock."""

    @abstractmethod
    def warm_up(self) -> None:
        """Runs that are thrown away."""

    @abstractmethod
    def sample(self) -> float:
        """Seconds a launch."""

    @abstractmethod
    def last_outputs(self) -> Outputs:
        """What a launch under this clock writes into poisoned outputs."""


class WallSampler(Sampler):
    """perf_counter around calls, each of them waited for."""

    def __init__(self, launch: Launch, wait: Callable[[], None]) -> None:
        self._launch = launch
        self._wait = wait
        self._batch = max(1, math.ceil(_BATCH_S / self._pilot()))

    def warm_up(self) -> None:
        """Batches until they have lasted a while."""
        start = time.perf_counter()
        while time.perf_counter() - start < _WARM_UP_S:
            self.sample()

    def sample(self) -> float:
        """See ``Sampler``."""
        start = time.perf_counter()
        for _ in range(self._batch):
            self._launch()
            self._wait()
        return (time.perf_counter() - start) / self._batch

    def last_outputs(self) -> Outputs:
        """See ``Sampler``; outputs that a call allocates anew are poisoned to no effect."""
        poison(self._launch())
        outputs = self._launch()
        self._wait()
        return outputs

    def _pilot(self) -> float:
        seconds = math.inf
        for _ in range(3):
            start = time.perf_counter()
            self._launch()
            self._wait()
            seconds = min(seconds, time.perf_counter() - start)
        if seconds > LONGEST_CALL_S:
            raise MeasuringError(f"one call takes {seconds:.1f} s: more than {LONGEST_CALL_S} s are not sampled")
        return max(seconds, 1e-7)


class GraphSampler(Sampler):
    """The slope between two CUDA graphs that go round ``launches``, which differ in the arrays that they touch."""

    def __init__(self, launches: Sequence[Launch], flush: Callable[[], None] | None, most_nodes: int) -> None:
        self._torch = importlib.import_module("torch")
        self._flush = flush
        self._stream = self._torch.cuda.Stream()
        with self._torch.cuda.stream(self._stream):
            seconds = self._pilot(launches[0])
        short, long = lengths(seconds, most_nodes)
        self._span = long - short
        self._graphs = []
        self._outputs: list[Outputs] = []
        for nodes in (short, long):
            graph = self._torch.cuda.CUDAGraph()
            with self._torch.cuda.graph(graph, stream=self._stream, capture_error_mode="relaxed"):
                for node in range(nodes):
                    outputs = launches[node % len(launches)]()
            self._graphs.append(graph)
            self._outputs.append(outputs)
        self._events = [[self._torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in self._graphs]

    def warm_up(self) -> None:
        """Replays until they have lasted a while: clocks rise, and power then pulls them down."""
        start = time.perf_counter()
        while time.perf_counter() - start < _WARM_UP_S:
            self.sample()

    def sample(self) -> float:
        """See ``Sampler``; the stream is idle afterwards."""
        with self._torch.cuda.stream(self._stream):
            for graph, (start, stop) in zip(self._graphs, self._events, strict=True):
                if self._flush:
                    self._flush()
                start.record(self._stream)
                graph.replay()
                stop.record(self._stream)
            self._events[-1][1].synchronize()
        short, long = (start.elapsed_time(stop) for start, stop in self._events)
        return float(long - short) * 1e-3 / self._span

    def last_outputs(self) -> Outputs:
        """See ``Sampler``: poisoned, and written again by the longer of the timed graphs."""
        with self._torch.cuda.stream(self._stream):
            poison(self._outputs[-1])
            self._graphs[-1].replay()
        self._torch.cuda.synchronize()
        return self._outputs[-1]

    def _pilot(self, launch: Launch) -> float:
        start, stop = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        for launches in (3, 10):
            start.record()
            for _ in range(launches):
                launch()
            stop.record()
            stop.synchronize()
            seconds = start.elapsed_time(stop) * 1e-3 / launches
            if seconds > 0.05:
                break
        if seconds > LONGEST_CALL_S:
            raise MeasuringError(f"one launch takes {seconds:.1f} s: more than {LONGEST_CALL_S} s are not sampled")
        return float(max(seconds, 1e-7))


def lengths(seconds: float, most: int) -> tuple[int, int]:
    """Launches of the two graphs, 4 ms of work apart where that is 4 to 2000 launches and ``most`` allows it.

    A tenth of the difference starts both, so that what a replay costs once is paid in the shorter one as well.
    """
    span = min(_MOST_SPAN, max(4, math.ceil(_SPAN_S / seconds)), max(1, most - max(1, most // 11)))
    short = max(1, span // 10)
    return short, short + span


def poison(outputs: Outputs) -> None:
    """Fill outputs with all bits set, which no right answer keeps; what is not contiguous stays as it is."""
    for array in outputs.values():
        if hasattr(array, "data_ptr"):
            torch = importlib.import_module("torch")
            if array.is_contiguous() and array.dtype != torch.bool:
                array.view(torch.uint8).fill_(POISON)
        elif array.flags.c_contiguous and array.flags.writeable and array.dtype != bool:
            array.reshape(-1).view("u1").fill(POISON)


def interleave(samplers: Sequence[Sampler], rounds: int) -> list[list[float]]:
    """``rounds`` samples of each: a round takes one of everybody, and each round begins with another one."""
    times: list[list[float]] = [[] for _ in samplers]
    with _no_garbage_collection():
        for turn in range(rounds):
            for place in range(len(samplers)):
                at = (turn + place) % len(samplers)
                times[at].append(samplers[at].sample())
    return times


def waiter(backend: str) -> Callable[[], None]:
    """What waits for everything launched."""
    if backend == "cpu":
        return lambda: None
    synchronize: Callable[[], None] = importlib.import_module("torch").cuda.synchronize
    return synchronize


def flusher(size: int) -> Callable[[], None]:
    """A write of ``size`` bytes of device memory, on the current stream."""
    torch = importlib.import_module("torch")
    block = torch.empty(size, dtype=torch.uint8, device="cuda")

    def flush() -> None:
        block.zero_()

    return flush


def l2_bytes() -> int:
    """The GPU's L2 cache."""
    torch = importlib.import_module("torch")
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
