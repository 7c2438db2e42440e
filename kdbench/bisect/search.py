# SPDX-License-Identifier: Apache-2.0
"""The search, apart from what a comparison is: anything that answers can be searched with, a simulation too.

Commits are positions on a line: 0 is the good end, ``last`` the bad one. A midpoint is compared with the *good end*,
not with its neighbour, so that what is left undecided at one step does not add up over the steps. It counts as before
the regression when it is shown to have less than half of it, as after it when it is shown slower; so the half of the
line that is kept always holds a slowdown, whether or not it is the only one.

What cannot be decided is asked again in new processes, then passed over for its neighbours, and in the end the
answer is a range. Before a commit is named it is compared with the commit before it, in new processes: an error on the
way is found there, and what led to it is asked again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kdbench.paired.types import PairedResult

BEFORE, AFTER, AMBIGUOUS, SKIPPED = "before", "after", "ambiguous", "skipped"
# How often a question is asked again, each time in new processes; and how many midpoints may stay undecided.
WIDENINGS = 1
MOST_UNDECIDED = 4
_MOST_CORRECTIONS = 3
# A fraction: of something that got many times slower, a half is enough to see.
_MOST_EFFECT = 0.5


@dataclass(frozen=True)
class Unbuildable:
    """A commit that cannot be compared at all: it does not build, or its answer is wrong."""

    reason: str


class Compare(Protocol):
    """Asks one question: is ``head`` slower than ``base``, by ``min_effect`` or more?"""

    def __call__(self, base: int, head: int, min_effect: float, widening: int) -> PairedResult | Unbuildable:
        """Compare two positions in processes of their own, with more of them where ``widening`` is not 0."""


@dataclass(frozen=True)
class Step:
    """One question and its answer.

    Attributes:
        base, head: positions.
        min_effect: fraction.
        widening: how often it had been asked before.
        result: None when head could not be compared.
        decision: "before" | "after" | "ambiguous" | "skipped".
        reason: why it was skipped or left.
    """

    base: int
    head: int
    min_effect: float
    widening: int
    result: PairedResult | None
    decision: str
    reason: str = ""


@dataclass(frozen=True)
class Found:
    """How a search ended.

    Attributes:
        outcome: "commit" when one was found; "range" when it is one of several; "none" when the bad end is not slower;
            "unknown" when the ends could not be told apart or not be compared.
        first, last: the positions of the candidates, both included; ``first`` == ``last`` for a commit.
        ends: the bad end against the good one.
        pair: the last candidate against the commit before the first: measured anew, for a commit and most ranges.
        steps: everything that was asked.
        reason: a sentence, for all but a commit.
    """

    outcome: str
    first: int
    last: int
    ends: PairedResult | None
    pair: PairedResult | None
    steps: tuple[Step, ...]
    reason: str = ""

    @property
    def share(self) -> float:
        """The part of the ends' slowdown that the commit explains, in logarithms; NaN without one."""
        ratios = [result.ratio if result and result.ratio else math.nan for result in (self.pair, self.ends)]
        part, whole = (math.log(ratio) for ratio in ratios)
        return part / whole if whole else math.nan


def remaining(steps: Sequence[Step], last: int) -> tuple[int, int] | None:
    """The candidates that are left after some steps of a search; None before the ends are known to differ."""
    answers = {step.head: step.decision for step in steps if step.base == 0}
    if answers.get(last) != AFTER:
        return None
    good = max((at for at, decision in answers.items() if decision == BEFORE), default=0)
    return good + 1, min(at for at, decision in answers.items() if decision == AFTER and at > good)


