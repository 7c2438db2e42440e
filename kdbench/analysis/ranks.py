# SPDX-License-Identifier: Apache-2.0
"""Exact rank statistics for the few process medians that one commit has.

No distribution is assumed: with five processes a side nothing else can be checked either. Ties are counted against
the claim, which keeps every p-value an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@cache
def _tail(m: int, n: int) -> tuple[float, ...]:
    """P(U <= k) for k = 0 .. m*n, U the Mann-Whitney statistic of m and n values from one distribution."""
    # The generating function of U is the Gaussian binomial coefficient, prod (1 - q^(n+i)) / (1 - q^i).
    size = m * n + 1
    counts = [1] + [0] * (size - 1)
    for i in range(1, m + 1):
        for k in range(size - 1, n + i - 1, -1):
            counts[k] -= counts[k - n - i]
        for k in range(i, size):
            counts[k] += counts[k - i]
    total = math.comb(m + n, m)
    return tuple(float(c) / total for c in np.cumsum(np.array(counts, dtype=object)))


def smallest_p(m: int, n: int) -> float:
    """The p-value of m and n values that do not overlap at all: what so few processes can show at best."""
    return min(1.0, 2.0 / math.comb(m + n, m))


def rank_p(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided exact Mann-Whitney p-value of "one side is larger", ties counted against it."""
    left, right = np.asarray(a, dtype=float)[:, None], np.asarray(b, dtype=float)[None, :]
    wins = max(int((left > right).sum()), int((left < right).sum()))
    return min(1.0, 2.0 * _tail(len(a), len(b))[len(a) * len(b) - wins])


def shift_interval(a: Sequence[float], b: Sequence[float], level: float) -> tuple[float, float] | None:
    """Exact interval of the shift a - b from the ordered pairwise differences (Hodges and Lehmann).

    Args:
        a, b: values on a scale where the change is a shift; logarithms, when it is a ratio.
        level: at least this coverage, e.g. 0.9.

    Returns:
        None when even the widest interval covers less than ``level``.
    """
    m, n = len(a), len(b)
    if m == 0 or n == 0 or smallest_p(m, n) > 1.0 - level + 1e-12:
        return None
    tail = _tail(m, n)
    cut = 0
    while cut + 1 < m * n / 2 and 2.0 * tail[cut + 1] <= 1.0 - level + 1e-12:
        cut += 1
    ordered = np.sort(np.subtract.outer(np.asarray(a, dtype=float), np.asarray(b, dtype=float)).ravel())
    return float(ordered[cut]), float(ordered[-1 - cut])


def median_interval(values: Sequence[float], level: float) -> tuple[float, float, float] | None:
    """Exact interval of the median from order statistics.

    Returns:
        (low, high, coverage): the narrowest with at least ``level``, else the whole range with the coverage it has.
        None for fewer than two values.
    """
    count = len(values)
    if count < 2:
        return None
    ordered = sorted(values)
    below = 0.0
    best = (ordered[0], ordered[-1], 1.0 - 2.0 ** (1 - count))
    for k in range(count // 2):
        below += math.comb(count, k) / 2.0**count
        coverage = 1.0 - 2.0 * below
        if coverage < level:
            break
        best = (ordered[k], ordered[-1 - k], coverage)
    return best


def one_sided_p(a: Sequence[float] | Array, b: Sequence[float] | Array) -> float:
    """Exact Mann-Whitney p-value of "a is larger than b", ties counted against it."""
    left, right = np.asarray(a, dtype=float), np.sort(np.asarray(b, dtype=float))
    wins = int(np.searchsorted(right, left, side="left").sum())
    return _tail(len(left), len(right))[len(left) * len(right) - wins]


def upper_binomial(successes: int, trials: int, chance: float) -> float:
    """P(X >= successes) of a binomial X, 0 < chance < 1."""
    odds, log_q = math.log(chance / (1.0 - chance)), math.log1p(-chance)
    return min(
        1.0, sum(math.exp(_log_choose(trials, k) + k * odds + trials * log_q) for k in range(successes, trials + 1))
    )


@cache
def _log_choose(n: int, k: int) -> float:
    return math.log(math.comb(n, k))
