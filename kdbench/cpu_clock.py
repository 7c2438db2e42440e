# SPDX-License-Identifier: Apache-2.0
"""CPU timing: perf_counter_ns around batches of calls, the garbage collector off."""

from __future__ import annotations

import ctypes
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np

from kdbench.call_builder import Call
from kdbench.machine import last_level_cache_bytes
from kdbench.timing import BUDGET_S, LONGEST_CALL_S, Measurement, MeasuringError, Subject, poison, refuse_impossible

# A batch must dwarf the clock's own cost (~50 ns) and the scheduler's ticks must stay rare in it.
_BATCH_NS = 4_000_000
_WARM_UP_NS = 50_000_000
_MEMORY_LIMIT = 512 << 20
_MAX_COPIES = 1024
_DEFAULT_CACHE = 32 << 20
_FLUSH_LIMIT = 256 << 20


def measure_cpu(subject: Subject, mode: str, samples: int) -> Measurement:
    """See ``kdbench.timing.measure``."""
    launch = subject.call.launch
    with quiet():
        pilot_ns = _warm_up(launch)
        if pilot_ns > LONGEST_CALL_S * 1e9:
            seconds = f"{pilot_ns / 1e9:.1f} s"
            raise MeasuringError(
                f"one call of {subject.workload.name} takes {seconds}: more than {LONGEST_CALL_S} s are not sampled"
            )
        # Never more than the budget allows, and never less than one call.
        batch = max(1, min(math.ceil(_BATCH_NS / pilot_ns), int(BUDGET_S * 1e9 / samples / pilot_ns)))
        if mode == "hot":
            calls, flush, cache = [subject.call], None, last_level_cache_bytes()
        else:
            calls, flush, cache = cold_calls(subject, batch)
            # A batch of flushed calls must not meet the same copy twice.
            batch = min(batch, len(calls)) if flush else batch
        for call in calls:
            poison(call)
        # After poisoning, hot buffers are cold and page tables unsettled.
        for call in calls:
            call.launch()
        times = _sample(calls, batch, samples, flush)
        empty_ns = _empty_call_ns(subject)
    for call in {id(call): call for call in (calls[0], calls[-1])}.values():
        subject.check(call)
    samples_s = tuple(ns / 1e9 for ns in times)
    note = refuse_impossible(subject.workload, None, mode, median(samples_s))
    return Measurement(
        mode=mode,
        samples=samples_s,
        calls=(batch,),
        copies=len(calls),
        touched_bytes=subject.touched_bytes,
        cache_bytes=cache,
        flushed=flush is not None,
        empty_call_s=empty_ns / 1e9,
        notes=(note,) if note else (),
    )


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection inside."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _warm_up(launch: Callable[[], None]) -> float:
    """Nanoseconds a call, from the best of growing batches over at least 50 ms."""
    start = perf_counter_ns()
    best, batch = math.inf, 1
    while True:
        best = min(best, batch_ns([launch] * batch))
        spent = perf_counter_ns() - start
        if spent >= _WARM_UP_NS:
            return max(best, 1.0)
        batch = max(1, min(2 * batch, int(_BATCH_NS / best)))


def batch_ns(launches: Sequence[Callable[[], None]]) -> float:
    """Nanoseconds a launch of a batch."""
    start = perf_counter_ns()
    for launch in launches:
        launch()
    return (perf_counter_ns() - start) / len(launches)


def _sample(calls: Sequence[Call], batch: int, samples: int, flush: Callable[[], None] | None) -> list[float]:
    rotation = cycle([call.launch for call in calls])
    times = []
    for _ in range(samples):
        launches = list(islice(rotation, batch))
        if flush:
            flush()
        times.append(batch_ns(launches))
    return times


def cold_calls(subject: Subject, batch: int) -> tuple[list[Call], Callable[[], None] | None, int | None]:
    """Calls over copies of the inputs, and what to do between batches when the copies do not fill the cache."""
    known = last_level_cache_bytes()
    cache = known or _DEFAULT_CACHE
    touched = subject.touched_bytes
    wanted = max(batch, 2 * cache // touched + 2)
    copies = max(1, min(wanted, _MAX_COPIES, _MEMORY_LIMIT // touched))
    calls = [subject.call]
    while len(calls) < copies:
        calls.append(subject.prepare({name: array.copy() for name, array in subject.inputs.items()}))
    # Twice the cache: by the time a copy's turn comes again, none of it is left.
    if copies * touched >= 2 * cache:
        return calls, None, known
    return calls, flusher(min(2 * cache, _FLUSH_LIMIT)), known


def flusher(size: int) -> Callable[[], None]:
    """A write over ``size`` bytes, which leaves nothing else in a cache of that size."""
    block: np.ndarray[Any, Any] = np.zeros(size // 8, np.uint64)

    def flush() -> None:
        block.__iadd__(np.uint64(1))

    return flush


def _empty_call_ns(subject: Subject) -> float:
    """What a ctypes call costs here, by one that only returns a number."""
    function = ctypes.CDLL(str(subject.library.path)).kdt_abi_version
    return min(batch_ns([function] * 1000) for _ in range(5))
