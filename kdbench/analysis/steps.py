# SPDX-License-Identifier: Apache-2.0
"""What is said of a series' changes, and how small a change its points would show."""

from __future__ import annotations

import math
from dataclasses import dataclass

MIN_EFFECT = 0.02
_SURE = 4.37  # z at 99.9 % plus z at 90 %
_MEDIAN = 1.2533  # error of a median over that of a mean


@dataclass(frozen=True)
class Step:
    """A level that changed between two points, or crept between two levels.

    Attributes:
        kind: "step" | "drift".
        at: index of the first point behind the change; of a drift, of the newest point.
        first, last: the change may stand at any index from first to last.
        start: index of the last point before the change; of a drift, of the last one at the level compared with.
        before, after: medians of the points next to the change, in the series' unit.
        change: after / before - 1; its sign is the number's, not the judgement's.
        worse: whether it is a change for the worse.
        p: one-sided exact rank p-value.
        mde: least change, as a fraction, that the points here would show in nine of ten cases at p = 0.001.
        status: "confirmed" (change of at least max(least effect, mde)) | "suspected".
        points_before, points_after: how many points the two medians are made of.
        undone_at: index of the first point of the later step that brought the old level back, or None.
    """

    kind: str
    at: int
    first: int
    last: int
    start: int
    before: float
    after: float
    change: float
    worse: bool
    p: float
    mde: float
    status: str
    points_before: int
    points_after: int
    undone_at: int | None = None


@dataclass(frozen=True)
class Detection:
    """What a series shows.

    Attributes:
        steps: in order.
        noise: relative standard deviation of one point about its level; NaN when too short.
        phi: autocorrelation from point to point, 0 to 0.95.
        mde: least change that WINDOW points each side would show; NaN when too short.
        too_short: fewer than SHORTEST points: nothing can be said, which is not "no change".
        unjudged: how many of the newest points no step can be told at yet.
    """

    steps: tuple[Step, ...]
    noise: float
    phi: float
    mde: float
    too_short: bool
    unjudged: int


def size(shift: float) -> float:
    """A change of logarithms as a fraction, the same for a rise and for the fall that undoes it."""
    return math.expm1(abs(shift))


def mde(noise: float, before: int, after: int) -> float:
    """Minimum detectable effect between the medians of ``before`` and ``after`` independent points."""
    return _SURE * _MEDIAN * noise * math.sqrt(1.0 / before + 1.0 / after)
