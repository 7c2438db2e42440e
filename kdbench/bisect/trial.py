# SPDX-License-Identifier: Apache-2.0
"""How often does kdbench bisect find a slowdown that was planted? Real builds, real measurements.

Each trial makes a repository of its own: the engine as it is, and commits behind it of which one, drawn anew each time,
makes the kernels slower by a known part, and some do not compile. Ends with 2 when a wrong commit was named.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kdbench import machine, runner
from kdbench.bisect import session
from kdbench.bisect.scratch import Scratch
from kdbench.gate.session import Compare


def trial(
    folder: Path,
    origin: Path,
    series: str,
    compare: Compare,
    *,
    slow: float,
    commits: int,
    broken: int,
    seed: int,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Make a history, search it, and say what came of it."""
    draw = random.Random(seed)
    culprit = draw.randint(1, commits)
    # Neither the commit nor the one before it: between commits that do not build only a range can be known. And no two
    # in a row, since the second would change nothing.
    free = [at for at in range(1, commits) if at not in (culprit, culprit - 1)]
    chosen: set[int] = set()
    while len(chosen) < min(broken, len(free) // 3):
        at = draw.choice(free)
        if not {at - 1, at, at + 1} & chosen:
            chosen.add(at)
    scratch = Scratch(folder, origin, "HEAD")
    made = scratch.history(commits, culprit, slow, chosen)
    started = time.perf_counter()
    found = session.bisect(
        folder,
        made[0],
        made[-1],
        "",
        compare,
        names=[series],
        backends=["cpu"],
        tell=lambda known: tell(f"  {known.steps[-1].head}: {known.steps[-1].decision}"),
    )
    pair = found.found.pair if found.found else None
    named = found.commit.sha if found.commit else None
    inside = {revision.sha for revision in found.candidates}
    return {
        "seed": seed,
        "culprit": culprit,
        "broken": sorted(chosen),
        "outcome": found.found.outcome if found.found else "interrupted",
        "right": named == made[culprit],
        "wrong": bool(inside) and made[culprit] not in inside,
        "ratio": pair.ratio if pair else None,
        "low": pair.low if pair else None,
        "high": pair.high if pair else None,
        "confidence": found.confidence,
        "comparisons": len(found.steps),
        "processes": sum(step.result.processes for step in found.steps if step.result),
        "skipped": len(found.skipped()),
        "seconds": round(time.perf_counter() - started, 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m kdbench.bisect.trial", description=__doc__.split("\n\n")[0])
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--commits", type=int, default=32)
    parser.add_argument("--broken", type=int, default=5, help="commits that do not compile")
    parser.add_argument("--slowdown", type=float, default=0.03)
    parser.add_argument("--kernel", default="tree_build")
    parser.add_argument("--workload", default="b64-d7-k16-n1-sharp")
    parser.add_argument("--repo", type=Path, default=Path("."), help="whose engine it is")
    given = parser.parse_args(arguments)
    from kdbench.paired import compare

    (series,) = runner.series_names((given.kernel,), ("cpu",), ("hot",), None, f"'{given.workload}'")
    with tempfile.TemporaryDirectory(prefix="kdbench-trial-") as folder:
        records = []
        for seed in range(given.trials):
            records.append(
                trial(
                    Path(folder) / str(seed),
                    given.repo,
                    series,
                    compare,
                    slow=given.slowdown,
                    commits=given.commits,
                    broken=given.broken,
                    seed=seed,
                    tell=lambda text: print(text, file=sys.stderr),
                )
            )
            print(json.dumps(records[-1]), file=sys.stderr)
    document = {
        "schema": "kdbench/bisect-trial/1",
        "machine": machine.identity()["machine"],
        "series": series,
        "slowdown": given.slowdown,
        "commits": given.commits,
        "right": sum(record["right"] for record in records),
        "wrong": sum(record["wrong"] for record in records),
        "trials": records,
    }
    print(json.dumps(document, indent=1))
    return 2 if document["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
