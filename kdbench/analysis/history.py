# SPDX-License-Identifier: Apache-2.0
"""Change points over a whole results frame: which commits moved which series, for good or for bad.

Pure functions on frames; ``kdbench.results.load`` makes one of any asv results directory. A series is one machine,
environment, benchmark, version and parameter set, in the order of first parents. The detector is
``kdbench.analysis.detector``'s.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
import pandas as pd

from kdbench.analysis.detector import detect
from kdbench.analysis.level_drift import drift
from kdbench.analysis.step_causes import by_place, count_together, labelled
from kdbench.analysis.steps import MIN_EFFECT, Detection, Step

SERIES = ["machine", "env", "name", "params", "version"]
CHANGE_COLUMNS = [
    *SERIES, "unit", "direction", "kind", "against", "commit", "order", "previous_commit", "first_commit",
    "last_commit", "subject", "before", "after", "change", "verdict", "status", "p_value", "mde", "points_before",
    "points_after", "undone_by", "together", "reason",
]  # fmt: skip
SERIES_COLUMNS = [
    *SERIES,
    "unit",
    "direction",
    "points",
    "state",
    "unjudged",
    "noise",
    "autocorrelation",
    "mde",
    "latest",
]
_FACTS, _PER_POINT = ("unit", "direction", "min_effect"), ("commit", "order", "subject")
VERDICTS = ("slower", "faster", "machine changed", "ambiguous")


@dataclass(frozen=True)
class History:
    """What the histories of a frame show.

    Attributes:
        changes: one row a change, by series and commit: ``kind`` ("step" | "drift"); ``commit``, the first one measured
            behind the change, its ``order``, and ``previous_commit``, the last one before it; ``first_commit`` and
            ``last_commit``, between which it may stand; ``before``, ``after`` in ``unit``; ``change``
            (after / before - 1); ``verdict`` ("slower" | "faster" by ``direction``; "machine changed", "ambiguous" by
            labels); ``status`` ("confirmed" | "suspected"); ``p_value``; ``mde``; ``points_before``, ``points_after``;
            ``undone_by`` (a commit or None); ``against``, of drift ("best level" | a release); ``together``, how many
            series of the machine have a step here in the same sense; ``reason``, which also says when so many moved
            that the machine is suspect.
        series: one row a series: ``points``; ``state`` ("judged" | "too short"); ``unjudged`` (newest points that no
            step can be told at yet); ``noise`` and ``mde`` as fractions; ``autocorrelation``; ``latest`` (the level of
            the newest points).
    """

    changes: pd.DataFrame
    series: pd.DataFrame


def history(
    frame: pd.DataFrame,
    labels: pd.DataFrame | None = None,
    *,
    releases: Mapping[str, str] | None = None,
    min_effect: float = MIN_EFFECT,
    workers: int = 1,
    on_series: Callable[[], None] | None = None,
) -> History:
    """Find the steps and the drift of every series.

    Args:
        frame: as from ``kdbench.results.load``. Rows off the line (order -1), without a number, or with one that is
            not finite and positive are left out.
        labels: what else changed at a commit: columns machine, commit, what, detail, and optionally kind ("covariate" |
            "calibration" | "note", which explains nothing), backend ("" for all) and ratio (of a calibration kernel,
            after / before). A step that coincides with a label is "machine changed"; one that goes on beyond the
            calibration kernels, or against them, is "ambiguous".
        releases: commit -> name of its release; drift is also told against the newest of them.
        min_effect: least change worth naming where the benchmark does not name one, a fraction.
        workers: processes to share the series among. More than one need a main module that can be imported.
        on_series: called after each series.

    Raises:
        InvalidArgument: a direction is neither "lower" nor "higher", or labels lack a column.
    """
    places = by_place(labels)
    lines = _lines(frame)
    jobs = [_job(line, releases or {}, min_effect) for line in lines]
    changes: list[dict[str, Any]] = []
    series: list[dict[str, Any]] = []
    for line, (found, steps) in zip(lines, _run(jobs, workers), strict=True):
        rows = [_change(line, step, against) for step, against in steps]
        changes += [labelled(row, line.commits, places, min_effect) for row in rows]
        series.append(_summary(line, found))
        if on_series is not None:
            on_series()
    count_together(changes, Counter(line.key[:2] for line in lines))
    table = pd.DataFrame(changes, columns=CHANGE_COLUMNS)
    # Inferred, a column of texts and None would hold NaN instead.
    table["undone_by"] = pd.Series([row["undone_by"] for row in changes], dtype=object)
    return History(table, pd.DataFrame(series, columns=SERIES_COLUMNS))


def standing_regressions(changes: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``History.changes`` that call for somebody: confirmed, slower, and not undone."""
    if changes.empty:
        return changes
    return changes[(changes["verdict"] == "slower") & (changes["status"] == "confirmed") & changes["undone_by"].isna()]


