# SPDX-License-Identifier: Apache-2.0
"""The provenance records of a results directory: what each measuring process wrote beside asv's files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from kdbench.errors import KdbenchError

# As kdbench.provenance writes it; that module itself needs the native side, and reading results must not.
MEASUREMENT = "kdbench/measurement/1"


def read_records(results_dir: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Every measurement's record below ``results_dir``, in the order in which each machine's were written.

    Returns:
        The parsed lines; ``machine_name``, the folder that asv keeps the machine's results in, is added to each. A line
        that is no record is passed over: an interrupted run ends in half a line.

    Raises:
        KdbenchError: ``results_dir`` is no directory.
    """
    root = Path(results_dir)
    if not root.is_dir():
        raise KdbenchError(f"no results directory at {root}")
    found = []
    for path in sorted(root.rglob("*.jsonl")):
        found += [{**record, "machine_name": path.parent.name} for record in records_of_file(path)]
    return sorted(found, key=lambda record: (record["machine_name"], str(record.get("started"))))


def records_of_file(path: Path) -> list[dict[str, Any]]:
    """The measurements of one .jsonl file; none when it cannot be read."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        if MEASUREMENT not in line:
            continue
        try:
            record = json.loads(line)
            if record["schema"] == MEASUREMENT and isinstance(record["benchmark"], str):
                found.append(record)
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return found
