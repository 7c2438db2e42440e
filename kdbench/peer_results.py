# SPDX-License-Identifier: Apache-2.0
"""``results/peers/*.jsonl`` -> one tidy pandas frame. A line that cannot be read costs a warning, never the frame."""

from __future__ import annotations

import json
import math
import os
import warnings
from pathlib import Path
from typing import Any

import pandas as pd

from kdbench.provenance import PEER, PEERS_FOLDER
from kdbench.result_values import plain_text
from kdbench.results import ResultsWarning

_TEXTS = ["kernel", "workload", "implementation", "scope", "clock", "mode", "backend", "machine", "run"]
_NUMBERS = ["seconds", "ci_low", "ci_high"]
_MAY_LACK = ["floor_seconds", "error", "sm_clock_mhz"]
_MAY_LACK_TEXT = ["commit", "library", "note", "gpu", "driver", "harness"]
COLUMNS = [*_TEXTS, *_NUMBERS, "samples_s", "date", *_MAY_LACK, *_MAY_LACK_TEXT]


def load(results_dir: str | os.PathLike[str]) -> pd.DataFrame:
    """Every recorded measurement of our kernels and others'.

    Args:
        results_dir: asv's results folder; files lie in its folder ``peers``.

    Returns:
        One row a measurement in the order of writing, files by name. ``seconds``, ``ci_low``, ``ci_high``,
        ``floor_seconds`` in seconds; ``samples_s`` a list, whose places are the rounds of ``run``; ``date`` UTC;
        ``commit`` of our library, whoever was measured; unknown numbers NaN and unknown texts "". Empty without files.
    """
    rows: list[dict[str, Any]] = []
    for path in sorted((Path(results_dir) / PEERS_FOLDER).glob("*.jsonl")):
        for number, line in enumerate(_lines(path), start=1):
            try:
                rows.append(row_of(json.loads(line)))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                _warn(f"skipped line {number} of {path}: {plain_text(str(error)) or type(error).__name__}")
    return frame_of(rows)


def frame_of(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """The frame of rows as from ``row_of``."""
    frame = pd.DataFrame(rows, columns=COLUMNS)
    frame["date"] = pd.to_datetime(frame["date"], utc=True, format="ISO8601")
    return frame.astype({name: "float64" for name in (*_NUMBERS, *_MAY_LACK)})


def row_of(record: dict[str, Any]) -> dict[str, Any]:
    """One line as a row; ValueError, KeyError or TypeError says what is wrong with it."""
    if record["schema"] != PEER:
        raise ValueError(f"schema {record['schema']!r} is not {PEER!r}")
    row: dict[str, Any] = {name: _text(record, name) for name in _TEXTS}
    row |= {name: _number(record[name], name) for name in _NUMBERS}
    samples = record["samples_s"]
    if not isinstance(samples, list) or not samples:
        raise ValueError("samples_s is no list of numbers")
    row["samples_s"] = [_number(sample, "a sample") for sample in samples]
    row["date"] = pd.Timestamp(_text(record, "date")).isoformat()
    for name in _MAY_LACK:
        value = record.get(name)
        row[name] = math.nan if value is None else float(value)
    return row | {name: plain_text(str(record.get(name) or "")) for name in _MAY_LACK_TEXT}


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text("utf-8", "replace").splitlines() if line.strip()]
    except OSError as error:
        _warn(f"skipped {path}: {error.strerror or error}")
        return []


def _text(record: dict[str, Any], name: str) -> str:
    value = record[name]
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is no text")
    return plain_text(value)


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value!r}, and a finite number above 0 is expected")
    return float(value)


def _warn(message: str) -> None:
    warnings.warn(message, ResultsWarning, stacklevel=3)
