# SPDX-License-Identifier: Apache-2.0
"""Checks of ``results/peers/*.jsonl``: every line whole, its numbers possible, and ours beside everybody else's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kdbench.analysis.peers import OURS
from kdbench.lint_lines import read_lines
from kdbench.peer_results import row_of

# A chip's datasheet is this much faster than the rates that floors are counted with: 989 by 755 TFLOP/s on an H200.
_DATASHEET = 1.31
_ROUNDING = 1e-9


def check_file(path: Path) -> Iterator[tuple[str, str]]:
    """(series, problem) of one file; "" where no series is meant.

    Raises:
        OSError: the file cannot be read.
    """
    lines, problems = read_lines(path, lambda record: (record, row_of(record)), "measurement of a comparison")
    yield from (("", problem) for problem in problems)
    rows = [row for _, (_, row) in lines]
    for _, (record, _) in lines:
        series = f"{record['kernel']}({record['workload']}, {record['implementation']})"
        yield from ((series, problem) for problem in _check_row(record, path))
    ours = {_contest(row): len(row["samples_s"]) for row in rows if row["implementation"] == OURS}
    for row in rows:
        series = f"{row['kernel']}({row['workload']}, {row['implementation']})"
        rounds = ours.get(_contest(row))
        if rounds is None:
            yield series, f"no measurement of {OURS} in the same run, so that there is nothing to compare it with"
        elif rounds != len(row["samples_s"]):
            yield series, f"{len(row['samples_s'])} samples, and {rounds} of {OURS}: rounds cannot be told apart"


def _check_row(record: Mapping[str, Any], path: Path) -> Iterator[str]:
    samples, seconds = record["samples_s"], record["seconds"]
    low, high = min(samples) * (1 - _ROUNDING), max(samples) * (1 + _ROUNDING)
    if not low <= seconds <= high:
        yield f"{seconds!r} s is not among its samples, {min(samples)!r} to {max(samples)!r}"
    if not low <= record["ci_low"] <= seconds * (1 + _ROUNDING) <= record["ci_high"] * (1 + 2 * _ROUNDING):
        yield f"its interval {record['ci_low']!r} to {record['ci_high']!r} does not hold {seconds!r}"
    floor = record.get("floor_seconds")
    if floor is not None and (not math.isfinite(floor) or seconds < floor / _DATASHEET):
        yield f"{seconds!r} s is faster than the chip can be: its floor is {floor!r}"
    if record["machine"] != path.stem:
        yield f"names machine {record['machine']!r} in a file of another name"
    if not record.get("commit"):
        yield "names no commit, so that nobody knows which kernel was compared"


def _contest(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in ("run", "backend", "kernel", "workload", "clock"))
