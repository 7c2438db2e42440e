# SPDX-License-Identifier: Apache-2.0
"""What an empty kernel took in the processes that measured a series, from the .jsonl records beside asv's files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

# As kdbench.provenance writes it; that module itself needs the native side, and reading results must not.
MEASUREMENT = "kdbench/measurement/1"
_COLUMNS = {"empty_call": "empty_call_s", "empty_launch": "empty_launch_s"}


class EmptyKernels:
    """Empty kernels of one results directory, by machine folder, commit, environment, benchmark and parameters."""

    def __init__(self, root: Path) -> None:
        self._found: dict[tuple[str, ...], dict[str, list[float]]] = {}
        for path in sorted(root.rglob("*.jsonl")):
            try:
                lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                continue
            for line in lines:
                if MEASUREMENT in line and '"cuda"' in line:
                    self._take(str(path.parent), line)

    def of(self, folder: Path, row: Mapping[str, Any]) -> dict[str, float]:
        """Median over processes of ``empty_call`` and ``empty_launch``, seconds; NaN where nothing was recorded."""
        found = self._found.get((str(folder), row["commit"], row["env"], row["name"], row["params"]), {})
        return {column: median(found[key]) if found.get(key) else math.nan for column, key in _COLUMNS.items()}

    def _take(self, folder: str, line: str) -> None:
        try:
            record = json.loads(line)
            if record["schema"] != MEASUREMENT or record["library"]["backend"] != "cuda":
                return
            params = json.dumps(record["params"], sort_keys=True)
            place = (folder, str(record["commit"]), str(record["env_name"]), str(record["benchmark"]), params)
            kept = self._found.setdefault(place, {})
            for key in _COLUMNS.values():
                value = record["timing"].get(key)
                if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
                    kept.setdefault(key, []).append(float(value))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            # The torn last line of an interrupted run.
            return
