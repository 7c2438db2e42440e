# SPDX-License-Identifier: Apache-2.0
"""Does the comparison keep its promises on this machine? ``python -m kdbench.paired.trial BASE HEAD``.

BASE and HEAD are library files. The same file twice is A/A: how often is it called different? A file with a planted
slowdown (``kdbench.paired.planted``) is power: how often is it found, and do intervals hold what all processes together
say? Real processes with modes, or with a clock that falls under one side, put into what they measured are AMBIGUOUS, or
the rule is wrong. One JSON document on stdout.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from kdbench.analysis.paired import LOOKS, Series, judge, spread
from kdbench.paired.session import Session, choose, effects
from kdbench.paired.types import VERDICTS
from kdbench.paired.verdicts import Verdicts

_MODE = 0.12
_CLOCK = 0.03


def repeat(base: Path, head: Path, backend: str, regex: str, sessions: int, min_effect: float) -> list[Verdicts]:
    """Whole comparisons of two files, one after the other."""
    items = choose(regex, kernels=None, backends=[backend], modes=("primary",), tag=None)
    found: list[Verdicts] = []
    for number in range(sessions):
        verdicts = Verdicts(items, effects(items, min_effect), LOOKS[-1])
        started = time.perf_counter()
        try:
            with Session([{"base": {backend: base}, "head": {backend: head}}]) as session:
                for index in range(LOOKS[-1]):
                    left = verdicts.unsettled()
                    if not left:
                        break
                    for answer in session.process(index, left):
                        verdicts.add(answer)
                    verdicts.look(index + 1)
                    taken = time.perf_counter() - started
                    print(f"{index + 1} processes, {len(left)} series, {taken:.0f} s", file=sys.stderr, flush=True)
        except KeyboardInterrupt:  # whole comparisons count; the first one also unfinished
            if not found:
                found.append(verdicts)
            break
        found.append(verdicts)
        counts = Counter(result.verdict for result in verdicts.results())
        print(f"session {number + 1} of {sessions}: {dict(counts)}", file=sys.stderr, flush=True)
    return found


def summary(found: Sequence[Verdicts], min_effect: float) -> dict[str, Any]:
    """Verdicts, coverage and injections of what ``repeat`` measured."""
    results = [result for verdicts in found for result in verdicts.results()]
    truth = {
        series: median(value.time for verdicts in found for value in verdicts.values[series])
        for series in found[0].values
        if any(verdicts.values[series] for verdicts in found)
    }
    known = [result for result in results if result.low is not None and result.high is not None]
    covered = [math.log(r.low or 1) <= truth[r.series] <= math.log(r.high or 1) for r in known]
    spreads = [spread([v.time for v in verdicts.values[s]]) for verdicts in found for s in truth]
    return {
        "schema": "kdbench/paired-trial/1",
        "min_effect": min_effect,
        "verdicts": {verdict: sum(result.verdict == verdict for result in results) for verdict in VERDICTS},
        "processes": float(np.mean([result.processes for result in results])),
        "truth_percent": {series: 100 * math.expm1(value) for series, value in truth.items()},
        "intervals": len(covered),
        "covered": sum(covered),
        "spread_percent": dict(zip(("p10", "p50", "p90"), _quantiles(spreads), strict=True)),
        "injected": {"modes": _injected(found, min_effect, "modes"), "clock": _injected(found, min_effect, "clock")},
    }


def _injected(found: Sequence[Verdicts], min_effect: float, kind: str) -> dict[str, int]:
    """Verdicts on the measured processes after each build draws a mode a process, or head's clock falls."""
    random = np.random.default_rng(1)
    counts: Counter[str] = Counter()
    for verdicts in found:
        for name, values in verdicts.values.items():
            on_gpu = name.endswith("'cuda')")
            time = [value.time for value in values]
            if len(time) < LOOKS[0]:
                continue
            if kind == "modes":
                sides = random.integers(0, 2, (2, len(time)))
                series = Series([t + _MODE * int(b - a) for t, a, b in zip(time, *sides, strict=True)])
            else:
                clock = [(value.clock or 0.0) - _CLOCK for value in values]
                slow = [t + _CLOCK for t in time]
                # As in a comparison: a GPU's clock counts cycles, a CPU's fixed code only tells that it moved.
                cycles = [t + c for t, c in zip(slow, clock, strict=True)] if on_gpu else []
                series = Series(slow, cycles=cycles, clock=clock)
            counts[judge(series, min_effect).verdict] += 1
    return dict(counts)


def _quantiles(values: Sequence[float]) -> list[float]:
    return [100 * float(value) for value in np.quantile(values, [0.1, 0.5, 0.9])] if len(values) else [0.0] * 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m kdbench.paired.trial", description=__doc__)
    parser.add_argument("base", type=Path)
    parser.add_argument("head", type=Path)
    parser.add_argument("-b", "--bench", default="kern_", help="series whose name this regular expression finds")
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--sessions", type=int, default=1, help="comparisons of every series")
    parser.add_argument("--min-effect", type=float, default=0.02)
    asked = parser.parse_args(arguments)
    for path in (asked.base, asked.head):
        if not path.is_file():
            parser.error(f"no library at {path}")
    found = repeat(asked.base, asked.head, asked.backend, asked.bench, asked.sessions, asked.min_effect)
    print(json.dumps(summary(found, asked.min_effect), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
