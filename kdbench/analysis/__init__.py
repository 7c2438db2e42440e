# SPDX-License-Identifier: Apache-2.0
"""Pure functions on frames: what the numbers in results/ allow to be said. Nothing here measures anything."""

from kdbench.analysis.compare import changes, events, newest
from kdbench.analysis.tables import coverage, readable
from kdbench.analysis.verdict import VERDICTS, Judgement, Measurement, judge

__all__ = [
    "VERDICTS",
    "Judgement",
    "Measurement",
    "changes",
    "coverage",
    "events",
    "judge",
    "newest",
    "readable",
]
