# SPDX-License-Identifier: Apache-2.0
"""Did the calibration kernels move? Between two groups of records, or from before to after a measurement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import median, stdev

from kdbench.analysis.process_records import Label, Record, dig
from kdbench.analysis.robust import robust_sd

# They repeat within some tenths of a per cent on a GPU; a smaller move explains no verdict.
LEAST_MOVE = 0.01
_SIGMAS = 4.0
# Fewer processes say nothing of how much a reading scatters.
LEAST_PROCESSES = 3


def readings(records: Iterable[Record]) -> dict[tuple[str, str, str], list[tuple[float, float]]]:
    """ln seconds (before, after) of each process by (backend, calibration kernel, code); a missing one is left out.

    ``code`` tells readings apart that were taken with other machine code or another plan.
    """
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for record in records:
        calibration = record.get("calibration")
        code = f"{dig(calibration, 'plan')} {dig(calibration, 'code', 'sha256')}"
        first, last = (dig(calibration, when, "seconds") or {} for when in ("before", "after"))
        for kernel in first:
            if first[kernel] and last.get(kernel):
                place = (str(dig(calibration, "backend")), str(kernel), code)
                found.setdefault(place, []).append((math.log(first[kernel]), math.log(last[kernel])))
    return found


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
            was, now = ([(first + last) / 2 for first, last in side] for side in (known, pairs))
            shift = moved(was, now)
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
