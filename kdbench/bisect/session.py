# SPDX-License-Identifier: Apache-2.0
"""A search over the commits of a repository: each question a paired comparison of two builds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kdbench import revisions
from kdbench.analysis.paired import LEVEL, LOOKS
from kdbench.analysis.ranks import median_interval
from kdbench.bisect.search import SKIPPED, Found, Step, Unbuildable, remaining, search
from kdbench.errors import InvalidArgument
from kdbench.gate.session import Compare
from kdbench.paired.types import FAILED, SLOWER, BuildError, PairedResult, Update
from kdbench.revisions import Revision

MIN_EFFECT = 0.02


class Interrupted(Exception):  # noqa: N818 - what happened, not what went wrong
    """Ctrl-C during a comparison; ``steps`` is what was known."""

    def __init__(self, bisection: Bisection) -> None:
        super().__init__("interrupted")
        self.bisection = bisection


@dataclass(frozen=True)
class Bisection:
    """What a search found.

    Attributes:
        series: that was searched.
        good: full hash of the good end.
        line: the commits behind it that changed the engine, oldest first; position 1 is ``line[0]``.
        found: how it ended; None when it was interrupted.
        steps: all that was asked.
        native_stat: the files of native/ that the candidates changed, as git shows them.
    """

    series: str
    good: str
    line: tuple[Revision, ...]
    found: Found | None
    steps: tuple[Step, ...]
    native_stat: str = ""

    def sha(self, position: int) -> str:
        """Full hash of a position; 0 is the good end."""
        return self.line[position - 1].sha if position else self.good

    @property
    def candidates(self) -> tuple[Revision, ...]:
        """The commits that it may be; one when it is known, () before the ends are known to differ."""
        if self.found is not None:
            return self.line[self.found.first - 1 : self.found.last]
        left = remaining(self.steps, len(self.line))
        return self.line[left[0] - 1 : left[1]] if left else ()

    @property
    def commit(self) -> Revision | None:
        """The commit, when it is known."""
        return self.candidates[0] if self.found and self.found.outcome == "commit" else None

    @property
    def confidence(self) -> float | None:
        """How often, at least, a commit that changes nothing would not have been named here.

        The last comparison is of the commit with the one before it, in new processes, and stands for itself: whatever
        went wrong on the way to it, it would have said so. None without one.
        """
        return certainty(self.found.pair) if self.found and self.found.pair else None

    def skipped(self) -> dict[str, str]:
        """Commits that could not be compared, with reasons."""
        return {self.sha(step.head): step.reason for step in self.steps if step.decision == SKIPPED}

    def document(self) -> dict[str, Any]:
        """As JSON."""
        found, pair, ends = self.found, None, None
        if found:
            pair, ends = found.pair, found.ends
        return {
            "schema": "kdbench/bisect/1",
            "series": self.series,
            "good": self.good,
            "bad": self.line[-1].sha,
            "commits": len(self.line),
            "outcome": found.outcome if found else "interrupted",
            "reason": found.reason if found else "",
            "commit": asdict(self.commit) if self.commit else None,
            "candidates": [asdict(revision) for revision in self.candidates],
            "confidence": self.confidence,
            "share": _finite(found.share) if found else None,
            "pair": _ratio(pair),
            "ends": _ratio(ends),
            "skipped": self.skipped(),
            "native_stat": self.native_stat,
            "steps": [
                {
                    "base": self.sha(step.base),
                    "head": self.sha(step.head),
                    "min_effect": step.min_effect,
                    "decision": step.decision,
                    "reason": step.reason,
                    "result": _ratio(step.result),
                }
                for step in self.steps
            ],
        }


def certainty(result: PairedResult) -> float:
    """1 less the chance that equal builds would have been called SLOWER, at most, over all looks so far.

    With equal builds a process's ratio is above 1 as often as below, so that the lower end of the interval, an order
    statistic, lies above 1 as rarely as its coverage says. Each look had this chance.
    """
    looks = [median_interval(range(look), LEVEL) for look in LOOKS if look <= result.processes]
    return 1.0 - sum((1.0 - interval[2]) / 2.0 for interval in looks if interval is not None)


def bisect(
    repo: Path,
    good: str,
    bad: str,
    bench: str,
    compare: Compare,
    *,
    names: Sequence[str],
    backends: Sequence[str],
    min_effect: float = MIN_EFFECT,
    processes: int = 24,
    tell: Callable[[Bisection], None] = lambda bisection: None,
    on_update: Callable[[Update], None] | None = None,
) -> Bisection:
    """Find the commit between two that made a series slower.

    Args:
        repo: folder in the repository.
        good, bad: revisions; ``bad`` is the slower one and holds ``good``.
        bench: regular expression of the series. When it fits several, the one is searched whose slowdown between the
            ends is the clearest.
        compare: ``kdbench.paired.compare``.
        names: of all series, of which ``bench`` chooses.
        backends: that may be measured on.
        min_effect: smallest slowdown of interest, a fraction.
        processes: most processes of one comparison; twice as many, up to 24, when it is asked again.
        tell: hears of each step.
        on_update: handed to ``compare``.

    Raises:
        InvalidArgument: an end is unknown, or nothing lies between them, or no series fits.
        Interrupted: Ctrl-C.
        BuildError: nothing can be built here at all: no compiler, no room on the disk.
    """
    start, end = revisions.resolve(repo, good), revisions.resolve(repo, bad)
    line = tuple(revisions.engine_line(repo, start, end))
    if not line:
        raise InvalidArgument(f"no commit behind {good} up to {bad} changes the engine: there is nothing to search")
    chosen = [name for name in names if re.search(bench, name)]
    if not chosen:
        raise InvalidArgument(f"-b {bench!r} fits no series")
    asker = _Asker(repo, compare, Bisection(chosen[0], start, line, None, ()), backends, processes, tell, on_update)
    if len(chosen) > 1:
        asker.choose(bench, min_effect)
    found = search(len(line), asker, min_effect=min_effect, tell=asker.hear)
    told = replace(asker.known, found=found)
    if told.candidates and found.outcome in ("commit", "range"):
        before, last = told.sha(found.first - 1), told.sha(found.last)
        told = replace(told, native_stat=revisions.native_changes(repo, before, last, stat=True))
    return told


class _Asker:
    """Asks the questions of a search, and remembers what was answered."""

    def __init__(
        self,
        repo: Path,
        compare: Compare,
        known: Bisection,
        backends: Sequence[str],
        processes: int,
        tell: Callable[[Bisection], None],
        on_update: Callable[[Update], None] | None,
    ) -> None:
        self.known = known
        self._repo = repo
        self._compare = compare
        self._backends = backends
        self._processes = processes
        self._tell = tell
        self._on_update = on_update
        self._broken: dict[int, Unbuildable] = {}
        self._first: PairedResult | None = None

    def choose(self, bench: str, min_effect: float) -> None:
        """Take the series that got slower most clearly, of all that fit; its answer is the search's first."""
        results = self._asked(0, len(self.known.line), bench, min_effect, self._processes)
        if isinstance(results, Unbuildable):
            return
        slower = [result for result in results if result.verdict == SLOWER]
        chosen = max(slower or results, key=lambda result: result.low or 0.0)
        self.known = replace(self.known, series=chosen.series)
        self._first = chosen

    def __call__(self, base: int, head: int, min_effect: float, widening: int) -> PairedResult | Unbuildable:
        """Compare two positions."""
        if self._first is not None:
            answer, self._first = self._first, None
            return answer
        for at in (base, head):
            if at in self._broken:
                return self._broken[at]
        exact = f"^{re.escape(self.known.series)}$"
        results = self._asked(base, head, exact, min_effect, min(LOOKS[-1], self._processes * 2**widening))
        if isinstance(results, Unbuildable):
            self._broken[head] = results
            return results
        return results[0]

    def hear(self, step: Step) -> None:
        """Remember a step."""
        self.known = replace(self.known, steps=(*self.known.steps, step))
        self._tell(self.known)

    def _asked(
        self, base: int, head: int, pattern: str, min_effect: float, processes: int
    ) -> tuple[PairedResult, ...] | Unbuildable:
        try:
            comparison = self._compare(
                self._repo,
                self.known.sha(base),
                self.known.sha(head),
                pattern,
                backends=self._backends,
                min_effect=min_effect,
                processes=processes,
                on_update=self._on_update,
            )
        except KeyboardInterrupt as stop:
            raise Interrupted(self.known) from stop
        except BuildError as error:
            if error.log is None:
                raise
            # The compiler has spoken: it is this commit's fault, and no machine's.
            return Unbuildable(str(error))
        if comparison.interrupted:
            raise Interrupted(self.known)
        if len(comparison.results) == 1 and comparison.results[0].verdict == FAILED:
            return Unbuildable("; ".join(comparison.results[0].reasons) or "its answer is wrong")
        return comparison.results


def _ratio(result: PairedResult | None) -> dict[str, Any] | None:
    if result is None:
        return None
    names = ("verdict", "ratio", "low", "high", "processes", "base_value", "head_value", "unit")
    return {name: getattr(result, name) for name in names}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
