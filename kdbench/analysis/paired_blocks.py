# SPDX-License-Identifier: Apache-2.0
"""From the letters of ABBA blocks to the value of one process.

A block is A B B A or B A A B; its value is half of ln b1 + ln b2 - ln a1 - ln a2, in which linear drift cancels. A
process's value is the median of its blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

Letter = tuple[float, float | None]  # seconds, clock


@dataclass(frozen=True)
class ProcessValue:
    """One process of one series.

    Attributes:
        time: ln(head / base) of times.
        cycles: the same in clock cycles; None unless every letter of at least half of the blocks has a clock.
        clock: ln of the clock under head over the one under base; None as above.
        curvature: median of the blocks that base began, minus that of the others; None without both kinds. Drift that
            is not linear shows here.
        base_s, head_s: medians of the letters, seconds.
        blocks: their values, ln.
    """

    time: float
    cycles: float | None
    clock: float | None
    curvature: float | None
    base_s: float
    head_s: float
    blocks: tuple[float, ...]


def process_value(blocks: Sequence[Sequence[Letter]], first: Sequence[int]) -> ProcessValue:
    """The value of one process.

    Args:
        blocks: four letters each, in the order in which they were taken.
        first: per block 0 when base was taken first (A B B A), 1 when head was.
    """
    times = [_contrast([seconds for seconds, _ in block], side) for block, side in zip(blocks, first, strict=True)]
    clocks = []
    for block, side in zip(blocks, first, strict=True):
        found = [clock for _, clock in block if clock is not None and clock > 0]
        clocks.append(_contrast(found, side) if len(found) == len(block) else None)
    both = [(t, c) for t, c in zip(times, clocks, strict=True) if c is not None]
    known = 2 * len(both) >= len(times) and bool(both)
    by_first = [[value for value, side in zip(times, first, strict=True) if side == wanted] for wanted in (0, 1)]
    base, head = _sides(blocks, first)
    return ProcessValue(
        time=median(times),
        cycles=median(t + c for t, c in both) if known else None,
        clock=median(c for _, c in both) if known else None,
        curvature=median(by_first[0]) - median(by_first[1]) if all(by_first) else None,
        base_s=median(base),
        head_s=median(head),
        blocks=tuple(times),
    )


def _contrast(values: Sequence[float], first: int) -> float:
    outer, inner = math.log(values[0]) + math.log(values[3]), math.log(values[1]) + math.log(values[2])
    return 0.5 * (outer - inner if first else inner - outer)


def _sides(blocks: Sequence[Sequence[Letter]], first: Sequence[int]) -> tuple[list[float], list[float]]:
    found: tuple[list[float], list[float]] = ([], [])
    for block, side in zip(blocks, first, strict=True):
        for place, (seconds, _) in enumerate(block):
            found[side if place in (0, 3) else 1 - side].append(seconds)
    return found
