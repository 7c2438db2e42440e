# SPDX-License-Identifier: Apache-2.0
"""Shapes of the files in a results folder: what the other checks, and asv itself, take for granted.

Every function says in one sentence what is wrong, or "" when the shape is sound.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_RESULTS_VERSION = _BENCHMARKS_VERSION = 2
_MACHINE_VERSION = 1
_KEYS = ("commit_hash", "env_name", "params", "results", "result_columns")
_DICTS = ("params", "results", "env_vars", "durations")
_COLUMNS = {"result", "params", "version", "started_at", "duration", "samples", "profile"}


def read(path: Path) -> tuple[dict[str, Any], str]:
    """A JSON object and "", or {} and why it cannot be had."""
    if path.is_dir():
        return {}, "a directory, and a file is expected"
    try:
        document = json.loads(path.read_text("utf-8"))
    except OSError as error:
        return {}, f"cannot be read: {error.strerror or error}"
    except ValueError as error:
        return {}, f"cannot be read: {error}"
    except RecursionError:
        return {}, "cannot be read: it is nested too deeply"
    return (document, "") if isinstance(document, dict) else ({}, "not a JSON object")


def missing_key(document: Mapping[str, Any]) -> str:
    """Why asv skips this as a result file: also those of its first format."""
    missing = [key for key in _KEYS if key not in document]
    return f"not a result file of asv: it has no {missing[0]}" if missing else ""


def result_file(document: Mapping[str, Any]) -> str:
    """Of a result file, all but its rows; one that asv skips for want of a key has nothing to be wrong."""
    if missing_key(document):
        return ""
    if problem := _version(document, _RESULTS_VERSION):
        return problem
    for key in _DICTS:
        if not isinstance(document.get(key, {}), dict):
            return f"its {key} is {short(document[key])}, and an object is expected"
    for key in ("commit_hash", "env_name"):
        if not isinstance(document[key], str) or not document[key]:
            return f"its {key} is {short(document[key])}, and text is expected"
    if not is_number(document.get("date", 0)):
        return f"its date is {short(document['date'])}, and milliseconds are expected"
    columns = document["result_columns"]
    if not _texts(columns):
        return "its result_columns are not a list of texts"
    if unknown := [name for name in columns if name not in _COLUMNS and not name.startswith("stats_")]:
        return f"its result_columns name {short(unknown[0])}, which asv does not know"
    for key in ("params", "env_vars"):
        for name, value in document.get(key, {}).items():
            if isinstance(value, list | dict):
                return f"its {key} give {name} as {short(value)}, and a single value is expected"
    if not isinstance(document["params"].get("machine", ""), str):
        return f"its machine is {short(document['params']['machine'])}, and text is expected"
    return ""


def row_cells(cells: Mapping[str, Any]) -> str:
    """Of one row of a result file, as a dict by column; lengths are the business of ``kdbench.lint_results``."""
    params = cells.get("params")
    if params is None and cells.get("result") is not None:
        return "its params are missing"
    if not _lists_of_texts(params or []):
        return "its params are not lists of texts"
    if not isinstance(cells.get("version"), str | None):
        return f"its version is {short(cells['version'])}, and text is expected"
    for column, value in cells.items():
        if (column == "samples" or column.startswith("stats_")) and not isinstance(value, list | None):
            return f"its {column} is {short(value)}, and a list is expected"
        if column.startswith("stats_") and value:
            odd = [entry for entry in value if entry is not None and not _is_float(entry)]
            if odd and column != "stats_number":
                return f"its {column} holds {short(odd[0])}, and numbers or null are expected"
    return ""


def benchmark_entry(value: object) -> str:
    """Of one entry of benchmarks.json."""
    if not isinstance(value, dict):
        return f"its entry is {short(value)}, and an object is expected"
    if not isinstance(value.get("name"), str):
        return "its entry has no name"
    if not _lists_of_texts(value.get("params")):
        return "its params are not lists of texts"
    if not _texts(value.get("param_names", [])):
        return "its param_names are not a list of texts"
    if not isinstance(value.get("version"), str | None):
        return f"its version is {short(value['version'])}, and text is expected"
    for key in ("rounds", "samples_per_process"):
        count = value.get(key)
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            return f"its {key} is {short(count)}, and a whole number above 0 is expected"
    return _workloads(value.get("workloads", {})) if value.get("type") == "kernel" else ""


def machine_file(document: Mapping[str, Any]) -> str:
    """Of a machine.json."""
    if not isinstance(document.get("machine"), str):
        return f"its machine is {short(document.get('machine'))}, and text is expected"
    return _version(document, _MACHINE_VERSION)


def version_of_benchmarks(document: Mapping[str, Any]) -> str:
    """Of the version that benchmarks.json has as a file."""
    return _version(document, _BENCHMARKS_VERSION)


def is_number(value: object) -> bool:
    """A finite int or float, and no bool: JSON's integers may be too large for a float."""
    return _is_float(value) and abs(value) <= sys.float_info.max  # type: ignore[arg-type]


def is_positive(value: object) -> bool:
    """A finite number above 0, and no bool."""
    return is_number(value) and value > 0  # type: ignore[operator]


def short(value: object) -> str:
    """The repr of a value, cut to 40 characters."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # an integer of thousands of digits has no repr
        return f"a {type(value).__name__}"
    return text if len(text) <= 40 else text[:37] + "..."


def _version(document: Mapping[str, Any], expected: int) -> str:
    version = document.get("version", expected)
    if isinstance(version, bool) or not isinstance(version, int | float):
        return f"its version is {short(version)}, and the number {expected} is expected"
    return ""


def _workloads(workloads: object) -> str:
    if not isinstance(workloads, dict):
        return f"its workloads are {short(workloads)}, and an object is expected"
    for name, cost in workloads.items():
        for key in ("bytes_moved", "flops"):
            if not isinstance(cost, dict) or not is_number(cost.get(key)):
                return f"its workload {name} has no number of {key}"
    return ""


def _is_float(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _lists_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(_texts(texts) for texts in value)
