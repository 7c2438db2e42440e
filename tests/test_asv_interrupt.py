# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in the middle of a commit: what was measured is kept, and the next run measures the rest."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from asv_clone import Clone, history, kdbench_run

pytestmark = pytest.mark.slow

OPTIONS = {"commits": 1, "tag": "quick", "kernels": ("tree_build",), "rounds": 3, "machine_name": "elsewhere"}
NAME = "bench_tree_build.TreeBuild.kern_hot"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return history(tmp_path_factory.getbasetemp())


def _values(clone: Clone) -> tuple[list[float], list[int]]:
    """Of the newest commit: values, and samples of each combination."""
    document = clone.result("nine", "elsewhere")
    cells = dict(zip(document["result_columns"], document["results"][NAME], strict=False))
    samples = cells.get("samples") or [None] * len(cells["result"])
    return cells["result"], [len(part or []) for part in samples]


def test_an_interrupt_loses_nothing(clone: Clone, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, *kdbench_run(**OPTIONS)],
            cwd=clone.folder,
            env=clone.environment,
            stdout=output,
            stderr=output,
            # Started in the background, a shell's children ignore Ctrl-C, and so would theirs.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        # Four combinations a round: stop inside the second, well before the last round ends.
        deadline = time.monotonic() + 200
        while len(clone.measurements("nine", "elsewhere")) < 5:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130, log.read_text()

    values, counts = _values(clone)
    measured = [index for index, value in enumerate(values) if not math.isnan(value)]
    assert len(measured) == 4
    assert None not in values
    records = len(clone.measurements("nine", "elsewhere"))
    # Every process that ended is in the file; the one that was running is not.
    assert sum(counts) == 20 * records
    assert 20 * 5 <= sum(counts) < 20 * 12
    (run,) = clone.lines("runs.jsonl", "elsewhere")
    assert run["exit_code"] == 130

    clone.run(*kdbench_run(**OPTIONS))
    values, counts = _values(clone)
    assert [counts[index] for index in measured] == [60] * 4
    # Each round of each combination ran once, over both runs.
    assert len(clone.measurements("nine", "elsewhere")) == 12