@dataclass(frozen=True)
class _Line:
    key: tuple[str, ...]
    facts: dict[str, Any]
    commits: list[str]
    orders: list[int]
    subjects: list[str]
    values: list[float]


_Job = tuple[list[float], str, float, "tuple[int, str] | None"]
_Found = tuple[Detection, "list[tuple[Step, str]]"]


def _lines(frame: pd.DataFrame) -> list[_Line]:
    if frame.empty:
        return []
    usable = frame[(frame["order"] >= 0) & (frame["status"] == "ok")]
    medians, singles = usable["process_medians"].tolist(), usable["value"].tolist()
    values = np.array([_point(few, one) for few, one in zip(medians, singles, strict=True)], dtype=float)
    good = np.isfinite(values) & (values > 0)
    usable, values = usable[good], values[good]
    # One stable sort of small integers: sorting a million rows by five columns of text takes seconds.
    codes = usable.groupby(SERIES, sort=True, dropna=False).ngroup().to_numpy()
    by_series = np.lexsort((usable["order"].to_numpy(), codes))
    columns = {name: usable[name].to_numpy(dtype=object)[by_series] for name in (*SERIES, *_FACTS, *_PER_POINT)}
    starts = np.flatnonzero(np.diff(codes[by_series], prepend=-1))
    lines = []
    for start, stop in zip(starts, [*starts[1:], len(by_series)], strict=True):
        lines.append(
            _Line(
                tuple(str(columns[name][start]) for name in SERIES),
                {name: columns[name][stop - 1] for name in _FACTS},
                columns["commit"][start:stop].tolist(),
                columns["order"][start:stop].tolist(),
                columns["subject"][start:stop].tolist(),
                values[by_series[start:stop]].tolist(),
            )
        )
    return lines


def _point(process_medians: Sequence[float], value: float) -> float:
    """The process is the replicate: the median of their medians where they are told apart, else asv's value."""
    return float(np.median(process_medians)) if len(process_medians) else value


def _job(line: _Line, releases: Mapping[str, str], min_effect: float) -> _Job:
    own = float(line.facts["min_effect"])
    tagged = [at for at, commit in enumerate(line.commits) if commit in releases]
    release = (tagged[-1], releases[line.commits[tagged[-1]]]) if tagged else None
    return (
        line.values,
        str(line.facts["direction"]),
        max(own, min_effect) if math.isfinite(own) else min_effect,
        release,
    )


def _analyse(job: _Job) -> _Found:
    values, direction, min_effect, release = job
    found = detect(values, direction, min_effect=min_effect)
    steps = [(step, "") for step in found.steps]
    crept = drift(values, direction, found, min_effect=min_effect)
    if crept is not None:
        steps.append((crept, "best level"))
    if release is not None:
        crept = drift(values, direction, found, min_effect=min_effect, release=release[0])
        if crept is not None:
            steps.append((crept, release[1]))
    return found, steps


def _run(jobs: Sequence[_Job], workers: int) -> Iterable[_Found]:
    workers = min(workers, len(jobs))
    if workers <= 1:
        yield from map(_analyse, jobs)
        return
    chunk = max(1, min(32, len(jobs) // (4 * workers)))
    # Not fork: the caller may have threads, or a GPU open.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_analyse, jobs, chunksize=chunk)


def _change(line: _Line, step: Step, against: str) -> dict[str, Any]:
    short = "" if step.status == "confirmed" else f"below what {step.points_after} points show reliably: {step.mde:.1%}"
    return {
        **dict(zip(SERIES, line.key, strict=True)),
        "unit": line.facts["unit"],
        "direction": line.facts["direction"],
        "kind": step.kind,
        "against": against,
        "commit": line.commits[step.at],
        "order": int(line.orders[step.at]),
        "previous_commit": line.commits[step.start],
        "first_commit": line.commits[step.first],
        "last_commit": line.commits[step.last],
        "subject": line.subjects[step.at] if step.kind == "step" else "",
        "before": step.before,
        "after": step.after,
        "change": step.change,
        "verdict": "slower" if step.worse else "faster",
        "status": step.status,
        "p_value": step.p,
        "mde": step.mde,
        "points_before": step.points_before,
        "points_after": step.points_after,
        "undone_by": line.commits[step.undone_at] if step.undone_at is not None else None,
        "together": 1,
        "reason": short,
    }


def _summary(line: _Line, found: Detection) -> dict[str, Any]:
    tail = line.values[found.steps[-1].at if found.steps else 0 :][-20:]
    return {
        **dict(zip(SERIES, line.key, strict=True)),
        "unit": line.facts["unit"],
        "direction": line.facts["direction"],
        "points": len(line.values),
        "state": "too short" if found.too_short else "judged",
        "unjudged": found.unjudged,
        "noise": found.noise,
        "autocorrelation": found.phi,
        "mde": found.mde,
        "latest": float(np.median(tail)),
    }
