# SPDX-License-Identifier: Apache-2.0
"""Percentile bootstrap of a median: the interval of samples of one process.

It says how well this process knows its median, and nothing about another process or another day.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LEVEL = 0.95
_RESAMPLES = 2000


def median_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """(low, high) of the median of ``values``; the seed is fixed, so that equal samples give equal intervals.

    Raises:
        ValueError: there are no values.
    """
    samples = np.asarray(values, np.float64)
    if not samples.size:
        raise ValueError("an interval of no samples was asked for")
    drawn = np.random.default_rng(0).integers(0, len(samples), (_RESAMPLES, len(samples)))
    medians = np.median(samples[drawn], axis=1)
    tail = (1 - level) / 2
    low, high = np.quantile(medians, (tail, 1 - tail))
    return float(low), float(high)
