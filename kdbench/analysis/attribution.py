# SPDX-License-Identifier: Apache-2.0
"""Was it the code or the machine? What labels of a machine's changes allow to be said of a series that moved.

============================================================ ========= =================================================
the machine                                                  cause     so the word is
============================================================ ========= =================================================
nothing changed that is recorded                             code      regressed (or improved)
nothing is recorded                                          unknown   the same; nobody vouches for the machine
calibration moved, and as far as the series or further       machine   machine changed
calibration moved, and the series further or the other way   ambiguous both moved: measure again on a still machine
a covariate changed                                          machine   machine changed
a covariate changed, and of many series only few moved; or   ambiguous both may have changed: measure both commits again
the series moved by a tenth while calibration held still               under the new state
============================================================ ========= =================================================

Calibration kernels label and never divide: a figure that was scaled by another one carries the noise of both.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from kdbench.analysis.calibration_shift import LAUNCH_KERNELS, LEAST_PROCESSES, levels, moved, readings
from kdbench.analysis.covariates import changed, in_company, slowed_down
from kdbench.analysis.process_records import Label, Record, dig, of_backend

CODE, MACHINE, AMBIGUOUS, UNKNOWN = CAUSES = ("code", "machine", "ambiguous", "unknown")
# Of this many series and more it says something that only few of them moved.
_MANY = 5
# What holds calibration kernels still moves no series this far.
_FAR = 0.10
_FEW = 0.34
# As in the rule of paired comparisons: more marked processes than this and the machine was not itself.
_MARKED = 0.2
# A machine that warms up moves a little from before to after.
_DRIFT = 0.02

# Which calibration kernels bear on a kernel, by what bounds it: all of them where that is not known.
_BEARING = {
    ("cuda", "compute", "hot"): {"fma"},
    ("cuda", "compute", "cold"): {"fma", "copy"},
    ("cuda", "memory", "hot"): {"copy", "l2_copy", "fma"},
    ("cuda", "memory", "cold"): {"copy"},
    ("cuda", "latency", "hot"): {"fma", "l2_copy", "empty"},
    ("cuda", "latency", "cold"): {"fma", "copy", "l2_copy", "empty"},
}


@dataclass(frozen=True)
class Attribution:
    """Who moved a series.

    Attributes:
        cause: one of ``CAUSES``.
        reason: a sentence for people; "" when nothing of the machine changed.
    """

    cause: str
    reason: str


def attribute(
    slowdown: float,
    labels: Iterable[Label],
    *,
    backend: str,
    roofline: str = "",
    mode: str = "",
    min_effect: float = 0.02,
    recorded: bool = True,
    held: bool = False,
    siblings: Collection[float] | None = None,
) -> Attribution:
    """Say what moved a series, by what else changed at the same commit.

    Args:
        slowdown: after / before of the series after direction, so that more than 1 is worse.
        labels: as from ``kdbench.analysis.covariates.changed``, of its machine at that commit.
        backend, roofline, mode: of the series; "" for what it has not.
        min_effect: what may be left of the change for calibration to explain it.
        recorded: both sides have records; without them an absent label means nothing.
        held: both sides read calibration kernels, so that the absence of their label means that they held still.
        siblings: slowdowns of the other series of that machine and backend at the same commit; None when not known.

    Raises:
        ValueError: ``slowdown`` is no positive number.
    """
    if not (slowdown > 0 and math.isfinite(slowdown)):
        raise ValueError(f"slowdown is {slowdown!r}, and a finite number above 0 is expected")
    mine = [label for label in labels if label.backend in ("", backend)]
    covariates = [label.detail for label in mine if label.kind == "covariate"]
    calibration = [label for label in mine if label.kind == "calibration"]
    notes = [label.detail for label in mine if label.kind == "note"]
    if calibration:
        return _by_calibration(math.log(slowdown), calibration, covariates, (backend, roofline, mode), min_effect)
    if not covariates:
        return Attribution(CODE if recorded else UNKNOWN, "; ".join(notes))
    reason = "; ".join(covariates)
    if held and abs(math.log(slowdown)) >= math.log1p(max(_FAR, min_effect)):
        told = f"{reason}; yet the calibration kernels held still, and the series moved far: measure both commits again"
        return Attribution(AMBIGUOUS, told)
    if siblings is not None and len(siblings) >= _MANY:
        along = sum(abs(math.log(each)) >= math.log1p(min_effect) / 2 for each in siblings)
        if along < _FEW * len(siblings):
            told = f"{reason}; yet only {along} of {len(siblings)} other series moved: measure both commits again"
            return Attribution(AMBIGUOUS, told)
    return Attribution(MACHINE, reason)


def explain(
    slowdown: float,
    before: Sequence[Record],
    after: Sequence[Record],
    *,
    backend: str,
    roofline: str = "",
    mode: str = "",
    min_effect: float = 0.02,
    siblings: Collection[float] | None = None,
) -> Attribution:
    """``attribute`` from the records of two commits of one machine, all series of both; see there."""
    sides = of_backend(before, backend), of_backend(after, backend)
    return attribute(
        slowdown,
        changed(before, after),
        backend=backend,
        roofline=roofline,
        mode=mode,
        min_effect=min_effect,
        recorded=all(sides),
        held=all(vouched(side, backend) for side in sides),
        siblings=siblings,
    )


def _by_calibration(
    change: float, moves: Sequence[Label], covariates: Sequence[str], place: tuple[str, str, str], min_effect: float
) -> Attribution:
    bearing = _BEARING.get(place)
    shifts = [math.log(label.ratio) for label in moves if bearing is None or label.what.split()[-1] in bearing]
    # A kernel is moved by what bounds it, wholly or in part: anything between nothing and the largest move.
    low, high = min(0.0, *shifts, 0.0), max(0.0, *shifts, 0.0)
    left = change - min(max(change, low), high)
    reason = "; ".join([*(label.detail for label in moves), *covariates])
    if shifts and abs(left) < math.log1p(min_effect):
        return Attribution(MACHINE, reason)
    if not shifts:
        return Attribution(AMBIGUOUS, f"{reason}, which does not bear on this series; but the machine is not the same")
    return Attribution(AMBIGUOUS, f"{reason}; {100 * math.expm1(left):+.1f} % of the change are left: both moved")


def disturbances(records: Sequence[Record], backend: str) -> tuple[str, ...]:
    """Why the figures of one session are in doubt, a sentence each; empty for a quiet one.

    Args:
        records: of its processes, in the order in which they ran.
        backend: what was measured.
    """
    found = []
    if backend == "cuda" and records:
        company = sum(map(in_company, records))
        if company:
            found.append(f"another process computed on the GPU beside {company} of {len(records)} processes")
        slowed = sum(map(slowed_down, records))
        if slowed > _MARKED * len(records):
            found.append(f"thermal or hardware slowdown in {slowed} of {len(records)} processes")
    for (where, kernel, _), read in readings(records).items():
        if where != backend:
            continue
        values = levels(kernel, read, read)
        spans = [((values[: len(values) // 2], values[len(values) // 2 :]), "during the session")]
        if kernel not in LAUNCH_KERNELS:
            sides = [each.before for each in read], [each.after for each in read]
            spans.append((sides, "from before to after a measurement"))
        for (old, new), when in spans:
            shift = moved(old, new, _DRIFT)
            if shift is not None:
                found.append(f"calibration kernel {kernel} moved by {100 * math.expm1(shift):+.1f} % {when}")
    return tuple(found)


def vouched(records: Sequence[Record], backend: str) -> bool:
    """True when enough processes of ``backend`` read the calibration kernels to tell that they held still."""
    read = [record for record in records if dig(record, "calibration", "backend") == backend]
    return bool(readings(read)) and min(map(len, readings(read).values())) >= LEAST_PROCESSES
