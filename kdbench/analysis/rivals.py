# SPDX-License-Identifier: Apache-2.0
"""Detectors of changes, ours and other people's, as functions of one history: values -> (index, change) a step."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from asv import step_detect

from kdbench.analysis.detector import detect
from kdbench.analysis.level_drift import drift
from kdbench.analysis.segments import Array

OTAVA_P = 1e-5


def ours(values: Sequence[float] | Array) -> list[tuple[int, float]]:
    """Every step of ``kdbench.analysis.detect``."""
    return [(step.at, step.change) for step in detect(list(values), "lower").steps]


def ours_confirmed(values: Sequence[float] | Array) -> list[tuple[int, float]]:
    """The confirmed ones alone."""
    return [(step.at, step.change) for step in detect(list(values), "lower").steps if step.status == "confirmed"]


def ours_with_drift(values: Sequence[float] | Array) -> list[tuple[int, float]]:
    """Steps, and drift against the best level."""
    found = detect(list(values), "lower")
    crept = drift(list(values), "lower", found)
    return [(step.at, step.change) for step in (*found.steps, *((crept,) if crept else ()))]


def asv_publish(values: Sequence[float] | Array, threshold: float = 0.01) -> list[tuple[int, float]]:
    """asv's own, as ``asv publish`` uses it: its steps, then the regressions among them."""
    steps = step_detect.detect_steps([float(value) for value in values], [1.0] * len(values))
    _, _, found = step_detect.detect_regressions(steps, threshold)
    return [(int(at), best / old - 1.0) for _, at, old, best in found or ()]


def asv_publish_5(values: Sequence[float] | Array) -> list[tuple[int, float]]:
    """The same at asv's default threshold."""
    return asv_publish(values, 0.05)


def otava(values: Sequence[float] | Array) -> list[tuple[int, float]]:
    """Apache Otava's change points at p = 1e-5, its window of 50."""
    from otava.analysis import compute_change_points

    found, _ = compute_change_points([float(value) for value in values], max_pvalue=OTAVA_P)
    return [(int(point.index), float(point.stats.forward_rel_change())) for point in found]


def absent() -> dict[str, str]:
    """Rivals that cannot run here, and why."""
    if importlib.util.find_spec("otava") is None:
        return {"otava": "apache-otava is not installed"}
    return {}
