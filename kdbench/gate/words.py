# SPDX-License-Identifier: Apache-2.0
"""Decisions as people read them, the same words in every format."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kdbench import units
from kdbench.gate.policy import STATES, Decision

_HEADLINES = {
    "slower": "slower than allowed",
    "unknown": "not known",
    "accepted": "slower, and accepted",
    "passed": "passed",
}


def headline(decisions: Sequence[Decision]) -> str:
    """One line over all: "1 slower than allowed, 12 passed"."""
    counts = {state: sum(decision.state == state for decision in decisions) for state in STATES}
    return ", ".join(f"{n} {_HEADLINES[state]}" for state, n in counts.items() if n) or "nothing was compared"


def change(decision: Decision) -> str:
    """The estimate: "1.031× slower"."""
    ratio = decision.ratio
    if not (math.isfinite(ratio) and ratio > 0):
        return "n/a"
    if f"{ratio:.3f}" == "1.000":
        return "1.000×"
    return f"{ratio:.3f}× slower" if ratio > 1.0 else f"{1.0 / ratio:.3f}× faster"


def interval(decision: Decision) -> str:
    """The interval of the change: "+2.6 … +3.5 %", "" when unknown."""
    return units.change_interval(decision.low - 1.0, decision.high - 1.0)


def sentence(decision: Decision) -> str:
    """Everything about one series in a line, its name left out."""
    ends = interval(decision)
    parts = [
        f"{decision.verdict}: {change(decision)}{f' ({ends})' if ends else ''}",
        f"allowed {allowed}" if (allowed := units.change(decision.max_regression)) else "",
        decision.reason,
    ]
    return ", ".join(part for part in parts if part)
