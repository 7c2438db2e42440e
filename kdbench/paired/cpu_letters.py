# SPDX-License-Identifier: Apache-2.0
"""A letter on the CPU: a batch of one side's calls, and beside it the speed of fixed machine code.

The fixed code is hashlib's SHA-256 of a buffer that fits the nearest cache: its rate follows the core's clock, and
tells a clock that fell under one side from a slower kernel.
"""

from __future__ import annotations

import hashlib
import math
from itertools import cycle, islice
from time import perf_counter_ns

from kdbench.cpu_clock import batch_ns, cold_calls
from kdbench.paired.twin import TwinSubject
from kdbench.timing import LONGEST_CALL_S, MeasuringError

_BATCH_NS = 2_000_000
_WARM_UP_NS = 8_000_000
# Of one series in one process.
_BUDGET_NS = 250_000_000
_MOST_BLOCKS, _LEAST_BLOCKS = 10, 4
_REFERENCE = bytes(range(256)) * 64


class CpuLetters:
    """Letters of one subject, hot or cold.

    Attributes:
        calls: launches behind one letter.
        blocks: how many blocks to take.
    """

    def __init__(self, subject: TwinSubject, mode: str) -> None:
        pilot = max(self._pilot(subject, side) for side in (0, 1))
        if pilot > LONGEST_CALL_S * 1e9:
            raise MeasuringError(
                f"one call of {subject.workload.name} takes {pilot / 1e9:.1f} s: more than {LONGEST_CALL_S} s are not "
                "sampled"
            )
        self.calls = max(1, math.ceil(_BATCH_NS / pilot))
        self._flush = None
        if mode == "cold":
            copies, self._flush, _ = cold_calls(subject, self.calls)
            self.calls = min(self.calls, len(copies)) if self._flush else self.calls
        twins = subject.twins
        # One rotation for both sides: neither finds what the other has just read.
        self._places = cycle(range(len(twins)))
        self._launches = [[twin[side].launch for twin in twins] for side in (0, 1)]
        affordable = int(_BUDGET_NS / (4 * pilot * self.calls))
        self.blocks = max(_LEAST_BLOCKS, min(_MOST_BLOCKS, affordable // 2 * 2))

    def letter(self, side: int) -> tuple[float, float | None]:
        """Seconds a launch of one side, and the rate of the fixed code."""
        launches = [self._launches[side][place] for place in islice(self._places, self.calls)]
        if self._flush:
            self._flush()
        before = _reference_ns()
        taken = batch_ns(launches)
        return taken / 1e9, 1e9 / min(before, _reference_ns())

    @staticmethod
    def _pilot(subject: TwinSubject, side: int) -> float:
        launch = subject.twins[0][side].launch
        best, start, batch = math.inf, perf_counter_ns(), 1
        while True:
            best = min(best, batch_ns([launch] * batch))
            if perf_counter_ns() - start >= _WARM_UP_NS:
                return max(best, 1.0)
            batch = max(1, min(2 * batch, int(_BATCH_NS / best)))


def _reference_ns() -> int:
    start = perf_counter_ns()
    hashlib.sha256(_REFERENCE)
    return perf_counter_ns() - start
