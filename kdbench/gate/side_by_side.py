# SPDX-License-Identifier: Apache-2.0
"""asv compare, asv continuous and kdbench compare on the same pairs of commits, with slowdowns of known size.

A clone gets a commit with kernels as they are, one that is the same but for a comment, and some with a known slowdown.
``asv continuous`` measures a pair and judges it, ``asv compare`` judges what that left, with asv's own factor and with
2 %; then ``kdbench compare`` measures the same two commits. asv is run as a user would, in kdbench's overlay
environment, with the suites' sampling.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kdbench import machine, revisions, runner
from kdbench.paired.planted import plant

_IDENTITY = ("-c", "user.name=kdbench", "-c", "user.email=kdbench@localhost")
# asv's words for its exit codes.
_CONTINUOUS = {0: "same", 1: "slower"}
_MARKS = {"+": "slower", "-": "faster", "!": "failed", "x": "not comparable"}


class Pairs:
    """A clone with commits of known speed.

    Attributes:
        folder: of the clone.
        base: the commit that all others are compared with.
        heads: commit by slowdown, a fraction.
    """

    def __init__(self, folder: Path, origin: Path, slowdowns: Sequence[float]) -> None:
        self.folder = folder
        subprocess.run(["git", "clone", "-q", str(origin), str(folder)], check=True)

        def commit(share: float, mark: str) -> str:
            plant(folder / "native", share, mark)
            revisions.git(folder, "commit", "-q", "--no-verify", "--no-gpg-sign", "-am", mark, options=_IDENTITY)
            return revisions.git(folder, "rev-parse", "HEAD").strip()

        self.base = commit(0.0, "base")
        self.heads = {slowdown: commit(slowdown, f"{slowdown:+.1%}") for slowdown in slowdowns}

    def asv(self, *arguments: str) -> tuple[int, str]:
        """Run asv in the clone: exit code and output."""
        environment = {**os.environ, "KDBENCH_MACHINE": "box", "KDTREE_CUDA": "0"}
        command = [sys.executable, "-m", "asv", *arguments]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


def mark_of(output: str, name: str) -> str:
    """What asv compare says of a benchmark: its sign in the first column of its table."""
    for line in output.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 5 and name in cells[5]:
            return _MARKS.get(cells[1], "same")
    return "no line"


def judge_asv(pairs: Pairs, slowdown: float, series: str) -> dict[str, Any]:
    """asv's two judges on one pair."""
    head = pairs.heads[slowdown]
    started = time.perf_counter()
    exact = f"^{re.escape(series)}$"
    code, _ = pairs.asv("continuous", "-E", "overlay", "-b", exact, "--machine", "box", pairs.base, head)
    found = {"asv_continuous": _CONTINUOUS.get(code, "failed"), "asv_seconds": round(time.perf_counter() - started, 1)}
    for name, options in (("asv_compare", ()), ("asv_compare_2", ("--factor", "1.02"))):
        _, output = pairs.asv("compare", *options, "--machine", "box", pairs.base, head)
        found[name] = mark_of(output, series)
    return found


def judge_kdbench(pairs: Pairs, slowdown: float, series: str) -> dict[str, Any]:
    """kdbench compare on one pair."""
    from kdbench.paired import compare

    started = time.perf_counter()
    exact = f"^{re.escape(series)}$"
    (result,) = compare(pairs.folder, pairs.base, pairs.heads[slowdown], exact, backends=("cpu",)).results
    return {
        "kdbench_compare": result.verdict,
        "ratio": result.ratio,
        "low": result.low,
        "high": result.high,
        "processes": result.processes,
        "kdbench_seconds": round(time.perf_counter() - started, 1),
    }


# In the order in which they measure.
JUDGES = {"asv": judge_asv, "kdbench": judge_kdbench}


def table(records: Sequence[dict[str, Any]]) -> str:
    """The records as a Markdown table: how often each said what."""
    lines = ["| slowdown | asv continuous | asv compare | asv compare, factor 1.02 | kdbench compare | its estimates |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for slowdown in dict.fromkeys(record["slowdown"] for record in records):
        of_it = [record for record in records if record["slowdown"] == slowdown]
        cells = [f"{slowdown:+.0%}" if slowdown else "none"]
        for name in ("asv_continuous", "asv_compare", "asv_compare_2", "kdbench_compare"):
            said = [record[name] for record in of_it if name in record]
            cells.append(", ".join(f"{said.count(word)} {word}" for word in dict.fromkeys(sorted(said))))
        ratios = [record["ratio"] for record in of_it if record.get("ratio") is not None]
        cells.append(f"{min(ratios) - 1:+.2%} … {max(ratios) - 1:+.2%}" if ratios else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m kdbench.gate.side_by_side", description=__doc__.split("\n\n")[0])
    parser.add_argument("--times", type=int, default=5, help="how often each pair is judged")
    parser.add_argument("--slowdowns", type=float, nargs="*", default=[0.0, 0.01, 0.03, 0.05])
    parser.add_argument("--kernel", default="tree_build")
    parser.add_argument("--workload", default="b64-d7-k16-n1-sharp")
    parser.add_argument("--judges", nargs="*", default=list(JUDGES), choices=list(JUDGES))
    parser.add_argument("--repo", type=Path, default=Path("."), help="whose engine and suites they are")
    given = parser.parse_args(arguments)
    (series,) = runner.series_names((given.kernel,), ("cpu",), ("hot",), None, f"'{given.workload}'")
    records = []
    with tempfile.TemporaryDirectory(prefix="kdbench-pairs-") as folder:
        pairs = Pairs(Path(folder) / "clone", given.repo.resolve(), given.slowdowns)
        for _ in range(given.times):
            for slowdown in given.slowdowns:
                record: dict[str, Any] = {"slowdown": slowdown}
                for name in given.judges:
                    record |= JUDGES[name](pairs, slowdown, series)
                records.append(record)
                print(json.dumps(records[-1]), file=sys.stderr)
    print(table(records), file=sys.stderr)
    document = {
        "schema": "kdbench/side-by-side/1",
        "machine": machine.identity()["machine"],
        "series": series,
        "pairs": records,
    }
    print(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
