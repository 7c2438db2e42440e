# SPDX-License-Identifier: Apache-2.0
"""What a paired comparison is between, and what it comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kdbench.errors import KdbenchError

SAME, FASTER, SLOWER, AMBIGUOUS, FAILED = VERDICTS = ("SAME", "FASTER", "SLOWER", "AMBIGUOUS", "FAILED")
# Worst first: what a reader, and an exit code, should see before anything else.
SEVERITY = (FAILED, SLOWER, AMBIGUOUS, FASTER, SAME)


class BuildError(KdbenchError):
    """A revision's libraries cannot be built or used here.

    Attributes:
        log: what the compiler said, or None.
    """

    def __init__(self, message: str, log: Path | None = None) -> None:
        super().__init__(message)
        self.log = log


@dataclass(frozen=True)
class Build:
    """One side's libraries.

    Attributes:
        revision: as it was asked for, e.g. "HEAD~1"; "worktree" for the working tree.
        commit: full hash; of a working tree the commit that it is based on.
        dirty: the engine's sources differ from ``commit``'s.
        sources: git tree hash of the engine's sources: equal ones are the same engine.
        key: of the build: sources, compilers, flags and architectures; its folder in the cache.
        libraries: backend -> file.
    """

    revision: str
    commit: str
    dirty: bool
    sources: str
    key: str
    libraries: Mapping[str, Path]

    def __str__(self) -> str:
        if self.dirty:
            return f"{self.revision} ({self.commit[:8]} and uncommitted changes)"
        return self.commit[:8] if self.commit.startswith(self.revision) else f"{self.revision} ({self.commit[:8]})"

    def document(self) -> dict[str, Any]:
        """As JSON."""
        fields = {name: getattr(self, name) for name in ("revision", "commit", "dirty", "sources", "key")}
        return {**fields, "libraries": {backend: str(path) for backend, path in self.libraries.items()}}


@dataclass(frozen=True)
class PairedResult:
    """The verdict on one series, or the estimate so far.

    Ratios are head over base after direction: above 1 is worse. They are None before there is a value.

    Attributes:
        series: asv's name, "suite.Class.kern_mode('workload', 'backend')".
        kernel, workload, backend: what the series is of; the kernel of the decode loop is "decode".
        mode: "hot" or "cold"; "loop" for the decode loop.
        unit: of the base's and the head's value, "seconds".
        direction: "lower" or "higher": which is better.
        verdict: one of ``VERDICTS``; FAILED has no ratio, and the reason says why.
        ratio, low, high: median of the processes' ratios, and its exact interval of at least ``confidence``.
        cycles_ratio, cycles_low, cycles_high: the same in clock cycles; None where no clock is read.
        base_value, head_value: median over processes of each side's median, in ``unit``; for reading.
        processes: how many were measured.
        min_effect: the smallest change that counts, e.g. 0.02.
        mde: smallest change that a comparison like this would have found in 9 of 10 cases; None before two processes.
        reasons: sentences; why it is AMBIGUOUS or FAILED, and what else a reader should know.
        settled: the rule has stopped; False for an estimate on the way, or when interrupted.
        confidence: coverage of the interval, e.g. 0.992.
    """

    series: str
    kernel: str
    workload: str
    backend: str
    mode: str
    unit: str
    direction: str
    verdict: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    cycles_ratio: float | None = None
    cycles_low: float | None = None
    cycles_high: float | None = None
    base_value: float | None = None
    head_value: float | None = None
    processes: int = 0
    min_effect: float = 0.02
    mde: float | None = None
    reasons: tuple[str, ...] = ()
    settled: bool = True
    confidence: float | None = None


@dataclass(frozen=True)
class Update:
    """Where a comparison stands, for a progress display.

    Attributes:
        stage: "build", "prepare" or "measure".
        text: one line, e.g. which process runs.
        done, total: processes; the total falls when series settle early. 0 while building.
        elapsed_s: since the start.
        results: of all series, as they stand.
    """

    stage: str
    text: str
    done: int = 0
    total: int = 0
    elapsed_s: float = 0.0
    results: tuple[PairedResult, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """What ``kdbench.paired.compare`` found.

    Attributes:
        base, head: the two builds.
        results: one a series, in the suites' order.
        machine: name that results are filed under.
        started: ISO time, UTC.
        seconds: wall time, builds included.
        interrupted: by Ctrl-C; results are then estimates where they are not ``settled``.
        same_sources: both sides are the same engine, so that this is an A/A run.
        covariates: of the machine, as in every record.
    """

    base: Build
    head: Build
    results: tuple[PairedResult, ...]
    machine: str
    started: str
    interrupted: bool = False
    seconds: float = 0.0
    same_sources: bool = False
    covariates: Mapping[str, Any] = field(default_factory=dict)

    def count(self, verdict: str) -> int:
        """Series with that verdict."""
        return sum(result.verdict == verdict for result in self.results)

    @property
    def worst(self) -> str:
        """The verdict that a reader should see first; SAME when there is none."""
        return next((verdict for verdict in SEVERITY if self.count(verdict)), SAME)
