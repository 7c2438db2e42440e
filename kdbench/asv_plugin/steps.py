# SPDX-License-Identifier: Apache-2.0
"""asv's step detector, on logarithms and relative weights.

asv weighs a point by the width of its confidence interval in seconds. Noise grows with the time itself, so that a
commit that makes a kernel 20 times slower gets a twentieth of the weight, and the step at it is often missed in a
short, noisy history. ``tests/test_asv_plugin.py`` simulates such histories, and ones without a step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from asv import _stats, step_detect

Step = tuple[int, int, float, float, float]


def install() -> None:
    """Replace the detector and the weights that publish gives it."""
    original = step_detect.detect_steps

    def detect_steps(y: Sequence[float | None], w: Sequence[float | None] | None = None) -> list[Step]:
        # The solver does not end on an infinity; kdbench lint has told of it.
        known = [value if value is not None and math.isfinite(value) else None for value in y]
        if any(value is not None and value <= 0 for value in known):
            plain: list[Step] = original(known, w)
            return plain
        steps = original([None if value is None else math.log(value) for value in known], w)
        # The error of a logarithm is relative.
        return [
            (left, right, math.exp(level), math.exp(least), math.exp(level) * error)
            for left, right, level, least, error in steps
        ]

    step_detect.detect_steps = detect_steps
    _stats.get_weight = relative_weight


def relative_weight(stats: dict[str, Any] | None) -> float | None:
    """Middle of the 99 % interval over half its width; None when there is no finite interval."""
    low, high = ((stats or {}).get(name) for name in ("ci_99_a", "ci_99_b"))
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)) or low == high:
        return None
    return float((low + high) / abs(high - low))
