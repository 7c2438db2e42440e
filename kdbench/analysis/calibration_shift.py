# SPDX-License-Identifier: Apache-2.0
"""Did the calibration kernels move? Between two groups of records, or from before to after a measurement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median, stdev
from typing import Any

from kdbench.analysis.process_records import Label, Record, dig, series_of
from kdbench.analysis.robust import robust_sd

# They repeat within some tenths of a per cent on a GPU; a smaller move explains no verdict.
LEAST_MOVE = 0.01
_SIGMAS = 4.0
# Fewer processes say nothing of how much a reading scatters.
LEAST_PROCESSES = 3
# What they take depends on what the process has run before.
LAUNCH_KERNELS = ("empty",)


@dataclass(frozen=True)
class Reading:
    """One calibration kernel in one process, ln seconds before and after the measurement.

    Attributes:
        series: that was measured: where a process's memory lies, and with it what L2 gives, depends on it.
    """

    series: str
    before: float
    after: float


def readings(records: Iterable[Record]) -> dict[tuple[str, str, str], list[Reading]]:
    """What each process read, by (backend, calibration kernel, code); a missing one is left out.

    ``code`` tells readings apart that were taken with other machine code or another plan.
    """
    found: dict[tuple[str, str, str], list[Reading]] = {}
    for record in records:
        calibration = record.get("calibration")
        code = f"{dig(calibration, 'plan')} {dig(calibration, 'code', 'sha256')}"
        first, last = (dig(calibration, when, "seconds") or {} for when in ("before", "after"))
        for kernel in first:
            if first[kernel] and last.get(kernel):
                read = Reading(series_of(record), math.log(first[kernel]), math.log(last[kernel]))
                found.setdefault((str(dig(calibration, "backend")), str(kernel), code), []).append(read)
    return found


def levels(kernel: str, side: Iterable[Reading], origin: Iterable[Reading] = ()) -> list[float]:
    """One value a process, ln seconds; with ``origin`` less the median that the same series has there."""
    by_series: dict[str, list[float]] = {}
    for each in origin:
        by_series.setdefault(each.series, []).append(_level(kernel, each))
    zero = {series: median(values) for series, values in by_series.items()}
    return [_level(kernel, each) - zero.get(each.series, 0.0) for each in side]


def _level(kernel: str, reading: Reading) -> float:
    # A process that has run somebody's kernels launches more slowly than a fresh one, and the machine is the same.
    return reading.before if kernel in LAUNCH_KERNELS else (reading.before + reading.after) / 2


def moved(old: Sequence[float], new: Sequence[float], least: float = LEAST_MOVE) -> float | None:
    """ln of how much a calibration kernel's time changed, when that is no chance; None when it did not.

    Args:
        old, new: ln seconds, one value a process.
        least: a relative change below this one is none.
    """
    if min(len(old), len(new)) < LEAST_PROCESSES:
        return None
    shift = median(new) - median(old)
    # Of a few values the robust sd is too small too often.
    spreads = [max(robust_sd(side), stdev(side)) for side in (old, new)]
    error = math.hypot(*(1.2533 * sd / math.sqrt(len(side)) for sd, side in zip(spreads, (old, new), strict=True)))
    return shift if abs(shift) >= max(math.log1p(least), _SIGMAS * error) else None


def calibrations(before: Sequence[Record], after: Sequence[Record]) -> Iterator[Label]:
    """What of the calibration kernels differs between two groups of records: their times, or their code."""
    old, new = readings(before), readings(after)
    for (backend, kernel, code), pairs in new.items():
        known = old.get((backend, kernel, code))
        if known:
            shift = moved(levels(kernel, known, known), levels(kernel, pairs, known))
            if shift is not None:
                detail = f"calibration kernel {kernel} {100 * math.expm1(shift):+.1f} % time"
                yield Label(f"calibration {kernel}", "calibration", backend, math.exp(shift), detail)
    for backend in sorted({place[0] for place in new} & {place[0] for place in old}):
        codes = [sorted({place[2] for place in side if place[0] == backend}) for side in (old, new)]
        if not set(codes[0]) & set(codes[1]):
            detail = (
                f"calibration kernels have other machine code: {' and '.join(codes[0])} -> {' and '.join(codes[1])}"
            )
            yield Label("calibration code", "note", backend, math.nan, detail)


def stability(records: Sequence[Record]) -> list[dict[str, Any]]:
    """How well calibration kernels repeat from process to process.

    Returns:
        One dict a backend and kernel: ``backend``, ``kernel``, ``processes``, ``seconds`` (median), ``spread`` (robust
        relative sd of processes of the same series), ``after`` (median of after / before, less 1).
    """
    rows = []
    for (backend, kernel, _), read in sorted(readings(records).items()):
        values = levels(kernel, read)
        around = levels(kernel, read, read)
        rows.append(
            {
                "backend": backend,
                "kernel": kernel,
                "processes": len(read),
                "seconds": math.exp(median(values)),
                "spread": robust_sd(around),
                "after": math.expm1(median(each.after - each.before for each in read)),
            }
        )
    return rows
