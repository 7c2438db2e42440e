# SPDX-License-Identifier: Apache-2.0
"""From verdicts to one exit code: what passes, what is a regression, and what nobody knows, which never passes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kdbench import units
from kdbench.gate.rules import Accepted, Rules

if TYPE_CHECKING:
    from kdbench.paired.types import PairedResult

PASSED, SLOWER, UNKNOWN = 0, 1, 2
# In the order in which people want to read them.
STATES = ("slower", "unknown", "accepted", "passed")


@dataclass(frozen=True)
class Decision:
    """One series, decided.

    Attributes:
        series: its name.
        state: "passed" | "accepted" | "slower" | "unknown".
        verdict: of the comparison; "MISSING" when there was none.
        ratio, low, high: head / base and its interval, above 1 is worse; NaN when unknown.
        max_regression: the slowdown that would have passed, a fraction; NaN when the series was to say and was not
            measured.
        reason: a sentence for people.
        accepted: the entry that let a slowdown pass.
    """

    series: str
    state: str
    verdict: str
    ratio: float
    low: float
    high: float
    max_regression: float
    reason: str
    accepted: Accepted | None = None


def decide(
    results: Sequence[PairedResult],
    rules: Rules,
    *,
    usual: float | None = None,
    in_range: Callable[[str], bool] = lambda commits: False,
    expected: Sequence[str] = (),
) -> list[Decision]:
    """Decide every series, the worst first.

    Args:
        results: one a series, each judged with ``rules.limit(series, usual)`` as its smallest effect, where that is a
            number.
        rules: the reviewed file.
        usual: the command line's --max-regression.
        in_range: whether the commits of an accepted entry are among those that are gated.
        expected: series that there should have been a result of; without one they are unknown.
    """
    found = [_decision(result, rules, usual, in_range) for result in results]
    seen = {decision.series for decision in found}
    nan = math.nan
    for series in dict.fromkeys(expected):
        if series not in seen:
            limit = _number(rules.limit(series, usual))
            found.append(Decision(series, "unknown", "MISSING", nan, nan, nan, limit, "was not measured"))
    return sorted(found, key=lambda decision: (STATES.index(decision.state), -_size(decision), decision.series))


def exit_code(decisions: Sequence[Decision]) -> int:
    """1 when anything is slower, else 2 when anything is unknown or there is nothing at all, else 0."""
    states = {decision.state for decision in decisions}
    if "slower" in states:
        return SLOWER
    return UNKNOWN if "unknown" in states or not states else PASSED


def unused(rules: Rules, decisions: Sequence[Decision]) -> list[str]:
    """Sentences about entries of the file that fit no series: a renamed workload leaves them behind."""
    entries = [("threshold", entry.series) for entry in rules.thresholds]
    entries += [("accepted", entry.series) for entry in rules.accepted]
    return [
        f"{rules.path}: [[{kind}]] {pattern!r} fits no series that was compared"
        for kind, pattern in entries
        if not any(re.search(pattern, decision.series) for decision in decisions)
    ]


def _decision(result: PairedResult, rules: Rules, usual: float | None, in_range: Callable[[str], bool]) -> Decision:
    own = rules.limit(result.series, usual)
    limit = result.min_effect if own is None else own
    why = "; ".join(result.reasons)
    entry = None
    if result.verdict in ("SAME", "FASTER"):
        state = "passed"
    elif result.verdict == "SLOWER":
        state, entry, why = _slower(result, rules, in_range, why)
    else:
        state = "unknown"
        why = why or {"AMBIGUOUS": "could not tell", "FAILED": "could not be measured"}.get(result.verdict, "")
    values = (_number(result.ratio), _number(result.low), _number(result.high))
    return Decision(result.series, state, result.verdict, *values, limit, why, entry)


def _slower(
    result: PairedResult, rules: Rules, in_range: Callable[[str], bool], why: str
) -> tuple[str, Accepted | None, str]:
    for entry in rules.accepted:
        if not re.search(entry.series, result.series) or not (entry.commits is None or in_range(entry.commits)):
            continue
        if entry.max_ratio is None or _number(result.ratio) <= entry.max_ratio:
            return "accepted", entry, f"accepted until {entry.expires}: {entry.reason}"
        more = f"more than the accepted {units.change(entry.max_ratio - 1.0)}"
        why = f"{why}; {more}" if why else more
    return "slower", None, why


def _size(decision: Decision) -> float:
    return decision.ratio if math.isfinite(decision.ratio) else 0.0


def _number(value: float | None) -> float:
    return math.nan if value is None else value
