# SPDX-License-Identifier: Apache-2.0
"""Pure functions on frames: what the numbers in results/ allow to be said. Nothing here measures anything."""

from kdbench.analysis.attribution import Attribution, attribute, disturbances, explain
from kdbench.analysis.compare import changes, events, newest
from kdbench.analysis.covariates import changed, machine_labels
from kdbench.analysis.decode import decode_split
from kdbench.analysis.detector import detect
from kdbench.analysis.history import History, history, standing_regressions
from kdbench.analysis.level_drift import drift
from kdbench.analysis.noise import Noise, components, from_results, mde, mde_for
from kdbench.analysis.process_records import Label
from kdbench.analysis.roofline import absorbed_over_plain, refuse, roofline
from kdbench.analysis.steps import Detection, Step
from kdbench.analysis.tables import coverage, readable, readable_floors
from kdbench.analysis.verdict import VERDICTS, Judgement, Measurement, judge

__all__ = [
    "VERDICTS",
    "Attribution",
    "Detection",
    "History",
    "Judgement",
    "Label",
    "Measurement",
    "Noise",
    "Step",
    "absorbed_over_plain",
    "attribute",
    "changed",
    "changes",
    "components",
    "coverage",
    "decode_split",
    "detect",
    "disturbances",
    "drift",
    "events",
    "explain",
    "from_results",
    "history",
    "judge",
    "machine_labels",
    "mde",
    "mde_for",
    "newest",
    "readable",
    "readable_floors",
    "refuse",
    "roofline",
    "standing_regressions",
]
