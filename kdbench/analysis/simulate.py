# SPDX-License-Identifier: Apache-2.0
"""Print the error rates and the speed of the change-point detector, beside other people's.

``python -m kdbench.analysis.simulate [--only SECTION] [--series N] [--salt N] [--ours] [--workers N]`` prints the
tables of docs/verdicts.md, section History. apache-otava takes part where it is installed; nothing of kdbench needs it.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context

from kdbench.analysis import rivals, simulation
from kdbench.analysis.simulation import DESCRIPTIONS, FURTHER, OTHER, TABLE, WEAK, Detector

STEPS = (0.0, 0.03, 0.05)
_LATENCY = (1, 2, 3, 5, 8, 12)
_UNDONE = ((0.05, (3, 5, 8)), (0.03, (5, 8, 12, 20)))
_SHORT = (5, 8, 12, 20)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m kdbench.analysis.simulate", description=__doc__)
    parser.add_argument("--only", choices=list(_SECTIONS), action="append", help="a section; may be repeated")
    parser.add_argument("--series", type=int, default=200, help="histories a cell (200)")
    parser.add_argument("--salt", type=int, default=0, help="other than 0: other histories of the same models")
    parser.add_argument("--ours", action="store_true", help="kdbench's detector alone")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args(arguments)
    if asked.series < 1 or asked.workers < 1 or asked.salt < 0:
        parser.error("--series and --workers must be at least 1, --salt at least 0")
    print(_where(asked.workers))
    for name, why in rivals.absent().items():
        print(f"{name} does not take part: {why}.")
    with ProcessPoolExecutor(asked.workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(abs, range(asked.workers)))  # started before anything is timed
        for name in asked.only or _SECTIONS:
            print(f"\n**{name}**\n")
            for line in _SECTIONS[name](pool, asked):
                print(line, flush=True)
    return 0


def _rivals(asked: argparse.Namespace) -> dict[str, Detector]:
    found: dict[str, Detector] = {
        "asv publish, 5 % (default)": rivals.asv_publish_5,
        "asv publish, 1 %": rivals.asv_publish,
        "otava, p 1e-5": rivals.otava,
        "kdbench": rivals.ours,
        "kdbench, confirmed": rivals.ours_confirmed,
    }
    if "otava" in rivals.absent():
        del found["otava, p 1e-5"]
    return {name: each for name, each in found.items() if name.startswith("kdbench") or not asked.ours}


def _noise(pool: Executor, asked: argparse.Namespace) -> Iterable[str]:
    yield "Cells: series with a false alarm in % without a step; then detected / spurious % at steps of 3 % and 5 %."
    for sigma in (0.01, 0.02):
        yield f"\nNoise {sigma:.0%}"
        yield from _cells(pool, asked, _rivals(asked), [(model, sigma) for model in TABLE])


def _models(models: Sequence[str], pool: Executor, asked: argparse.Namespace) -> Iterable[str]:
    names = ("asv publish, 1 %", "otava, p 1e-5", "kdbench")
    chosen = {name: detector for name, detector in _rivals(asked).items() if name in names}
    yield from _cells(pool, asked, chosen, [(model, 0.01) for model in models])
    yield ""
    yield "; ".join(f"{model}: {DESCRIPTIONS[model]}" for model in models) + "."


def _cells(
    pool: Executor, asked: argparse.Namespace, detectors: dict[str, Detector], cells: Sequence[tuple[str, float]]
) -> Iterable[str]:
    jobs = {
        (name, cell, step): pool.submit(simulation.rates, detector, *cell, step, asked.series, asked.salt)
        for name, detector in detectors.items()
        for cell in cells
        for step in STEPS
    }
    rows = []
    for name in detectors:
        row = [name]
        for cell in cells:
            none, small, large = (jobs[name, cell, step].result() for step in STEPS)
            pairs = "; ".join(f"{100 * r.hit:.0f}/{100 * r.spurious:.0f}" for r in (small, large))
            row.append(f"{100 * none.spurious:.1f}; {pairs}")
        rows.append(row)
    yield from _table(["", *(model for model, _ in cells)], rows)


def _undone(pool: Executor, asked: argparse.Namespace) -> Iterable[str]:
    yield "Noise of 1 %, a step at 40 that is undone L points later: % detected."
    cells = [(step, length) for step, lengths in _UNDONE for length in lengths]
    jobs = {
        name: [pool.submit(simulation.undone, detector, *cell) for cell in cells]
        for name, detector in _rivals(asked).items()
    }
    header = ["", *(f"{step:.0%}, L = {length}" for step, length in cells)]
    yield from _table(header, [[name, *(f"{100 * job.result().hit:.0f}" for job in row)] for name, row in jobs.items()])


def _short(pool: Executor, asked: argparse.Namespace) -> Iterable[str]:
    yield "Noise of 1 %, n points before a step of 3 % and 12 behind it: % detected."
    jobs = {
        name: [
            pool.submit(simulation.latency, detector, "clean", 0.03, 12, before, asked.series, 3) for before in _SHORT
        ]
        for name, detector in _rivals(asked).items()
    }
    header = ["", *(f"n = {before}" for before in _SHORT)]
    yield from _table(header, [[name, *(f"{100 * job.result():.0f}" for job in row)] for name, row in jobs.items()])


def _latency(pool: Executor, asked: argparse.Namespace) -> Iterable[str]:
    counts = ", ".join(map(str, _LATENCY))
    yield f'60 points before, {counts} behind, noise of 1 %: % detected within 2 points; "none": % of false alarms.'
    for model in ("clean", "outlier"):
        yield f"\n{DESCRIPTIONS[model]}"
        steps = (0.0, 0.03, 0.05, 0.10)
        jobs = {
            name: [
                [pool.submit(simulation.latency, detector, model, step, k, 60, asked.series) for k in _LATENCY]
                for step in steps
            ]
            for name, detector in _rivals(asked).items()
        }
        rows = [
            [name, *(" ".join(f"{100 * job.result():.0f}" for job in cell) for cell in row)]
            for name, row in jobs.items()
        ]
        yield from _table(["", "none", "3 %", "5 %", "10 %"], rows)


def _creep(pool: Executor, asked: argparse.Namespace) -> Iterable[str]:
    yield "0.2 % a commit over 30 of 100 commits, noise of 1 %: % of histories in which anything is reported."
    detectors = {**_rivals(asked), "kdbench, with drift": rivals.ours_with_drift}
    jobs = {name: pool.submit(simulation.creep, detector) for name, detector in detectors.items()}
    yield from _table(["", "reported"], [[name, f"{100 * job.result():.0f}"] for name, job in jobs.items()])
    yield "\nFalse alarms of steps and drift together, without a step, in %:"
    cells = [("clean", 0.01), ("clean", 0.02), ("ar1", 0.01), ("outlier", 0.01), ("ar8", 0.01), ("bimodal", 0.01)]
    found = [
        pool.submit(simulation.rates, rivals.ours_with_drift, model, sigma, 0.0, asked.series, asked.salt)
        for model, sigma in cells
    ]
    row = ["kdbench, with drift", *(f"{100 * job.result().spurious:.1f}" for job in found)]
    yield from _table(["", *(f"{model} {sigma:.0%}" for model, sigma in cells)], [row])


def _speed(pool: Executor, asked: argparse.Namespace) -> Iterable[str]:
    series, points = 1000, 1000
    made = simulation.long_histories(series, points)
    yield f"{series:,} series of {points:,} commits, {asked.workers} processes, wall clock."
    chosen: list[tuple[str, Callable[..., object]]] = [
        ("kdbench, steps and drift", rivals.ours_with_drift),
        ("asv publish's detector", rivals.asv_publish),
    ]
    if asked.ours:
        del chosen[1:]
    elif "otava" not in rivals.absent():
        chosen.append(("otava, p 1e-5", rivals.otava))
    rows = []
    for name, detector in chosen:
        start = time.perf_counter()
        busy = sum(pool.map(partial(_timed, detector), made, chunksize=10))
        rows.append([name, f"{time.perf_counter() - start:.1f} s", f"{busy:.1f} s"])
    yield from _table(["", "wall clock", "CPU time"], rows)


def _timed(detector: Callable[..., object], values: Sequence[float]) -> float:
    start = time.process_time()
    detector(values)
    return time.process_time() - start


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    yield ""
    yield f"| {' | '.join(header)} |"
    yield f"|{' --- |' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _where(workers: int) -> str:
    names = ("asv", "numpy", *(() if rivals.absent() else ("apache-otava",)))
    packages = ", ".join(f"{name} {version(name)}" for name in names)
    return f"{platform.machine()}, {workers} processes, Python {platform.python_version()}, {packages}"


_SECTIONS: dict[str, Callable[[Executor, argparse.Namespace], Iterable[str]]] = {
    "noise": _noise,
    "weak spots": partial(_models, WEAK),
    "other noise": partial(_models, OTHER),
    "further models": partial(_models, FURTHER),
    "undone": _undone,
    "short": _short,
    "latency": _latency,
    "creep": _creep,
    "speed": _speed,
}

if __name__ == "__main__":
    sys.exit(main())
