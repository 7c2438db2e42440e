# SPDX-License-Identifier: Apache-2.0
"""Measured comparisons as lines of ``results/peers/<machine>.jsonl``: one line a measurement, each with its samples.

Lines are only ever appended, each in one write, as ``kdbench.provenance`` does it. asv reads every .json below its
results folder and leaves .jsonl alone.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from kdbench import __version__, ceilings, machine
from kdbench.bootstrap import median_interval
from kdbench.native import Library
from kdbench.peers import gpu_facts
from kdbench.peers.contest import Timed
from kdbench.peers.floors import floor_seconds
from kdbench.provenance import PEER, PEERS_FOLDER, append


class Recorder:
    """Writes the measurements of one run.

    Attributes:
        path: the file; None to write nothing.
        run: what all lines of this run share, a random name.
    """

    def __init__(self, results_dir: Path | None, library: Library, gpu: str | None) -> None:
        self.machine = machine.identity()["machine"]
        self.path = None if results_dir is None else results_dir / PEERS_FOLDER / f"{self.machine}.jsonl"
        self.run = uuid.uuid4().hex[:12]
        self._library = library
        self._gpu = gpu
        known = {} if results_dir is None else ceilings.read(results_dir)
        self._ceilings = known.get(self.machine) if gpu else None
        self._driver = gpu_facts.driver() if gpu else None

    def record(self, timed: Timed) -> dict[str, Any]:
        """The line of one measurement, appended to the file."""
        low, high = median_interval(timed.samples)
        info = self._library.build_info
        line = {
            "schema": PEER,
            "kernel": timed.workload.kernel,
            "workload": timed.workload.name,
            "implementation": timed.implementation,
            "seconds": median(timed.samples),
            "ci_low": low,
            "ci_high": high,
            "floor_seconds": floor_seconds(timed.workload, self._ceilings),
            "commit": info.get("git_commit") or None,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "run": self.run,
            "machine": self.machine,
            "backend": self._library.backend,
            "scope": timed.scope,
            "clock": timed.clock,
            "mode": timed.mode,
            "samples_s": list(timed.samples),
            "error": timed.error,
            "library": timed.version,
            "note": timed.note,
            "gpu": self._gpu,
            "driver": self._driver,
            "sm_clock_mhz": timed.sm_clock_mhz,
            "native_sha256": self._library.digest,
            "harness": __version__,
        }
        if self.path is not None:
            append(self.path, line)
        return line
