# SPDX-License-Identifier: Apache-2.0
"""Pure functions on frames: what the numbers in results/ allow to be said. Nothing here measures anything."""

from kdbench.analysis.compare import changes, events, newest
from kdbench.analysis.decode import decode_split
from kdbench.analysis.roofline import absorbed_over_plain, refuse, roofline
from kdbench.analysis.tables import coverage, readable, readable_floors
from kdbench.analysis.verdict import VERDICTS, Judgement, Measurement, judge

__all__ = [
    "VERDICTS",
    "Judgement",
    "Measurement",
    "absorbed_over_plain",
    "changes",
    "coverage",
    "decode_split",
    "events",
    "judge",
    "newest",
    "readable",
    "readable_floors",
    "refuse",
    "roofline",
]
