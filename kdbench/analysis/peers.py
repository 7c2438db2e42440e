# SPDX-License-Identifier: Apache-2.0
"""Our kernels against others': ratios within rounds of one run, and what may be claimed of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from kdbench.bootstrap import median_interval

OURS = "kdtree"
# A scope that does less than ours, and the scope of ours that it is held against.
LESS_THAN = {"no mask": "tree mask"}
CASE = ["machine", "backend", "kernel", "workload"]
COLUMNS = [
    *CASE,
    "scope",
    "clock",
    "mode",
    "implementation",
    "seconds",
    "ci_low",
    "ci_high",
    "floor_seconds",
    "of_floor",
    "ours_seconds",
    "ratio",
    "ratio_low",
    "ratio_high",
    "does_less",
    "rounds",
    "commit",
    "date",
    "library",
    "note",
    "run",
]


def newest_runs(frame: pd.DataFrame) -> pd.DataFrame:
    """Of each machine, backend, kernel and workload the rows of the run that measured it last.

    Args:
        frame: as from ``kdbench.peer_results.load``.
    """
    if frame.empty:
        return frame
    last = frame.sort_values("date", kind="stable").groupby(CASE)["run"].transform("last")
    return frame[frame["run"] == last.reindex(frame.index)].reset_index(drop=True)


def ratios(frame: pd.DataFrame) -> pd.DataFrame:
    """Every row with what it is of ours: ``ratio`` above 1 says how many times longer it took than ours.

    A ratio is the median over rounds of (their sample / our sample of the same round), with the 95 % bootstrap interval
    of that median; both come from one run, one workload and one clock. ``of_floor`` is floor_seconds / seconds.
    ``does_less`` marks implementations without a tree mask, which are upper competitors and no alternatives. Without a
    sample of ours in every round the ratio is NaN.

    Args:
        frame: as from ``kdbench.peer_results.load``.

    Returns:
        One row a row of ``frame``, in its order, with the columns ``COLUMNS``.
    """
    ours = {_place(row): row["samples_s"] for row in _records(frame) if row["implementation"] == OURS}
    rows = []
    for row in _records(frame):
        base = ours.get(_place(row), [])
        ratio, low, high = _ratio(row["samples_s"], base)
        rows.append(
            {
                **row,
                "of_floor": row["floor_seconds"] / row["seconds"],
                "ours_seconds": float(np.median(base)) if base else math.nan,
                "ratio": ratio,
                "ratio_low": low,
                "ratio_high": high,
                "does_less": row["scope"] in LESS_THAN,
                "rounds": len(row["samples_s"]),
            }
        )
    return pd.DataFrame(rows, columns=COLUMNS)


def spans(compared: pd.DataFrame) -> pd.DataFrame:
    """The smallest and the largest ratio of each other implementation over the workloads it was measured on.

    Args:
        compared: as from ``ratios``.

    Returns:
        machine, backend, kernel, scope, clock, implementation, does_less, workloads, least, most; ``slower``: on how
        many of the workloads the implementation's interval lies wholly above 1 (ours is faster); ``faster``: wholly
        below.
    """
    keys = ["machine", "backend", "kernel", "scope", "clock", "implementation", "does_less"]
    others = compared[(compared["implementation"] != OURS) & compared["ratio"].notna()]
    lines = [
        {
            **dict(zip(keys, key, strict=True)),
            "workloads": group["workload"].nunique(),
            "least": group["ratio"].min(),
            "most": group["ratio"].max(),
            "slower": int((group["ratio_low"] > 1).sum()),
            "faster": int((group["ratio_high"] < 1).sum()),
        }
        for key, group in others.groupby(keys, sort=False)
    ]
    return pd.DataFrame(lines, columns=[*keys, "workloads", "least", "most", "slower", "faster"])


def sentence(span: Mapping[Any, Any]) -> str:
    """A row of ``spans`` in words, claiming no more than it holds."""
    least, most, count = span["least"], span["most"], span["workloads"]
    where = f"{count} workload{'s' if count != 1 else ''}, {span['scope']}, {span['clock']}"
    less = ", which applies no tree mask" if span["does_less"] else ""
    if span["slower"] == count:
        said = f"{_times(least, most)} faster than"
    elif span["faster"] == count:
        said = f"{_times(1 / most, 1 / least)} slower than"
    else:
        said = f"at {_times(least, most)} the speed of"
    return f"{span['kernel']}: {said} {span['implementation']}{less} ({where})"


def _times(least: float, most: float) -> str:
    low, high = (f"{value:.3g}" if value < 1000 else f"{value:,.0f}" for value in (least, most))
    return f"{low}×" if low == high else f"{low}–{high}×"


def _ratio(theirs: list[float], ours: list[float]) -> tuple[float, float, float]:
    if not ours or len(theirs) != len(ours):
        return math.nan, math.nan, math.nan
    logs = np.log(theirs) - np.log(ours)
    low, high = median_interval(list(logs))
    return float(np.exp(np.median(logs))), math.exp(low), math.exp(high)


def _place(row: Mapping[str, Any]) -> tuple[str, ...]:
    scope = LESS_THAN.get(row["scope"], row["scope"])
    return (*(str(row[name]) for name in ("run", *CASE, "clock", "mode")), scope)


def _records(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for row in frame.to_dict("records"):
        yield {str(key): value for key, value in row.items()}
