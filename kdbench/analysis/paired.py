# SPDX-License-Identifier: Apache-2.0
"""The sequential rule of a paired comparison: what log-ratios of some processes allow to be said.

Pure: numbers in, a verdict with its reasons out. Each value is one process's ln(head / base), its sign turned so that
above 0 is worse. Looks are at 8, 12, 16 and 24 processes; the interval of the median comes from order statistics and
assumes no distribution. A change has to keep a distance from 0 at the first three looks, so that looking four times
costs little: the simulated error rates stand in docs/verdicts.md, and ``simulate`` makes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kdbench.analysis.ranks import median_interval

LOOKS = (8, 12, 16, 24)
LEVEL = 0.99
# Share of min_effect that the near end of a SLOWER or FASTER interval must keep from 0; the last look asks for none.
_DISTANCE = {8: 0.25, 12: 0.25, 16: 0.25}
# sd of a median's estimate times this is found in 90 % of comparisons that end at so many processes, by the rule below.
_MDE = {8: 1.74, 12: 1.29, 16: 1.07, 24: 0.84}
# A gap between two groups of processes this many times their own spread is no accident.
_GAP = 3.0
# Up to so many processes a single one that stands apart is waited for.
_FEW = 12
# More marked processes than this, and the machine is what was measured.
_MARKED = 0.2
_SIMULATED_AT_ONCE = 10_000


@dataclass(frozen=True)
class Series:
    """What is known of one series.

    Attributes:
        time: ln ratio of times, one value a process, worse positive.
        cycles: the same of clock cycles; () where no clock was read.
        clock: ln ratio of the clocks that head and base ran under, one value a process; () where unknown.
        curvature: a process's ABBA blocks against its BAAB blocks, ln: what drift within blocks did; () where unknown.
        marks: a reason for each process whose machine was disturbed, "" for the others; () where nothing is watched.
        by_clock: time must be confirmed in cycles: anything but memory-bound work.
    """

    time: Sequence[float]
    cycles: Sequence[float] = ()
    clock: Sequence[float] = ()
    curvature: Sequence[float] = ()
    marks: Sequence[str] = ()
    by_clock: bool = True


@dataclass(frozen=True)
class Judgement:
    """Verdict and numbers; ratios are exp of the ln ratios, 1.03 is 3 % worse.

    Attributes:
        verdict: "SAME", "FASTER", "SLOWER" or "AMBIGUOUS".
        settled: no further process can change it by the rule.
        ratio, low, high: median and its interval; None without a value.
        confidence: coverage of the interval.
        cycles_ratio, cycles_low, cycles_high: the same in cycles, or None.
        mde: the smallest change that the next look would find in 9 of 10 comparisons at this spread; None below two
            processes.
        reasons: sentences.
    """

    verdict: str
    settled: bool
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    cycles_ratio: float | None = None
    cycles_low: float | None = None
    cycles_high: float | None = None
    mde: float | None = None
    reasons: tuple[str, ...] = ()


def judge(series: Series, min_effect: float, *, most: int = LOOKS[-1]) -> Judgement:
    """The verdict at this many processes.

    Args:
        series: what was measured.
        min_effect: the smallest change that counts, e.g. 0.02.
        most: processes after which there are no more.
    """
    count = len(series.time)
    interval = _interval(series.time)
    if interval is None:
        ratio = math.exp(series.time[0]) if count else None
        return Judgement("AMBIGUOUS", count >= most, ratio, reasons=(_too_few(count),))
    low, high, confidence = interval
    cycles = _interval(series.cycles)
    last = count >= min(most, LOOKS[-1])
    verdict, reasons = "AMBIGUOUS", [_too_few(count)]
    if count in LOOKS or (last and count > LOOKS[0]):
        verdict = decide(low, high, min_effect, count)
        reasons = [_undecided(low, high, min_effect)] if verdict == "AMBIGUOUS" else []
        doubts = _doubts(series, min_effect, verdict, cycles)
        if doubts:
            verdict, reasons = "AMBIGUOUS", doubts
    return Judgement(
        verdict,
        verdict != "AMBIGUOUS" or last,
        math.exp(float(np.median(series.time))),
        math.exp(low),
        math.exp(high),
        confidence,
        math.exp(float(np.median(series.cycles))) if cycles else None,
        math.exp(cycles[0]) if cycles else None,
        math.exp(cycles[1]) if cycles else None,
        mde(series.time),
        tuple(reasons),
    )


def decide(low: float, high: float, min_effect: float, count: int) -> str:
    """The verdict of an interval (low, high) of the ln ratio, at a look of ``count`` processes."""
    delta = math.log1p(min_effect)
    distance = _DISTANCE.get(count, 0.0) * delta
    if -delta < low and high < delta:
        return "SAME"
    if low > distance and high >= delta:
        return "SLOWER"
    if high < -distance and low <= -delta:
        return "FASTER"
    return "AMBIGUOUS"


def next_look(count: int, most: int = LOOKS[-1]) -> int:
    """Processes after which the rule looks again, having ``count``."""
    return next((look for look in LOOKS if count < look <= most), most)


def mde(values: Sequence[float], processes: int | None = None) -> float | None:
    """Smallest relative change found in 9 of 10 comparisons of ``processes`` (by default as many as there are values).

    Its spread is the robust one of ``values``; None for fewer than two.
    """
    if len(values) < 2:
        return None
    wanted = processes or len(values)
    look = max((look for look in LOOKS if look <= wanted), default=LOOKS[0])
    factor = _MDE[look] * math.sqrt(LOOKS[0] / wanted) if wanted < LOOKS[0] else _MDE[look]
    return math.expm1(factor * spread(values))


def spread(values: Sequence[float]) -> float:
    """Robust standard deviation, 1.4826 MAD; the usual one below eight values, where the MAD says little."""
    found = np.asarray(values, float)
    if len(found) < LOOKS[0]:
        return float(found.std(ddof=1))
    return 1.4826 * float(np.median(np.abs(found - np.median(found))))


def two_modes(values: Sequence[float], min_gap: float) -> bool:
    """Do processes fall into groups at least ``min_gap`` apart?

    Groups are what gaps of that size leave, when each gap is also three times the spread within them. One process by
    itself may be an accident, but not among so few that the next one could join it.
    """
    ordered = np.sort(np.asarray(values, float))
    gaps = np.diff(ordered)
    cuts = np.flatnonzero(gaps > min_gap)
    if not len(cuts):
        return False
    groups = np.split(ordered, cuts + 1)
    freedom = len(ordered) - len(groups)
    outside = len(ordered) - max(map(len, groups))
    if freedom < 2 or outside < (len(ordered) // 8 if len(ordered) > _FEW else 1):
        return False
    within = math.sqrt(sum(float(((group - group.mean()) ** 2).sum()) for group in groups) / freedom)
    return float(gaps[cuts].min()) > _GAP * within


def simulate(
    draw: Callable[[np.random.Generator, tuple[int, int]], NDArray[np.float64]],
    trials: int,
    *,
    min_effect: float = 0.02,
    seed: int = 0,
) -> dict[str, float]:
    """Play the whole rule on made-up processes.

    Args:
        draw: (generator, shape) -> ln ratios of that shape, a row a comparison.
        trials: comparisons.
        min_effect: as for ``judge``.
        seed: of the generator.

    Returns:
        Shares of "SLOWER", "FASTER", "SAME", "AMBIGUOUS", mean "processes", and "covered": the share of final intervals
        that hold the median of all that was drawn.
    """
    random = np.random.default_rng(seed)
    values = draw(random, (trials, LOOKS[-1]))
    truth = float(np.median(draw(random, (_SIMULATED_AT_ONCE, LOOKS[-1]))))
    counts = dict.fromkeys(("SLOWER", "FASTER", "SAME", "AMBIGUOUS", "processes", "covered"), 0.0)
    for row in values:
        for look in LOOKS:
            found = _interval(row[:look])
            assert found is not None  # of eight values
            low, high, _ = found
            verdict = decide(low, high, min_effect, look)
            if verdict != "AMBIGUOUS" and two_modes(row[:look], math.log1p(min_effect)):
                verdict = "AMBIGUOUS"
            if verdict != "AMBIGUOUS":
                break
        counts[verdict] += 1
        counts["processes"] += look
        counts["covered"] += float(low <= truth <= high)
    return {name: value / trials for name, value in counts.items()}


def _interval(values: Sequence[float]) -> tuple[float, float, float] | None:
    return median_interval(values, LEVEL) if len(values) else None


def _doubts(series: Series, min_effect: float, verdict: str, cycles: tuple[float, float, float] | None) -> list[str]:
    """Why the numbers say something about the machine rather than about the code; [] when they do not."""
    count, delta = len(series.time), math.log1p(min_effect)
    found = []
    marked = [mark for mark in series.marks if mark]
    if len(marked) > _MARKED * count:
        found.append(f"the machine was disturbed in {len(marked)} of {count} processes: {_commonest(marked)}")
    if two_modes(series.time, delta):
        found.append(f"processes fall into groups more than {min_effect:.2g} apart: the median is none of them")
    if cycles and series.by_clock and verdict in ("SLOWER", "FASTER", "SAME"):
        in_cycles = decide(cycles[0], cycles[1], min_effect, count)
        if in_cycles != verdict:
            found.append(f"the clock moved: {verdict} in time and {in_cycles} in cycles ({_percent(series.cycles)})")
    elif not cycles and _beyond(series.clock, delta / 2):
        found.append(f"the clock moved with the side that ran: by {_percent(series.clock)} under head")
    if _beyond(series.curvature, delta):
        found.append(f"drift within blocks: the order of the two sides makes {_percent(series.curvature)}")
    return found


def _beyond(values: Sequence[float], limit: float) -> bool:
    """Is the median of ``values`` shown to be further than ``limit`` from 0?"""
    interval = _interval(values)
    return interval is not None and len(values) >= LOOKS[0] and (interval[0] > limit or interval[1] < -limit)


def _commonest(texts: Sequence[str]) -> str:
    return max(dict.fromkeys(texts), key=list(texts).count)


def _percent(values: Sequence[float]) -> str:
    return f"{100 * math.expm1(float(np.median(values))):+.2g} %"


def _too_few(count: int) -> str:
    return f"{count} of at least {LOOKS[0]} processes"


def _undecided(low: float, high: float, min_effect: float) -> str:
    delta = math.log1p(min_effect)
    if high - low >= 2 * delta:
        return "the spread between processes is too large for this effect: more processes, or a quieter machine"
    return "the change is too near to what counts: more processes may tell"
