# SPDX-License-Identifier: Apache-2.0
"""Steps of one series of numbers; ``kdbench.analysis.history`` does it for a results frame.

How a step is found: levels by asv's L1 solver (``segments``), then boundaries are struck out, the least convincing
first, until each one left passes all of ``step_tests`` against the points of the pieces that then meet there. Striking
out joins pieces, so that a true step is judged with more points than the solver's own pieces give it.
``tests/test_history_detector.py`` holds the error rates under simulation, ``python -m kdbench.analysis.simulate``
prints them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from kdbench.analysis import step_tests
from kdbench.analysis.segments import CLIP, MIN_SIZE, Array, levels, median, phi_of, pieces_of
from kdbench.analysis.step_tests import ALPHA, WINDOW
from kdbench.analysis.steps import MIN_EFFECT, Detection, Step, mde, size
from kdbench.errors import InvalidArgument

# Fewer points cannot be split so that the rank test reaches ALPHA: 12 choose 6 is 924.
SHORTEST = 13
RANGE = 3


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
    least = mde(pieces.noise, WINDOW, WINDOW)
    return Detection(steps, pieces.noise, phi, least, False, _unjudged(len(v) - (steps[-1].at if steps else 0)))


def _strike_out(y: Array, ends: list[int], noise: float, min_effect: float) -> tuple[list[int], float]:
    """Boundaries that pass every test, and the autocorrelation about the levels between them."""
    sides_at = cache(lambda a, b, c: step_tests.sides_of(y, a, b, c))

    def basic(a: int, b: int, c: int) -> float:
        """p / ALPHA, a thousand times more (and more than 1) where the shift is too small to name."""
        sides = sides_at(a, b, c)
        doubt = sides.p / ALPHA
        return max(doubt, 2.0) * 1000.0 if size(sides.shift) < min_effect else doubt

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


def _step(y: Array, v: Array, a: int, b: int, c: int, noise: float, min_effect: float) -> Step:
    sides = step_tests.sides_of(y, a, b, c)
    left, right = len(sides.left), len(sides.right)
    least = mde(noise, left, right)
    before, after = median(v[b - left : b]), median(v[b : b + right])
    status = "confirmed" if size(sides.shift) >= max(min_effect, least) else "suspected"
    first, last = max(a + 1, b - RANGE), min(c - 1, b + RANGE)
    return Step(
        "step", b, first, last, b - 1, before, after, after / before - 1.0, sides.shift > 0, sides.p, least, status,
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
