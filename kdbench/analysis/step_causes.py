# SPDX-License-Identifier: Apache-2.0
"""Whether a step is the code's: labels of what else changed at its commit, and how many other series moved with it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from kdbench.errors import InvalidArgument

_LABEL_COLUMNS = ("machine", "commit", "what", "detail")
# So many series at once, and this part of all: unusual for a commit, usual for a machine.
_MANY, _LARGE_PART = 5, 0.25


def by_place(labels: pd.DataFrame | None) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Labels by machine and commit, notes left out.

    Raises:
        InvalidArgument: a column is missing.
    """
    if labels is None:
        return {}
    missing = [name for name in _LABEL_COLUMNS if name not in labels.columns]
    if missing:
        raise InvalidArgument(f"labels lack the column {missing[0]!r}; they need {', '.join(_LABEL_COLUMNS)}")
    places: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in labels.to_dict("records"):
        if row.get("kind") != "note":
            places.setdefault((str(row["machine"]), str(row["commit"])), []).append({str(k): v for k, v in row.items()})
    return places


def labelled(
    row: dict[str, Any],
    commits: Sequence[str],
    places: Mapping[tuple[str, str], list[dict[str, Any]]],
    min_effect: float,
) -> dict[str, Any]:
    """The row of a change, its verdict another where a label stands within its range.

    Args:
        commits: of the series, oldest first.
        places: as from ``by_place``.
        min_effect: what calibration kernels may leave unexplained.
    """
    if row["kind"] == "drift":
        return row
    first, last = commits.index(row["first_commit"]), commits.index(row["last_commit"])
    backend = str(json.loads(row["params"]).get("backend", ""))
    labels = [
        label
        for commit in commits[first : last + 1]
        for label in places.get((row["machine"], commit), ())
        if label.get("backend") in (None, "", backend)
    ]
    if not labels:
        return row
    reason = "; ".join(dict.fromkeys(str(label["detail"] or label["what"]) for label in labels))
    moves = [math.log(x["ratio"]) for x in labels if x.get("kind") == "calibration" and x.get("ratio", 0) > 0]
    if moves:
        slowdown = math.log1p(row["change"]) * (1.0 if row["direction"] == "lower" else -1.0)
        rest = slowdown - min(max(slowdown, min(0.0, *moves)), max(0.0, *moves))
        if abs(rest) >= math.log1p(min_effect):
            return {**row, "verdict": "ambiguous", "reason": f"{reason}; the series moved otherwise than that"}
    return {**row, "verdict": "machine changed", "reason": reason}


def count_together(changes: Sequence[dict[str, Any]], sizes: Mapping[tuple[str, ...], int]) -> None:
    """Say in each step's row how many series moved alike: where no record tells of the machine, this does.

    Args:
        sizes: series by (machine, env).
    """
    steps = [row for row in changes if row["kind"] == "step"]
    alike = Counter(_moment(row) for row in steps)
    for row in steps:
        row["together"], of = alike[_moment(row)], sizes[row["machine"], row["env"]]
        if row["together"] >= max(_MANY, of * _LARGE_PART):
            said = f"{row['together']} of {of} series moved alike at this commit: look at the machine first"
            row["reason"] = f"{row['reason']}; {said}" if row["reason"] else said


def _moment(row: Mapping[str, Any]) -> tuple[str, str, str, bool]:
    worse = (row["change"] > 0) == (row["direction"] == "lower")
    return row["machine"], row["env"], row["commit"], worse