@dataclass
class _Search:
    last: int
    compare: Compare
    min_effect: float
    tell: Callable[[Step], None]
    steps: list[Step] = field(default_factory=list)
    decided: dict[int, str] = field(default_factory=dict)
    passed_over: set[int] = field(default_factory=set)
    effect: float = math.nan

    def ask(self, base: int, head: int, min_effect: float, widening: int) -> Step:
        answer = self.compare(base, head, min_effect, widening)
        if isinstance(answer, Unbuildable):
            step = Step(base, head, min_effect, widening, None, SKIPPED, answer.reason)
        else:
            step = Step(base, head, min_effect, widening, answer, _decision(answer), "; ".join(answer.reasons))
        self.steps.append(step)
        self.tell(step)
        return step

    def ask_wider(self, base: int, head: int, min_effect: float, widening: int = 0) -> Step:
        """Ask until there is an answer or no more widening."""
        step = self.ask(base, head, min_effect, widening)
        while step.decision == AMBIGUOUS and step.widening < WIDENINGS:
            step = self.ask(base, head, min_effect, step.widening + 1)
        return step

    @property
    def bounds(self) -> tuple[int, int]:
        """The newest position known to be before the regression, and the oldest behind it known to be after."""
        good = max(at for at, decision in self.decided.items() if decision == BEFORE)
        return good, min(at for at, decision in self.decided.items() if decision == AFTER and at > good)

    def narrow(self) -> None:
        """Ask until no position between the bounds is left to ask about."""
        undecided = 0
        while (mid := self._middle()) is not None and undecided < MOST_UNDECIDED:
            step = self.ask_wider(0, mid, self.effect)
            if step.decision in (BEFORE, AFTER):
                self.decided[mid] = step.decision
            else:
                self.passed_over.add(mid)
                undecided += step.decision == AMBIGUOUS

    def _middle(self) -> int | None:
        good, bad = self.bounds
        left = [at for at in range(good + 1, bad) if at not in self.passed_over]
        return min(left, key=lambda at: abs(2 * at - good - bad)) if left else None

    def one_step_back(self) -> tuple[int, int]:
        """The candidates as they were before the innermost decisions, on which alone the last answer depends."""
        good, bad = self.bounds
        before = [at for at, decision in self.decided.items() if decision == BEFORE and at < good]
        after = [at for at, decision in self.decided.items() if decision == AFTER and at > bad]
        return max(before, default=0) + 1, min(after, default=self.last)

    def correct(self) -> bool:
        """Ask again, with more processes, what the bounds stand on; True when an answer changed."""
        good, bad = self.bounds
        changed = False
        for at in (bad, good):
            if at in (0, self.last):
                continue
            step = self.ask_wider(0, at, self.effect, WIDENINGS)
            if step.decision in (BEFORE, AFTER) and step.decision != self.decided[at]:
                self.decided[at] = step.decision
                changed = True
        return changed


def search(
    last: int, compare: Compare, *, min_effect: float = 0.02, tell: Callable[[Step], None] = lambda step: None
) -> Found:
    """Find the commit that made a series slower.

    Args:
        last: position of the bad end, at least 1; there are ``last`` candidates, 1 to ``last``.
        compare: asks one question; whatever it raises ends the search.
        min_effect: smallest slowdown of interest, a fraction.
        tell: hears of each step.
    """
    state = _Search(last, compare, min_effect, tell)
    ends = state.ask_wider(0, last, min_effect)
    if ends.decision != AFTER or ends.result is None:
        outcome = "none" if ends.decision == BEFORE else "unknown"
        return Found(outcome, 1, last, ends.result, None, tuple(state.steps), _of_the_ends(ends))
    # Halfway between what the two ends are: as far as possible from both answers.
    state.effect = min(_MOST_EFFECT, math.sqrt(max(ends.result.ratio or 1.0, 1.0 + min_effect)) - 1.0)
    state.decided = {0: BEFORE, last: AFTER}
    for _ in range(_MOST_CORRECTIONS):
        state.narrow()
        good, bad = state.bounds
        pair = state.ask_wider(good, bad, min_effect)
        if pair.decision != AFTER and state.correct():
            continue
        if pair.decision == BEFORE:
            # The bounds have held against it: then it has to be sure of itself.
            pair = state.ask_wider(good, bad, min_effect, WIDENINGS)
        if pair.decision == AFTER:
            outcome = "commit" if bad - good == 1 else "range"
            reason = "" if outcome == "commit" else _of_a_range(state, good, bad)
            return Found(outcome, good + 1, bad, ends.result, pair.result, tuple(state.steps), reason)
        break
    if pair.decision == BEFORE:
        first, end = 1, last
        reason = "no single commit has it: the slowdown is spread over several"
    else:
        first, end = state.one_step_back()
        reason = "the last commits could not be told apart"
    return Found("range", first, end, ends.result, None, tuple(state.steps), reason)


def _decision(result: PairedResult) -> str:
    return {"SLOWER": AFTER, "SAME": BEFORE, "FASTER": BEFORE, "FAILED": SKIPPED}.get(result.verdict, AMBIGUOUS)


def _of_the_ends(step: Step) -> str:
    if step.decision == BEFORE:
        return "the bad end is not slower than the good one"
    if step.decision == SKIPPED:
        return f"the ends could not be compared: {step.reason}"
    return f"the ends could not be told apart{f': {step.reason}' if step.reason else ''}"


def _of_a_range(state: _Search, good: int, bad: int) -> str:
    inside = [step for step in state.steps if good < step.head < bad and step.decision in (AMBIGUOUS, SKIPPED)]
    kinds = {decision: {step.head for step in inside if step.decision == decision} for decision in (SKIPPED, AMBIGUOUS)}
    parts = [
        f"{len(kinds[SKIPPED])} of the commits between could not be compared" if kinds[SKIPPED] else "",
        f"{len(kinds[AMBIGUOUS])} could not be told from the good end" if kinds[AMBIGUOUS] else "",
    ]
    return " and ".join(part for part in parts if part)
