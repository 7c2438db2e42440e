# SPDX-License-Identifier: Apache-2.0
"""Quantiles of Student's t for whole degrees of freedom, so that analysis needs nothing beside NumPy and pandas."""

from __future__ import annotations

import math
from functools import cache


def t_cdf(t: float, freedom: int) -> float:
    """P(T <= t): the finite series in the angle atan(t / sqrt(freedom)).

    M. Abramowitz and I. A. Stegun, "Handbook of Mathematical Functions" (1964), 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = freedom % 2
    total = term = math.cos(angle) if odd else 1.0
    for k in range(2 if odd else 1, freedom - 2, 2):
        term *= square * k / (k + 1)
        total += term
    inside = (angle + (sine * total if freedom > 1 else 0.0)) * 2 / math.pi if odd else sine * total
    return 0.5 + inside / 2


@cache
def t_quantile(p: float, freedom: int) -> float:
    """The t that a share ``p`` of Student's distribution with ``freedom`` degrees lies below.

    Raises:
        ValueError: ``p`` is not inside (0, 1), or ``freedom`` below 1.
    """
    if not 0 < p < 1 or freedom < 1:
        raise ValueError(f"no quantile {p} of {freedom} degrees of freedom")
    if p < 0.5:
        return -t_quantile(1 - p, freedom)
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < p:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, freedom) < p else (low, middle)
    return (low + high) / 2
