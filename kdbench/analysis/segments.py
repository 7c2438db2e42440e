# SPDX-License-Identifier: Apache-2.0
"""A series as pieces of constant level: its noise, its autocorrelation, and asv's L1 Potts solver under our penalty.

The solver is ``asv.step_detect.solve_potts_approx``: exact dynamic programming over short pieces, then merging. asv
itself searches for a penalty; here the penalty comes from the noise of the series.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from asv import step_detect
from numpy.lib.stride_tricks import sliding_window_view

Array = npt.NDArray[np.float64]

MIN_SIZE = 3
PENALTY = 3.0
CLIP = 3.0
PHI_STRONG = 0.6
FEWEST_FOR_PHI = 30
NOISE_FLOOR = 1e-4
_RUNNING = 9
_INFLATION_FROM, _INFLATION_MOST, _PHI_MOST = 1.15, 3.0, 0.95
_MAD = 0.6745


def median(x: Array) -> float:
    """The median of a short array; ``np.median`` takes most of its time to look at what it was given."""
    ordered, half = np.sort(x), len(x) // 2
    return float(ordered[half] if len(x) % 2 else 0.5 * (ordered[half - 1] + ordered[half]))


@dataclass(frozen=True)
class Pieces:
    """A piecewise constant fit.

    Attributes:
        ends: [0, …, n]; piece i holds the points ends[i] up to, but not including, ends[i + 1].
        noise: robust standard deviation of one point about its level.
        phi: lag-1 autocorrelation of the points about their levels, between 0 and 0.95.
    """

    ends: list[int]
    noise: float
    phi: float

    @property
    def inflation(self) -> float:
        """By how much autocorrelation widens the error of a level, against independent points; at most 3."""
        return inflation(self.phi)


def noise_of(y: Array) -> float:
    """Robust standard deviation of one point: the larger of what differences and what a running median say.

    Steps hardly touch either. Differences alone call slow wandering no noise; residuals of the median alone are blind
    to noise that alternates.

    Args:
        y: at least two finite values; logarithms, so that noise is relative.
    """
    d = np.diff(y)
    by_differences = median(np.abs(d - median(d))) / (_MAD * math.sqrt(2.0))
    windows = sliding_window_view(np.pad(y, _RUNNING // 2, mode="edge"), _RUNNING)
    middle = np.partition(windows, _RUNNING // 2, axis=1)[:, _RUNNING // 2]
    # A median of nine follows its own middle point a little.
    by_residuals = median(np.abs(y - middle)) / _MAD * math.sqrt(9.0 / 7.5)
    return max(by_differences, by_residuals, NOISE_FLOOR)


def phi_of(y: Array, ends: list[int], noise: float, *, unbiased: bool = True) -> float:
    """Lag-1 autocorrelation of the residuals of a fit by piecewise medians, freed of its bias.

    Taking a level out of m points lowers the estimate by (1 + 3 phi) / m (M. G. Kendall, "Note on bias in the
    estimation of autocorrelation", Biometrika 41, 1954); with the short pieces of a wandering series that is much.
    The estimate of fewer than 30 points is left alone: a correction would mostly follow noise.
    """
    e = np.clip(y - levels(y, ends), -CLIP * noise, CLIP * noise)
    power = float(e @ e)
    if power <= 0.0:
        return 0.0
    products = e[1:] * e[:-1]
    raw = float(products.sum()) / power
    if unbiased and len(y) >= FEWEST_FOR_PHI:
        # Pairs across a boundary tell nothing.
        within = np.ones(len(products), dtype=bool)
        within[[end - 1 for end in ends[1:-1]]] = False
        size = len(y) / (len(ends) - 1)
        raw = float(products[within].mean()) / power * len(y)
        raw = (raw + 1.0 / size) / max(1.0 - 3.0 / size, 0.5)
    return min(max(raw, 0.0), _PHI_MOST)


def inflation(phi: float) -> float:
    """sqrt((1 + phi) / (1 - phi)), at most 3."""
    return min(_INFLATION_MOST, math.sqrt((1.0 + phi) / (1.0 - phi)))


def levels(y: Array, ends: list[int]) -> Array:
    """The median of its piece, for each point."""
    return np.concatenate([np.full(b - a, median(y[a:b])) for a, b in itertools.pairwise(ends)])


def pieces_of(y: Array) -> Pieces:
    """Cut a series into levels.

    Two passes: the penalty of the first, 3 · noise · ln n, is right for independent points; the second multiplies it by
    what the residuals of the first say of autocorrelation, and runs only where that matters.

    Args:
        y: at least two finite values. The solver does not end on a NaN or an infinity.
    """
    noise = noise_of(y)
    listed, weights = y.tolist(), [1.0] * len(y)
    memory = step_detect.get_mu_dist(listed, weights)
    penalty = PENALTY * noise * math.log(len(y))

    def solve(gamma: float) -> list[int]:
        right, _, _ = step_detect.solve_potts_approx(listed, weights, gamma=gamma, min_size=MIN_SIZE, mu_dist=memory)
        return [0, *(int(end) for end in right)]

    ends = solve(penalty)
    phi = phi_of(y, ends, noise)
    # Freed of its bias the estimate scatters more, which costs small steps in noise that hardly wanders.
    by = inflation(phi if phi > PHI_STRONG else phi_of(y, ends, noise, unbiased=False))
    if by > _INFLATION_FROM:
        ends = solve(penalty * by)
    return Pieces(ends, noise, phi)
