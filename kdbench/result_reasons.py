# SPDX-License-Identifier: Apache-2.0
"""Why a result is missing: what asv does not store, from the .jsonl records beside its files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kdbench.result_values import plain_text

# As kdbench.provenance writes them; that module itself needs the native side, and reading results must not.
SKIP = "kdbench/skip/1"
FAILURE = "kdbench/failure/1"
_LONGEST = 300
# The end of a traceback ("package.Mismatch: why") or asv's own last word ("asv: benchmark timed out (timeout 60s)").
_RAISED = re.compile(r"(asv|[\w.]+\.\w+|\w*Error|\w*Exception)(: .+)?")


class Reasons:
    """Reasons of one results directory, found by machine folder, commit, environment, benchmark and parameters."""

    def __init__(self, root: Path) -> None:
        self._skips: dict[tuple[str, ...], str] = {}
        # By place, then by benchmark; "" is the build, which fails all of them.
        self._failures: dict[tuple[str, ...], dict[str, str]] = {}
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
            return self._skips.get((*place, row["name"], row["params"]), "")
        failures = self._failures.get(place, {})
        return failures.get(row["name"]) or failures.get("", "")

    def _take(self, folder: str, line: str) -> None:
        try:
            record = json.loads(line)
            place = (folder, str(record["commit"]), str(record["env_name"]))
            if record["schema"] == SKIP:
                params = json.dumps(record["params"], sort_keys=True)
                self._skips[*place, str(record["benchmark"]), params] = _cut(f"skipped: {record['reason']}")
            elif record["schema"] == FAILURE and record["kind"] == "build":
                # Later lines are newer: what benchmarks did before this build is over.
                self._failures[place] = {"": _cut(_build_failure(record))}
            elif record["schema"] == FAILURE and record["kind"] == "benchmark":
                why = _cut(_benchmark_failure(record))
                self._failures.setdefault(place, {})[str(record["benchmark"])] = why
        except (ValueError, KeyError, TypeError, AttributeError):
            # The torn last line of an interrupted run: the reason is lost, the result is not.
            return


def _build_failure(record: Mapping[str, Any]) -> str:
    lines = _output(record)
    why = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no output")
    log = str(record.get("log") or "").rpartition("/")[2]
    return f"the commit does not build: {why.strip()}" + (f" (log {log})" if log else "")


def _benchmark_failure(record: Mapping[str, Any]) -> str:
    lines = _output(record)
    raised = [line for line in lines if _RAISED.fullmatch(line)]
    return f"the benchmark failed: {(raised or lines or ['no output'])[-1].strip()}"


def _output(record: Mapping[str, Any]) -> list[str]:
    return str(record.get("output_tail") or "").strip().splitlines()


def _cut(text: str) -> str:
    text = plain_text(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
