# SPDX-License-Identifier: Apache-2.0
"""Drift: small changes that no boundary shows and that add up."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kdbench.analysis.ranks import one_sided_p
from kdbench.analysis.segments import median
from kdbench.analysis.step_tests import ALPHA, WINDOW
from kdbench.analysis.steps import MIN_EFFECT, Detection, Step, mde

_FEWEST = 6
_WINDOWS_OVERLAP = 4


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
    if found.too_short or count < _FEWEST:
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
        if release >= start or release + 1 < _FEWEST:
            return None
    old, new = y[low : low + count] if release is None else y[low : release + 1], y[start:]
    last = low + len(old) - 1
    sign = 1.0 if direction == "lower" else -1.0
    # Steps inside a window shift its median by no more than themselves; only those between the two are all counted.
    named = sum(sign * math.log1p(s.change) for s in found.steps if low < s.at < len(y))
    total = median(new) - median(old)
    p = min(1.0, one_sided_p(new, old) * tests)
    wander = math.sqrt((1.0 + found.phi) / (1.0 - found.phi))
    least = math.expm1(math.log1p(mde(found.noise, len(old), len(new))) * wander)
    if p > ALPHA or math.expm1(min(total, total - named)) < max(min_effect, least):
        return None
    before, after = median(v[low : last + 1]), median(v[start:])
    return Step(
        "drift", len(y) - 1, last + 1, len(y) - 1, last, before, after, after / before - 1.0, True, p, least,
        "confirmed", len(old), len(new),
    )  # fmt: skip
