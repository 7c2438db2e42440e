# SPDX-License-Identifier: Apache-2.0
"""Is this boundary a step? Four questions about the points on its two sides; every one must be answered with yes.

============== ======================================================================================================
rank           do the sides differ at all (exact Mann-Whitney, one-sided p <= 1e-3) and by at least the least effect?
whitened       where points follow their predecessors closely (phi > 0.65): is the jump large against the *innovations*
               of an AR(1) process? A wandering series drifts from level to level; a step jumps
sudden         is it a step and not a slope: does a jump remain when both sides may share a slope?
new level      does the shorter side hold more points at its level than the other side's own points there explain?
               Points that come in two modes make runs of one mode; that is no step
============== ======================================================================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from kdbench.analysis.ranks import one_sided_p, upper_binomial
from kdbench.analysis.segments import CLIP, Array, median

WINDOW = 20
LEVEL_WINDOW = 60
SLOPE_WINDOW = 10
ALPHA = 1e-3
PHI_CLOSE = 0.65
Z_WHITENED = 3.0
SLOPE_SHORTFALL, SLOPE_JUMP = 3.0, 2.5
LEVEL_ALPHA, LEVELS_APART = 1e-2, 6.0


@dataclass(frozen=True)
class Sides:
    """The points next to a boundary.

    Attributes:
        left, right: at most WINDOW points of the pieces that meet there.
        shift: median of the right minus median of the left, in logarithms.
        p: one-sided exact p-value of that direction.
    """

    left: Array
    right: Array
    shift: float
    p: float


def sides_of(y: Array, start: int, boundary: int, stop: int) -> Sides:
    """The points at most WINDOW away from ``boundary`` and within [start, stop)."""
    left, right = y[max(start, boundary - WINDOW) : boundary], y[boundary : min(stop, boundary + WINDOW)]
    shift = median(right) - median(left)
    p = one_sided_p(right, left) if shift > 0 else one_sided_p(left, right)
    return Sides(left, right, shift, p)


def whitened_z(sides: Sides, noise: float, phi: float, innovation: float) -> float:
    """The step's generalised-least-squares estimate under AR(1) errors, in its standard errors; > 0 in its direction.

    Args:
        noise: clips the points about their side's median, so that a lone outlier is no innovation.
        innovation: standard deviation of y[t] - phi · y[t - 1] about the levels.
    """
    clipped = [np.clip(side, m - CLIP * noise, m + CLIP * noise) for side, m in _with_medians(sides)]
    y = np.concatenate(clipped)
    jump = np.zeros(len(y))
    jump[len(sides.left) :] = 1.0
    one, step, white = (_whiten(x, phi) for x in (np.ones(len(y)), jump, y))
    aa, ah, hh, ay, hy = one @ one, one @ step, step @ step, one @ white, step @ white
    det = aa * hh - ah * ah
    z = float((aa * hy - ah * ay) / det * math.sqrt(det / aa) / innovation)
    return math.copysign(1.0, sides.shift) * z


def is_slope(sides: Sides, noise: float) -> bool:
    """Whether a common slope explains the difference: little jump is left, and far less than the sides differ by."""
    before, after = (np.clip(side, m - CLIP * noise, m + CLIP * noise) for side, m in _with_medians(sides))
    y = np.concatenate([before[-SLOPE_WINDOW:], after[:SLOPE_WINDOW]])
    solution, error = _jump_beside_slope(min(len(before), SLOPE_WINDOW), min(len(after), SLOPE_WINDOW))
    unit = error * noise
    jump = math.copysign(1.0, sides.shift) * float(solution @ y) / unit
    return jump < SLOPE_JUMP and abs(sides.shift) / unit - jump > SLOPE_SHORTFALL


def level_chance(y: Array, start: int, boundary: int, stop: int, noise: float) -> float:
    """How likely so many points at a level are, were they drawn as the other side draws them; of both sides the larger.

    The binomial tail of the points at the right's level or beyond, given the left's part of such points, and the
    mirrored one; 0 for levels so near that noise alone mixes them. A part k of m is taken as (k + 1) / (m + 2).
    """
    left = y[max(start, boundary - LEVEL_WINDOW) : boundary]
    right = y[boundary : min(stop, boundary + LEVEL_WINDOW)]
    sign = 1.0 if median(right) > median(left) else -1.0
    left, right = sign * left, sign * right
    if median(right) - median(left) < LEVELS_APART * noise:
        return 0.0
    high, low = median(right) - CLIP * noise, median(left) + CLIP * noise
    return max(
        upper_binomial(int((right >= high).sum()), len(right), (int((left >= high).sum()) + 1) / (len(left) + 2)),
        upper_binomial(int((left <= low).sum()), len(left), (int((right <= low).sum()) + 1) / (len(right) + 2)),
    )


def _with_medians(sides: Sides) -> tuple[tuple[Array, float], tuple[Array, float]]:
    return (sides.left, median(sides.left)), (sides.right, median(sides.right))


def _whiten(x: Array, phi: float) -> Array:
    out = np.empty_like(x)
    out[0] = math.sqrt(1.0 - phi * phi) * x[0]
    out[1:] = x[1:] - phi * x[:-1]
    return out


@cache
def _jump_beside_slope(before: int, after: int) -> tuple[Array, float]:
    """Weights that estimate the jump by least squares beside a level and a slope, and its error in units of noise."""
    t = np.arange(before + after) - float(before)
    weights = np.linalg.pinv(np.column_stack([np.ones_like(t), t, t >= 0]))[2]
    return weights, float(np.sqrt(weights @ weights))
