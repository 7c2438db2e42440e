# SPDX-License-Identifier: Apache-2.0
"""What the commands about the decode loop leave behind: lines of ``results/decode/<machine>.jsonl``.

Lines are only ever appended, each in one write, as ``kdbench.provenance`` does it. Each says of what library, model and
machine it is, and by what command it came about.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kdbench import __version__, decode_golden, machine
from kdbench.decode import shipped_model
from kdbench.engine import Engine
from kdbench.peers import gpu_facts
from kdbench.provenance import DECODE_FOLDER, append


class Recorder:
    """Makes the lines of one run, and appends them to the machine's file.

    Attributes:
        path: the file; None to write nothing.
        run: what all lines of this run share, a random name.

    Args:
        results_dir: asv's results folder; None to write nothing.
        command: how to come to the same again.
    """

    def __init__(self, results_dir: Path | None, command: str) -> None:
        self.machine = machine.identity()["machine"]
        self.path = None if results_dir is None else results_dir / DECODE_FOLDER / f"{self.machine}.jsonl"
        self.run = uuid.uuid4().hex[:12]
        self._command = command

    def record(self, schema: str, engine: Engine, model: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """The line of one result, appended to the file.

        Args:
            schema: of ``kdbench.provenance``.
            engine: that it is of.
            model: "tiny" for the shipped pair, whose digest goes along.
            content: the result itself.
        """
        on_gpu = engine.backend == "cuda"
        identity = machine.identity()
        line = {
            "schema": schema,
            "model": model,
            "backend": engine.backend,
            "dtype": engine.dtype,
            **content,
            "commit": engine.library.build_info.get("git_commit") or None,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "run": self.run,
            "command": self._command,
            "machine": self.machine,
            "gpu": identity["gpu"] if on_gpu else None,
            "driver": gpu_facts.driver() if on_gpu else None,
            "cpu": identity["cpu"],
            "model_sha256": decode_golden.model_digest(shipped_model()) if model == "tiny" else None,
            "native_sha256": engine.library.digest,
            "harness": __version__,
        }
        if self.path is not None:
            append(self.path, line)
        return line
