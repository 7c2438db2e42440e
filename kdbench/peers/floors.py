# SPDX-License-Identifier: Apache-2.0
"""The least time that a workload's useful work takes at the rates that this machine was measured to reach."""

from __future__ import annotations

import math

from kdbench import ceilings
from kdbench.workloads import Workload

# Trees are chains of dependent steps: their bytes say nothing about their time.
_BOUND_BY_WORK = frozenset({"verify_attn", "draft_topk"})


def floor_seconds(workload: Workload, measured: ceilings.Ceilings | None) -> float | None:
    """Seconds, every byte counted as if it came from memory, as the report counts them.

    None for a kernel that no amount of work bounds, and where ``kdbench calibrate`` has measured nothing.
    """
    if workload.kernel not in _BOUND_BY_WORK or measured is None:
        return None
    floor = ceilings.floor_seconds(measured, workload.bytes_moved, workload.flops, "cold")
    return floor if math.isfinite(floor) else None
