# SPDX-License-Identifier: Apache-2.0
"""Steps and drift of one series of numbers; ``kdbench.analysis.history`` does it for a results frame.

How a step is found: levels by asv's L1 solver (``segments``), then boundaries are struck out, the least convincing
first, until each one left passes all of ``step_tests`` against the points of the pieces that then meet there. Striking
out joins pieces, so that a true step is judged with more points than the solver's own pieces give it.
``tests/test_history_detector.py`` holds the error rates under simulation, ``python -m kdbench.analysis.simulate``
prints them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from kdbench.analysis import step_tests
from kdbench.analysis.ranks import one_sided_p
from kdbench.analysis.segments import CLIP, MIN_SIZE, Array, levels, median, phi_of, pieces_of
from kdbench.analysis.step_tests import ALPHA, WINDOW
from kdbench.errors import InvalidArgument

MIN_EFFECT = 0.02
# Fewer points cannot be split so that the rank test reaches ALPHA: 12 choose 6 is 924.
SHORTEST = 13
RANGE = 3
_WINDOWS_OVERLAP = 4
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


def detect(values: Sequence[float], direction: str, *, min_effect: float = MIN_EFFECT) -> Detection:
    """Find the steps of a series.

    Args:
        values: finite numbers > 0, one a commit, oldest first.
        direction: "lower" or "higher": what is better.
        min_effect: least change worth naming, a fraction.

    Raises:
        InvalidArgument: a value is not finite or not positive, or the direction is neither.
    """
    if direction not in ("lower", "higher"):
        raise InvalidArgument(f'direction must be "lower" or "higher", not {direction!r}')
    v = np.asarray(values, dtype=float)
    if v.ndim != 1 or not (np.isfinite(v) & (v > 0)).all():
        raise InvalidArgument("values must be a flat sequence of finite numbers > 0; leave out what was not measured")
    if len(v) < SHORTEST:
        return Detection((), math.nan, math.nan, math.nan, True, len(v))
    worse_up = 1.0 if direction == "lower" else -1.0
    y = worse_up * np.log(v)
    pieces = pieces_of(y)
    ends, phi = _strike_out(y, pieces.ends, pieces.noise, min_effect)
    found = [_step(y, v, ends[i - 1], ends[i], ends[i + 1], pieces.noise, min_effect) for i in range(1, len(ends) - 1)]
    steps = tuple(replace(step, undone_at=_undone_at(step, found[i + 1 :], min_effect)) for i, step in enumerate(found))
    mde = _mde(pieces.noise, WINDOW, WINDOW)
    return Detection(steps, pieces.noise, phi, mde, False, _unjudged(len(v) - (steps[-1].at if steps else 0)))


def drift(
    values: Sequence[float],
    direction: str,
    found: Detection,
    *,
    min_effect: float = MIN_EFFECT,
    release: int | None = None,
) -> Step | None:
    """What small steps add up to: the newest level against an earlier one, less the steps that are named already.

    Args:
        values, direction, min_effect: as for ``detect``.
        found: what ``detect`` said of them.
        release: index of the point to compare with (its level: it and the points before it); by default the best level
            that as many points in a row ever had.

    Returns:
        A worsening that neither noise nor the steps in ``found`` explain, as a ``Step`` of kind "drift"; else None.
    """
    count = min(WINDOW, len(values) // 4)
    if found.too_short or count < 6:
        return None
    v = np.asarray(values, dtype=float)
    y = np.log(v) if direction == "lower" else -np.log(v)
    start = len(y) - count
    if release is None:
        apart = max(1, count // _WINDOWS_OVERLAP)
        medians = np.median(np.lib.stride_tricks.sliding_window_view(y[:start], count)[::apart], axis=1)
        low = int(np.argmin(medians)) * apart
        tests = len(medians)
    else:
        low, tests = max(0, release + 1 - count), 1
        if release >= start or release + 1 < 6:
            return None
    old, new = y[low : low + count] if release is None else y[low : release + 1], y[start:]
    last = low + len(old) - 1
    sign = 1.0 if direction == "lower" else -1.0
    # Steps inside a window shift its median by no more than themselves; only those between the two are all counted.
    named = sum(sign * math.log1p(s.change) for s in found.steps if low < s.at < len(y))
    total = median(new) - median(old)
    p = min(1.0, one_sided_p(new, old) * tests)
    wander = math.sqrt((1.0 + found.phi) / (1.0 - found.phi))
    mde = math.expm1(math.log1p(_mde(found.noise, len(old), len(new))) * wander)
    if p > ALPHA or math.expm1(min(total, total - named)) < max(min_effect, mde):
        return None
    before, after = median(v[low : last + 1]), median(v[start:])
    return Step(
        "drift", len(y) - 1, last + 1, len(y) - 1, last, before, after, after / before - 1.0, True, p, mde, "confirmed",
        len(old), len(new),
    )  # fmt: skip


def _strike_out(y: Array, ends: list[int], noise: float, min_effect: float) -> tuple[list[int], float]:
    """Boundaries that pass every test, and the autocorrelation about the levels between them."""
    sides_at = cache(lambda a, b, c: step_tests.sides_of(y, a, b, c))

    def basic(a: int, b: int, c: int) -> float:
        """p / ALPHA, a thousand times more (and more than 1) where the shift is too small to name."""
        sides = sides_at(a, b, c)
        doubt = sides.p / ALPHA
        return max(doubt, 2.0) * 1000.0 if _size(sides.shift) < min_effect else doubt

    # Rank and size first, on their own: they say which levels there are, and those say how the points hang together.
    ends = _eliminate(ends, basic)
    phi = phi_of(y, ends, noise)
    e = np.clip(y - levels(y, ends), -CLIP * noise, CLIP * noise)
    u = e[1:] - phi * e[:-1]
    innovation = max(median(np.abs(u - median(u))) * 1.4826, 1e-4)

    def doubt(a: int, b: int, c: int) -> float:
        rank = basic(a, b, c)
        if rank > 1.0:
            return rank
        sides = sides_at(a, b, c)
        failed = step_tests.level_chance(y, a, b, c, noise) * len(y) > step_tests.LEVEL_ALPHA
        failed = failed or step_tests.is_slope(sides, noise)
        if phi > step_tests.PHI_CLOSE:
            failed = failed or step_tests.whitened_z(sides, noise, phi, innovation) < step_tests.Z_WHITENED
        # The weakest goes first, and what fails only here goes after what has no rank.
        return 1.0 + rank if failed else rank

    return _eliminate(ends, doubt), phi


def _eliminate(ends: list[int], doubt: Callable[[int, int, int], float]) -> list[int]:
    """Strike out the boundary of the largest doubt until none exceeds 1."""
    ends = list(ends)
    known: dict[tuple[int, int, int], float] = {}
    while len(ends) > 2:
        doubts = []
        for i in range(1, len(ends) - 1):
            key = (ends[i - 1], ends[i], ends[i + 1])
            if key not in known:
                known[key] = doubt(*key)
            doubts.append(known[key])
        worst = int(np.argmax(doubts))
        if doubts[worst] <= 1.0:
            break
        del ends[worst + 1]
    return ends


def _size(shift: float) -> float:
    """A change as a fraction, the same for a rise and for the fall that undoes it."""
    return math.expm1(abs(shift))


def _mde(noise: float, before: int, after: int) -> float:
    return _SURE * _MEDIAN * noise * math.sqrt(1.0 / before + 1.0 / after)


def _step(y: Array, v: Array, a: int, b: int, c: int, noise: float, min_effect: float) -> Step:
    sides = step_tests.sides_of(y, a, b, c)
    left, right = len(sides.left), len(sides.right)
    mde = _mde(noise, left, right)
    before, after = median(v[b - left : b]), median(v[b : b + right])
    status = "confirmed" if _size(sides.shift) >= max(min_effect, mde) else "suspected"
    first, last = max(a + 1, b - RANGE), min(c - 1, b + RANGE)
    return Step(
        "step", b, first, last, b - 1, before, after, after / before - 1.0, sides.shift > 0, sides.p, mde, status,
        left, right,
    )  # fmt: skip


def _undone_at(step: Step, later: Sequence[Step], min_effect: float) -> int | None:
    """The later step whose level is no further from the old one than the least effect, or is beyond it."""
    for other in later:
        if other.worse == step.worse:
            continue
        left = math.log(other.after / step.before) * (1.0 if step.change > 0 else -1.0)
        if left < math.log1p(min_effect):
            return other.at
    return None


def _unjudged(since: int) -> int:
    """How many of the newest points are too few to follow the others, of ``since`` points at one level."""
    for after in range(MIN_SIZE, since):
        if math.comb(min(since - after, WINDOW) + after, after) >= 1.0 / ALPHA:
            return after - 1
    return since
