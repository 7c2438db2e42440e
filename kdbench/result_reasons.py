# SPDX-License-Identifier: Apache-2.0
"""Why a result is missing: what asv does not store, from the .jsonl records beside its files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kdbench.result_values import plain_text

# As kdbench.provenance writes them; that module itself needs the native side, and reading results must not.
SKIP = "kdbench/skip/1"
FAILURE = "kdbench/failure/1"
_LONGEST = 300


class Reasons:
    """Reasons of one results directory, found by machine folder, commit, environment, benchmark and parameters."""

    def __init__(self, root: Path) -> None:
        self._found: dict[tuple[str, ...], str] = {}
        for path in sorted(root.rglob("*.jsonl")):
            try:
                lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                continue
            for line in lines:
                # Most lines are measurements, long and of no use here.
                if SKIP in line or FAILURE in line:
                    self._take(str(path.parent), line)

    def explain(self, folder: Path, row: Mapping[str, Any]) -> str:
        """The recorded reason for a row that has no number, "" when there is none."""
        place = (str(folder), row["commit"], row["env"])
        if row["status"] == "skipped":
            return self._found.get((*place, row["name"], row["params"]), "")
        return self._found.get(place, "")

    def _take(self, folder: str, line: str) -> None:
        try:
            record = json.loads(line)
            place = (folder, str(record["commit"]), str(record["env_name"]))
            if record["schema"] == SKIP:
                params = json.dumps(record["params"], sort_keys=True)
                self._found[*place, str(record["benchmark"]), params] = _cut(f"skipped: {record['reason']}")
            elif record["schema"] == FAILURE:
                self._found[place] = _cut(_failure(record))
        except (ValueError, KeyError, TypeError, AttributeError):
            # The torn last line of an interrupted run: the reason is lost, the result is not.
            return


def _failure(record: Mapping[str, Any]) -> str:
    lines = str(record.get("output_tail") or "").strip().splitlines()
    why = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no output")
    log = str(record.get("log") or "").rpartition("/")[2]
    return f"the commit does not build: {why.strip()}" + (f" (log {log})" if log else "")


def _cut(text: str) -> str:
    text = plain_text(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
