# SPDX-License-Identifier: Apache-2.0
"""One measurement against an earlier one: how much it changed, how sure that is, and the word for it.

The process is the replicate. Samples of one process share its memory layout, its clocks and its neighbours, so a test
over pooled samples calls identical builds different; everything here looks at one median a process. Three grades of
evidence, best first:

========== ============================================ ==============================================================
evidence   when                                         "slower" and "faster" need
========== ============================================ ==============================================================
processes  the exact rank test can reach p <= 0.01      p <= 0.01 and a change of at least the threshold
few        processes are told apart, but too few        every process beyond every process of the other side by 15 %
intervals  asv's intervals only                         intervals that do not overlap, and 5 % (10 % when the file
                                                        shows that there was one process)
single     one number                                   5 % (or the threshold); nothing says how sure that is
========== ============================================ ==============================================================

"same" is a finding too: the 90 % interval of the change lies within the threshold on both sides, which is two one-sided
tests at 5 % ("few" and "intervals": the same of whatever interval there is). All else is "ambiguous", never a pass.
``tests/test_analysis_compare.py`` holds the false alarm rates of these rules under simulation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kdbench.analysis.ranks import rank_p, shift_interval, smallest_p

VERDICTS = ("same", "slower", "faster", "ambiguous", "new", "missing")
ALPHA = 0.01
LEVEL = 0.90
THRESHOLD = 0.02
THRESHOLD_UNTESTED = 0.05
THRESHOLD_ONE = 0.10
THRESHOLD_FEW = 0.15


@dataclass(frozen=True)
class Measurement:
    """One commit's number for one series.

    Attributes:
        value: in the series' unit.
        low, high: an interval of it, NaN when nothing is known.
        process_medians: one a process, empty when they are not told apart.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    process_medians: tuple[float, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """What may be said of a change.

    Attributes:
        verdict: one of VERDICTS.
        change: new / old - 1 of the values, NaN when there is no ratio; its sign is the number's, not the judgement's.
        change_low, change_high: interval of it, NaN when nothing is known.
        p: exact two-sided p-value, NaN without a test.
        threshold: smallest change that this verdict would call one.
        evidence: "processes" | "few" | "intervals" | "single" | "none".
        reason: a sentence for people.
    """

    verdict: str
    change: float
    change_low: float
    change_high: float
    p: float
    threshold: float
    evidence: str
    reason: str


def judge(
    new: Measurement, old: Measurement, *, direction: str, min_effect: float = math.nan, wander: float = 0.0
) -> Judgement:
    """Compare two measurements of one series.

    Args:
        direction: "lower" or "higher", whichever is better; for "higher" a drop is "slower".
        min_effect: the benchmark's own smallest change of interest, a fraction; NaN for none.
        wander: robust standard deviation of the logarithmic changes from commit to commit elsewhere in this series; a
            change below three of them is what the series does without cause, and is not claimed.
    """
    threshold = max(THRESHOLD, min_effect) if math.isfinite(min_effect) else THRESHOLD
    if new.value == old.value and not new.process_medians:
        return Judgement("same", 0.0, math.nan, math.nan, math.nan, threshold, "single", "exactly equal")
    numbers = (new.value, old.value, *new.process_medians, *old.process_medians)
    if not all(math.isfinite(x) and x > 0 for x in numbers):
        return _no_ratio(new, old, threshold)
    change = new.value / old.value - 1.0
    few = min(len(new.process_medians), len(old.process_medians))
    if few and smallest_p(len(new.process_medians), len(old.process_medians)) <= ALPHA:
        found = _by_processes(new, old, change, threshold)
    elif few >= 2:
        found = _by_few(new, old, change, threshold)
    else:
        found = _by_intervals(new, old, change, max(threshold, THRESHOLD_ONE if few else THRESHOLD_UNTESTED), threshold)
    found = _with_direction(found, direction)
    if found.verdict in ("slower", "faster") and abs(math.log1p(change)) < 3.0 * wander:
        reason = f"{found.reason}; but this series moves by {wander:.1%} from commit to commit without cause"
        return replace(found, verdict="ambiguous", reason=reason)
    return found


def _by_processes(new: Measurement, old: Measurement, change: float, threshold: float) -> Judgement:
    a, b = _logs(new.process_medians), _logs(old.process_medians)
    p = rank_p(a, b)
    low, high = _ratio_interval(a, b, change)
    counts = f"{len(a)} and {len(b)} processes"
    # The word comes from the change, the certainty from the processes: an interval over zero says that they disagree on
    # the direction, as they can when processes are of two kinds.
    if p <= ALPHA and abs(change) >= threshold and low * high > 0:
        return Judgement(_word(change), change, low, high, p, threshold, "processes", f"p = {p:.2g}, {counts}")
    if _within(low, high, threshold):
        reason = f"within ±{threshold:.0%}, {counts}"
        return Judgement("same", change, low, high, p, threshold, "processes", reason)
    if p <= ALPHA:
        reason = f"a change, but perhaps below ±{threshold:.0%}, {counts}"
    else:
        reason = f"too noisy for ±{threshold:.0%}, {counts}"
    return Judgement("ambiguous", change, low, high, p, threshold, "processes", reason)


def _by_few(new: Measurement, old: Measurement, change: float, threshold: float) -> Judgement:
    a, b = _logs(new.process_medians), _logs(old.process_medians)
    low, high = _ratio_interval(a, b, change)
    counts = f"{len(a)} and {len(b)} processes"
    gap = max(min(a) - max(b), min(b) - max(a))
    if gap >= math.log1p(max(THRESHOLD_FEW, threshold)):
        reason = f"every process beyond every other by {math.expm1(gap):.0%}, {counts}"
        return Judgement(_word(change), change, low, high, math.nan, THRESHOLD_FEW, "few", reason)
    if _within(low, high, threshold):
        reason = f"within ±{threshold:.0%}, {counts}"
        return Judgement("same", change, low, high, math.nan, threshold, "few", reason)
    reason = f"too few processes to tell ({len(a)} and {len(b)}; 5 and 5 can)"
    return Judgement("ambiguous", change, low, high, math.nan, THRESHOLD_FEW, "few", reason)


def _by_intervals(new: Measurement, old: Measurement, change: float, claim: float, same: float) -> Judgement:
    ends = (new.low, new.high, old.low, old.high)
    if all(math.isfinite(x) and x > 0 for x in ends):
        low, high = new.low / old.high - 1.0, new.high / old.low - 1.0
        evidence, basis = "intervals", "by asv's intervals, for want of several processes"
    else:
        low, high, evidence, basis = math.nan, math.nan, "single", "single values: nothing says how noisy they are"
    apart = evidence == "single" or low > 0 or high < 0
    if apart and abs(change) >= claim:
        verdict = _word(change)
    elif (evidence == "single" and abs(change) < same) or _within(low, high, same):
        verdict = "same"
    else:
        verdict = "ambiguous"
    return Judgement(verdict, change, low, high, math.nan, claim, evidence, basis)


def _no_ratio(new: Measurement, old: Measurement, threshold: float) -> Judgement:
    verdict = "same" if new.value == old.value else "ambiguous"
    reason = "zero or negative values have no ratio"
    return Judgement(verdict, math.nan, math.nan, math.nan, math.nan, threshold, "none", reason)


def _ratio_interval(a: Sequence[float], b: Sequence[float], change: float) -> tuple[float, float]:
    """Interval of new/old - 1; stretched to hold the shown change, which comes from medians over all samples."""
    shift = shift_interval(a, b, LEVEL)
    if shift is None:
        return math.nan, math.nan
    return min(math.expm1(shift[0]), change), max(math.expm1(shift[1]), change)


def _with_direction(found: Judgement, direction: str) -> Judgement:
    if direction != "higher" or found.verdict not in ("slower", "faster"):
        return found
    other = {"slower": "faster", "faster": "slower"}[found.verdict]
    return replace(found, verdict=other)


def _word(change: float) -> str:
    return "slower" if change > 0 else "faster"


def _within(low: float, high: float, threshold: float) -> bool:
    """Symmetric in ratios: 2 % up and its inverse down."""
    return low > -threshold / (1.0 + threshold) and high < threshold


def _logs(values: Sequence[float]) -> list[float]:
    return [math.log(x) for x in values]
