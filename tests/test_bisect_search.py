# SPDX-License-Identifier: Apache-2.0
"""The search over a simulated machine: right every time, a range when it cannot be, and never the wrong commit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from kdbench.bisect.search import Found, Step, Unbuildable, search
from kdbench.paired.types import PairedResult

COMMITS = 32
# Looks of the paired comparison, and which order statistics are its interval's ends.
_LOOKS = ({8: 1, 12: 2, 16: 3, 24: 6}, {16: 3, 24: 6, 32: 9, 48: 16})


def result(verdict: str, ratio: float, low: float, high: float, processes: int) -> PairedResult:
    """A result of some series."""
    names = ("TreeAccept.kern_hot('w', 'cpu')", "tree_accept", "w", "cpu", "hot", "seconds", "lower")
    return PairedResult(*names, verdict, ratio, low, high, processes=processes)


class Box:
    """A machine on which processes differ by ``noise``, and commits by ``levels`` (logarithms)."""

    def __init__(self, levels: list[float], noise: float, seed: int, broken: set[int] | None = None) -> None:
        self.levels = levels
        self.noise = noise
        self.broken = broken or set()
        self.rng = np.random.default_rng(seed)
        self.asked: list[tuple[int, int, float, int]] = []

    def __call__(self, base: int, head: int, min_effect: float, widening: int) -> PairedResult | Unbuildable:
        self.asked.append((base, head, min_effect, widening))
        if self.broken & {base, head}:
            return Unbuildable("does not compile")
        return judged(self.levels[head] - self.levels[base], self.noise, min_effect, widening, self.rng)


def judged(truth: float, noise: float, min_effect: float, widening: int, rng: np.random.Generator) -> PairedResult:
    """The rule of the paired comparison on normal noise."""
    delta = math.log1p(min_effect)
    values: list[float] = []
    verdict, low, high = "AMBIGUOUS", -math.inf, math.inf
    for processes, cut in _LOOKS[widening].items():
        values += list(truth + noise * rng.standard_normal(processes - len(values)))
        ordered = np.sort(values)
        low, high = float(ordered[cut - 1]), float(ordered[-cut])
        if -delta < low and high < delta:
            verdict = "SAME"
        elif low > 0 and high >= delta:
            verdict = "SLOWER"
        elif high < 0 and low <= -delta:
            verdict = "FASTER"
        if verdict != "AMBIGUOUS":
            break
    return result(verdict, math.exp(float(np.median(values))), math.exp(low), math.exp(high), len(values))


def step(at: int, size: float, commits: int = COMMITS) -> list[float]:
    return [0.0 if i < at else math.log1p(size) for i in range(commits + 1)]


def trials(
    count: int, size: float, noise: float, broken: int, seed: int = 1
) -> tuple[Counter[str], list[tuple[int, Found]]]:
    """``count`` searches among 32 commits, ``broken`` of which do not build, for a step of ``size``."""
    rng = np.random.default_rng(seed)
    words: Counter[str] = Counter()
    found = []
    for trial in range(count):
        at = int(rng.integers(1, COMMITS + 1))
        may = [i for i in range(1, COMMITS) if i not in (at, at - 1)]
        box = Box(step(at, size), noise, trial, {int(i) for i in rng.choice(may, broken, replace=False)})
        answer = search(COMMITS, box)
        holds = "right" if answer.first <= at <= answer.last else "wrong"
        words[f"{answer.outcome} {holds}"] += 1
        found.append((at, answer))
    return words, found


@pytest.mark.parametrize("noise", [0.003, 0.005, 0.01])
@pytest.mark.parametrize("broken", [0, 6])
def test_three_percent_among_32_commits_is_found_every_time(noise: float, broken: int) -> None:
    words, found = trials(200, 0.03, noise, broken)
    assert words == {"commit right": 200}
    assert np.median([answer.share for _, answer in found]) == pytest.approx(1.0, abs=0.1)
    # log2(32) = 5 questions, the ends, and the pair; skipped commits are asked once.
    assert np.mean([len(answer.steps) for _, answer in found]) < 9


def test_noise_makes_a_range_and_never_the_wrong_commit() -> None:
    words, _ = trials(300, 0.03, 0.02, 4)
    assert set(words) <= {"commit right", "range right", "unknown right"}
    assert words["commit right"] > 200


def test_commits_that_do_not_build_around_the_culprit_are_named_as_a_range() -> None:
    answer = search(COMMITS, Box(step(17, 0.05), 0.003, 1, broken={15, 16, 17, 18}))
    assert (answer.outcome, answer.first, answer.last) == ("range", 15, 19)
    assert answer.reason == "4 of the commits between could not be compared"
    assert answer.pair is not None
    assert answer.pair.verdict == "SLOWER"


@pytest.mark.parametrize(("at", "commits"), [(1, 1), (1, 2), (2, 2), (1, 32), (32, 32)])
def test_the_ends_of_the_line(at: int, commits: int) -> None:
    answer = search(commits, Box(step(at, 0.05, commits), 0.002, 3))
    assert (answer.outcome, answer.first, answer.last) == ("commit", at, at)


@pytest.mark.parametrize(("size", "outcome", "said"), [(0.0, "none", "is not slower"), (-0.2, "none", "is not slower")])
def test_nothing_to_find(size: float, outcome: str, said: str) -> None:
    box = Box(step(5, size), 0.003, 1)
    answer = search(COMMITS, box)
    assert answer.outcome == outcome
    assert said in answer.reason
    assert len(box.asked) == 1


def test_ends_that_cannot_be_told_apart() -> None:
    box = Box(step(5, 0.03), 0.3, 1)
    answer = search(COMMITS, box)
    assert answer.outcome == "unknown"
    assert [widening for *_, widening in box.asked] == [0, 1]


@pytest.mark.parametrize("end", [0, COMMITS])
def test_an_end_that_does_not_build(end: int) -> None:
    answer = search(COMMITS, Box(step(5, 0.05), 0.003, 1, broken={end}))
    assert answer.outcome == "unknown"
    assert "does not compile" in answer.reason


def test_a_creep_has_no_culprit() -> None:
    creep = [at / COMMITS * math.log1p(0.06) for at in range(COMMITS + 1)]
    answer = search(COMMITS, Box(creep, 0.001, 1))
    assert answer.outcome == "range"
    assert answer.last - answer.first >= 1 or "told apart" in answer.reason


@pytest.mark.parametrize("seed", range(20))
def test_of_two_slowdowns_one_is_found(seed: int) -> None:
    levels = [a + b for a, b in zip(step(9, 0.03), step(24, 0.05), strict=True)]
    answer = search(COMMITS, Box(levels, 0.003, seed))
    assert answer.outcome == "commit"
    assert answer.first in (9, 24)


def test_a_slowdown_that_was_undone_on_the_way_is_not_mistaken() -> None:
    # Slower from 4 to 20, then as before; slower again for good from 29.
    levels = [math.log1p(0.1) if 4 <= at < 20 or at >= 29 else 0.0 for at in range(COMMITS + 1)]
    answer = search(COMMITS, Box(levels, 0.003, 1))
    assert answer.outcome == "commit"
    assert answer.first in (4, 29)


@pytest.mark.parametrize("wrong", ["SLOWER", "SAME", "AMBIGUOUS"])
@pytest.mark.parametrize("question", [1, 2, 3, 4, 5, 6])
def test_one_wrong_answer_on_the_way_is_put_right(wrong: str, question: int) -> None:
    box = Box(step(21, 0.04), 0.002, 1)
    asked = 0

    def lying(base: int, head: int, min_effect: float, widening: int) -> PairedResult | Unbuildable:
        nonlocal asked
        asked += 1
        truth = box(base, head, min_effect, widening)
        if asked != question + 1:
            return truth
        return result(wrong, 1.04 if wrong == "SLOWER" else 1.0, 0.99, 1.05, 8)

    answer = search(COMMITS, lying)
    assert (answer.outcome, answer.first) == ("commit", 21)


def test_an_ambiguous_answer_is_asked_again_with_more_processes_and_then_passed_over() -> None:
    box = Box(step(11, 0.04), 0.002, 1)

    def never_sure_of_16(base: int, head: int, min_effect: float, widening: int) -> PairedResult | Unbuildable:
        truth = box(base, head, min_effect, widening)
        return result("AMBIGUOUS", 1.0, 0.9, 1.1, 24) if head == 16 else truth

    answer = search(COMMITS, never_sure_of_16)
    assert [(head, widening) for _, head, _, widening in box.asked][1:3] == [(16, 0), (16, 1)]
    assert (answer.outcome, answer.first) == ("commit", 11)


def test_too_many_ambiguous_answers_end_in_a_range_that_holds_it() -> None:
    box = Box(step(11, 0.04), 0.002, 1)

    def sure_of_the_ends(base: int, head: int, min_effect: float, widening: int) -> PairedResult | Unbuildable:
        truth = box(base, head, min_effect, widening)
        return truth if head in (4, 24, COMMITS) else result("AMBIGUOUS", 1.0, 0.9, 1.1, 24)

    answer = search(COMMITS, sure_of_the_ends)
    assert answer.outcome == "range"
    assert answer.first <= 11 <= answer.last
    assert "could not be told from the good end" in answer.reason
    assert len(box.asked) < 20


def test_the_search_asks_at_half_of_what_the_ends_differ_by() -> None:
    box = Box(step(11, 0.21), 0.001, 1)
    search(COMMITS, box, min_effect=0.02)
    assert box.asked[0][2] == box.asked[-1][2] == 0.02
    assert box.asked[1][2] == pytest.approx(0.1, abs=0.005)


def test_every_step_is_told_as_it_is_made() -> None:
    heard: list[Step] = []
    answer = search(COMMITS, Box(step(11, 0.04), 0.002, 1, broken={16}), tell=heard.append)
    assert tuple(heard) == answer.steps
    assert [s.decision for s in heard][:2] == ["after", "skipped"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_what_comparing_raises_ends_the_search(error: type[BaseException]) -> None:
    compare: Callable[..., PairedResult] = lambda *_: (_ for _ in ()).throw(error())  # noqa: E731
    with pytest.raises(error):
        search(COMMITS, compare)
