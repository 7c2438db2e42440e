# SPDX-License-Identifier: Apache-2.0
"""Spread without outliers: the median absolute deviation as a standard deviation, right also for few values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_NORMAL = 1.4826
# By which the MAD of n normal values has to be multiplied: few values lie nearer to their own median than to the true
# one. C. Croux and P. J. Rousseeuw, "Time-efficient algorithms for two highly robust estimators of scale" (1992).
_FEW = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}


def robust_sd(values: Sequence[float]) -> float:
    """1.4826 times the median absolute deviation, corrected for few values; 0 for fewer than two."""
    count = len(values)
    if count < 2:
        return 0.0
    array = np.asarray(values, dtype=float)
    return mad_factor(count) * float(np.median(np.abs(array - np.median(array))))


def mad_factor(count: int) -> float:
    """What the MAD of ``count`` values, taken around their own median, is multiplied by to be a standard deviation."""
    return _NORMAL * _FEW.get(count, count / (count - 0.8))
