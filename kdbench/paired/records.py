# SPDX-License-Identifier: Apache-2.0
"""Side record of a comparison: ``results/<machine>/paired.jsonl``, one line a pair of builds and series."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock

from kdbench import __version__, provenance
from kdbench.errors import KdbenchError
from kdbench.paired.types import Build, Comparison
from kdbench.paired.verdicts import Verdicts
from kdbench.timing import stopwatch_digest

SCHEMA = "kdbench/paired/1"
FILE = "paired.jsonl"


def save(comparison: Comparison, verdicts: Verdicts, results_dir: Path) -> Path:
    """Append what was measured; returns the file.

    Raises:
        KdbenchError: it cannot be written.
    """
    path = results_dir / comparison.machine / FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            for record in lines(comparison, verdicts):
                provenance.append(path, record)
        path.with_suffix(".lock").unlink(missing_ok=True)
    except OSError as error:
        raise KdbenchError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def lines(comparison: Comparison, verdicts: Verdicts) -> list[dict[str, Any]]:
    """A record a series that has a value or failed."""
    found = []
    for result in comparison.results:
        values = verdicts.values[result.series]
        if not values and result.verdict != "FAILED":
            continue
        found.append(
            {
                "schema": SCHEMA,
                "machine": comparison.machine,
                "started": comparison.started,
                "base": _build(comparison.base),
                "head": _build(comparison.head),
                "interrupted": comparison.interrupted,
                **asdict(result),
                "log_ratios": [value.time for value in values],
                "cycles_log_ratios": [value.cycles for value in values],
                "clock_log_ratios": [value.clock for value in values],
                "curvatures": [value.curvature for value in values],
                "base_s": [value.base_s for value in values],
                "head_s": [value.head_s for value in values],
                "blocks": [list(value.blocks) for value in values],
                "marks": verdicts.marks[result.series],
                "calls": verdicts.calls.get(result.series, 0),
                "harness": {"version": __version__, "stopwatch_sha256": stopwatch_digest()},
                "covariates": dict(comparison.covariates),
            }
        )
    return found


def _build(build: Build) -> dict[str, Any]:
    """Without where its files lie, which says nothing on another machine."""
    return {key: value for key, value in build.document().items() if key != "libraries"}
