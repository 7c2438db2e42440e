# SPDX-License-Identifier: Apache-2.0
"""What the page is made of: plain records whose texts are ready to print, and hold no markup."""

from __future__ import annotations

from dataclasses import dataclass

from kdbench.report.sparkline import Sparkline


@dataclass(frozen=True)
class CommitLabel:
    """A commit as the page names it."""

    sha: str
    short: str
    day: str
    subject: str


@dataclass(frozen=True)
class Row:
    """One series at the newest commit.

    Attributes:
        word: the verdict, with "missing" told apart into "failed", "n/a" and "absent".
        params: (name, value) pairs.
        note: which commit it is compared with, when that is not its place's usual one; else "".
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
    since: CommitLabel | None
    higher_is_better: bool
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
