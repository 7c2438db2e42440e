# SPDX-License-Identifier: Apache-2.0
"""Measured noise, as lines of ``results/<machine>/noise.jsonl``: one a series and A/A run, with its samples."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from kdbench import __version__
from kdbench.analysis.noise import PROCESSES, Noise, components

SCHEMA = "kdbench/noise/1"
# Beside a machine's results; its lines are appended, and the last one of a series counts.
FILE = "noise.jsonl"
COLUMNS = ["machine", "series", "date", "run", "commit", "library", "unit", "value", "min_effect", "mde"]
_FIELDS = list(Noise.__dataclass_fields__)


def record(
    series: str, records: Sequence[Mapping[str, Any]], *, machine: str, min_effect: float, run: str
) -> dict[str, Any]:
    """The line of one series.

    Args:
        records: one a process, all of one build, as from ``kdbench.noise_run.measure``.
        min_effect: the smallest change that somebody wants to see.
        run: what all lines of one run share.

    Raises:
        ValueError: too few processes, or they measured different libraries.
    """
    builds = {str(each["library"]["sha256"]) for each in records}
    if len(builds) > 1:
        raise ValueError(f"{len(builds)} different libraries were measured, and one is expected: this is no A/A run")
    samples = [list(each["timing"]["samples_s"]) for each in records]
    noise = components(samples)
    first = records[0]
    return {
        "schema": SCHEMA,
        "machine": machine,
        "series": series,
        "benchmark": first["benchmark"],
        "version": first["version"],
        "params": first["params"],
        "unit": "seconds",
        "date": max(str(each["ended"]) for each in records),
        "run": run,
        "harness": {**first["harness"], "version": __version__},
        "library": {key: value for key, value in first["library"].items() if key != "path"},
        "value": median(median(each) for each in samples),
        "noise": vars(noise),
        "mde": noise.mde(),
        "mde_processes": PROCESSES,
        "min_effect": min_effect,
        "samples_s": samples,
        "calibration": [each.get("calibration") for each in records],
        "covariates": _without_paths(first["machine"]),
    }


def _without_paths(covariates: Mapping[str, Any]) -> dict[str, Any]:
    """Where things lie on a machine says nothing of its noise."""
    variables = covariates.get("environment") or {}
    return {**covariates, "environment": {key: value for key, value in variables.items() if os.sep not in value}}


def new_run() -> str:
    """A name for the lines of one run."""
    return uuid.uuid4().hex[:12]


def read(results_dir: str | os.PathLike[str]) -> pd.DataFrame:
    """The newest measured noise of each series and machine below ``results_dir``.

    Returns:
        Columns machine, series, date, run, commit (of the library, "" when unknown), library (its SHA-256), unit,
        value, min_effect, mde (for 5 processes a side) and the fields of ``kdbench.analysis.noise.Noise``. A line that
        is no such record is passed over.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for path in sorted(Path(results_dir).rglob(FILE)):
        for line in lines_of(path):
            try:
                row = row_of(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue
            rows[row["machine"], row["series"]] = row
    return pd.DataFrame([*rows.values()], columns=[*COLUMNS, *_FIELDS])


def read_calibration(results_dir: str | os.PathLike[str]) -> dict[str, list[dict[str, Any]]]:
    """What the processes of A/A runs read of the calibration kernels, by machine, as records for analysis."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(Path(results_dir).rglob(FILE)):
        for line in lines_of(path):
            try:
                document = json.loads(line)
                row_of(document)
                place = {"benchmark": document["benchmark"], "params": document["params"]}
                processes = [{**place, "calibration": each} for each in document["calibration"]]
                found.setdefault(str(document["machine"]), []).extend(processes)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue
    return found


def lines_of(path: Path) -> Iterator[str]:
    """Lines of a file; none when it cannot be read."""
    try:
        yield from path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return


def row_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """One line as a row of ``read``.

    Raises:
        ValueError, KeyError, TypeError: it is no such line, or its noise is not that of its samples.
    """
    if document["schema"] != SCHEMA:
        raise ValueError(f"its schema is {document['schema']!r}, and {SCHEMA!r} is expected")
    # What the samples say counts, should the arithmetic have changed since.
    noise = components(document["samples_s"])
    return {
        "machine": str(document["machine"]),
        "series": str(document["series"]),
        "date": str(document["date"]),
        "run": str(document["run"]),
        "commit": str((document["library"].get("build_info") or {}).get("git_commit") or ""),
        "library": str(document["library"]["sha256"]),
        "unit": str(document["unit"]),
        "value": float(document["value"]),
        "min_effect": float(document["min_effect"]),
        "mde": noise.mde(),
        **vars(noise),
    }
