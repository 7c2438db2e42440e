# SPDX-License-Identifier: Apache-2.0
"""What the page is made of: plain records whose texts are ready to print, and hold no markup."""

from __future__ import annotations

from dataclasses import dataclass

from kdbench.report.roofline_chart import Chart
from kdbench.report.sparkline import Sparkline


@dataclass(frozen=True)
class CommitLabel:
    """A commit as the page names it."""

    sha: str
    short: str
    day: str
    subject: str


@dataclass(frozen=True)
class FloorCell:
    """How near a series comes to its floor.

    Attributes:
        percent: floor / time, e.g. "71 %"; "–" where there is none.
        bound: "memory", "compute", "latency" or "".
        notes: what a reader should know of it, a sentence each.
        doubtful: faster than the measured ceilings by more than a cold burst explains.
    """

    percent: str
    bound: str
    notes: tuple[str, ...]
    doubtful: bool


@dataclass(frozen=True)
class Row:
    """One series at the newest commit.

    Attributes:
        word: the verdict, with "missing" told apart into "failed", "n/a" and "absent".
        params: (name, value) pairs.
        note: which commit it is compared with, when that is not its place's usual one; else "".
        sees: the smallest change that its noise lets one see, e.g. "can see ≥ 0.9 %"; "" where that is not known.
        blind: that is more than the change that matters.
        since: the earlier commit whose slowdown still stands, or None.
    """

    name: str
    params: tuple[tuple[str, str], ...]
    word: str
    value: str
    interval: str
    change: str
    change_interval: str
    reason: str
    note: str
    sees: str
    blind: bool
    since: CommitLabel | None
    higher_is_better: bool
    floor: FloorCell | None
    sparkline: Sparkline | None
    sparkline_text: str


@dataclass(frozen=True)
class Event:
    """A commit that changed a series: before and after for people, and what has become of a slowdown since."""

    name: str
    params: tuple[tuple[str, str], ...]
    word: str
    before: str
    after: str
    change: str
    change_interval: str
    reason: str
    note: str
    state: str
    commit: CommitLabel


@dataclass(frozen=True)
class Place:
    """One machine and environment.

    Attributes:
        before: the commit that most series are compared with.
        between: commits between that one and the newest, where the line of first parents is known.
        tone: "good", "bad" or "unsure".
        comparisons: how many rank tests the newest commit went through.
        ceilings: the measured rates as text, "" where there are none.
        chart: the roofline, where ceilings are known and some series has FLOPs.
    """

    machine: str
    env: str
    facts: tuple[tuple[str, str], ...]
    newest: CommitLabel
    before: CommitLabel | None
    between: int
    commits: int
    tone: str
    headline: str
    counts: tuple[tuple[str, int], ...]
    urgent: tuple[Row, ...]
    standing: tuple[Event, ...]
    groups: tuple[tuple[str, tuple[Row, ...]], ...]
    not_here: tuple[Row, ...]
    history: tuple[tuple[CommitLabel, tuple[Event, ...]], ...]
    comparisons: int
    ceilings: str
    chart: Chart | None

    @property
    def has_floors(self) -> bool:
        """True when some series can be held against a floor."""
        return any(row.floor is not None for _, rows in self.groups for row in rows)
