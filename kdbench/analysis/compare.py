# SPDX-License-Identifier: Apache-2.0
"""Verdicts over a whole results frame: every commit against its predecessor, and the newest against its parent.

A series is one machine, environment, benchmark and parameter set. Its predecessor is the nearest earlier commit on the
line of first parents that has a number of the same benchmark version; when that is not the direct parent, ``direct``
says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import pandas as pd

from kdbench.analysis.ranks import median_interval
from kdbench.analysis.verdict import LEVEL, Judgement, Measurement, judge

SERIES = ["machine", "env", "name", "params"]
_NUMBER = ["unit", "direction", "version", "commit", "order", "date", "subject", "status"]
_VALUE = ["value", "low", "high", "processes", "before", "before_value", "direct"]
_JUDGEMENT = [field.name for field in fields(Judgement)]
COLUMNS = [*SERIES, *_NUMBER, *_VALUE, *_JUDGEMENT, "state", "undone_by"]
# Below this many other steps a robust spread says nothing.
_STEPS_FOR_WANDER = 10


def changes(frame: pd.DataFrame) -> pd.DataFrame:
    """Judge every measured commit of every series against its predecessor.

    Args:
        frame: as from ``kdbench.results.load``; commits off the line (order -1) are left out.

    Returns:
        One row per series and commit, sorted by series and order. Beside the series' own columns: ``low``, ``high`` (an
        interval of the value), ``processes`` (how many are told apart), ``before`` (the predecessor, or None),
        ``before_value``, ``direct`` (True | False, None when nothing knows the parents), the fields of a ``Judgement``,
        and for rows that are "slower" ``state``: "standing" while the newest number is still slower than before that
        commit, "undone" (``undone_by``: the commit, when one can be named), or "unclear". A commit without a number is
        "missing"; one without a predecessor is "new".
    """
    if frame.empty:
        return pd.DataFrame(columns=COLUMNS)
    on_line = frame[frame["order"] >= 0].sort_values([*SERIES, "order"], kind="stable")
    rows: list[dict[str, Any]] = []
    for _, group in on_line.groupby(SERIES, sort=False):
        rows.extend(_judge_series(_records(group)))
    return pd.DataFrame(rows, columns=COLUMNS)


def newest(judged: pd.DataFrame) -> pd.DataFrame:
    """Each series at the newest commit of its machine and environment, out of what ``changes`` returns.

    A series that has no entry at that commit is "missing" there: it was not part of the newest run.
    """
    if judged.empty:
        return judged
    rows: list[dict[str, Any]] = []
    for _, place in judged.groupby(["machine", "env"], sort=False):
        head = _records(place.nlargest(1, "order"))[0]
        for _, series in place.groupby(SERIES, sort=False):
            last = _records(series.tail(1))[0]
            rows.append(last if last["order"] == head["order"] else _absent(last, head))
    return pd.DataFrame(rows, columns=COLUMNS)


def events(judged: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``changes`` that are news: slower, faster, or failed at the first commit where it did."""
    if judged.empty:
        return judged
    fell = (judged["status"] == "failed") & (judged.groupby(SERIES)["status"].shift() == "ok")
    return judged[judged["verdict"].isin(["slower", "faster"]) | fell]


def measurement(row: dict[str, Any]) -> Measurement:
    """A row of the results frame as the number, its interval and its replicates.

    With five or more processes the interval is the exact one of their median (order statistics, at least 90 %). With
    fewer it is asv's interval of the pooled samples, stretched over all process medians.
    """
    medians = tuple(row["process_medians"])
    low, high, value = row["ci_low"], row["ci_high"], row["value"]
    exact = median_interval(medians, LEVEL)
    if exact is not None and exact[2] >= LEVEL:
        low, high = min(exact[0], value), max(exact[1], value)
    elif len(medians) > 1:
        low, high = float(np.nanmin([low, *medians])), float(np.nanmax([high, *medians]))
    return Measurement(value, low, high, medians)


def wander(values: Sequence[float]) -> list[float]:
    """For each value but the first: how much the *other* steps of its series spread (robust sd of log changes).

    Zero where there are too few other steps to say.
    """
    usable = np.array([x if x > 0 else math.nan for x in values], dtype=float)
    steps = np.diff(np.log(usable))
    out: list[float] = []
    for at in range(len(steps)):
        others = np.delete(steps, at)
        others = others[np.isfinite(others)]
        spread = 1.4826 * float(np.median(np.abs(others - np.median(others)))) if len(others) else 0.0
        out.append(spread if len(others) >= _STEPS_FOR_WANDER else 0.0)
    return out


def _judge_series(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    good = [row for row in rows if row["status"] == "ok"]
    steps = dict(zip([row["order"] for row in good[1:]], wander([row["value"] for row in good]), strict=True))
    judged: list[dict[str, Any]] = []
    previous: dict[str, Any] | None = None
    for row in rows:
        if row["status"] != "ok":
            judged.append(_line(row, previous, _unjudged("missing", row["reason"])))
            continue
        if previous is None:
            found = _unjudged("new", "no earlier number of this series")
        elif previous["version"] != row["version"]:
            found = _unjudged("new", "the benchmark's version changed; older numbers are not comparable")
            previous = None
        else:
            found = _judge_rows(row, previous, steps.get(row["order"], 0.0))
        judged.append(_line(row, previous, found))
        previous = row
    _mark_states(judged, good)
    yield from judged


def _judge_rows(row: dict[str, Any], before: dict[str, Any], wandering: float) -> Judgement:
    return judge(
        measurement(row),
        measurement(before),
        direction=row["direction"],
        min_effect=row["min_effect"],
        wander=wandering,
    )


def _mark_states(judged: Sequence[dict[str, Any]], good: Sequence[dict[str, Any]]) -> None:
    """Say of every slowdown whether the newest number still shows it, and else who undid it.

    A commit undoes it that is judged faster than its predecessor and no longer slower than what was before.
    """
    by_commit = {row["commit"]: row for row in good}
    for at, line in enumerate(judged):
        if line["verdict"] != "slower":
            continue
        base, last = by_commit[line["before"]], good[-1]
        later = [by_commit[other["commit"]] for other in judged[at + 1 :] if other["verdict"] == "faster"]
        undoing = (row for row in later if row["version"] == line["version"])
        line["undone_by"] = next((row["commit"] for row in undoing if _against(row, base) != "slower"), None)
        if line["undone_by"] is not None:
            line["state"] = "undone"
        elif last["version"] != line["version"]:
            line["state"] = "unclear"
        else:
            now = _against(last, base)
            line["state"] = {"slower": "standing", "same": "undone", "faster": "undone"}.get(now, "unclear")


def _against(row: dict[str, Any], base: dict[str, Any]) -> str:
    return _judge_rows(row, base, 0.0).verdict


def _line(row: dict[str, Any], before: dict[str, Any] | None, found: Judgement) -> dict[str, Any]:
    number = measurement(row) if row["status"] == "ok" else Measurement(math.nan)
    return {
        **{key: row[key] for key in COLUMNS if key in row},
        "low": number.low,
        "high": number.high,
        "processes": len(number.process_medians),
        "before": before["commit"] if before else None,
        "before_value": before["value"] if before else math.nan,
        "direct": _is_direct(row, before),
        **asdict(found),
        "state": "",
        "undone_by": None,
    }


def _is_direct(row: dict[str, Any], before: dict[str, Any] | None) -> bool | None:
    parent = row["parent"]
    return before["commit"] == parent if before is not None and isinstance(parent, str) else None


def _unjudged(verdict: str, reason: str) -> Judgement:
    return Judgement(verdict, math.nan, math.nan, math.nan, math.nan, math.nan, "none", reason)


def _absent(last: dict[str, Any], head: dict[str, Any]) -> dict[str, Any]:
    shown = str(last["commit"])[:8]
    found = _unjudged("missing", f"not part of the newest run; last entry at {shown}")
    place = {key: head[key] for key in ("commit", "order", "date", "subject")}
    kept = {key: last[key] for key in (*SERIES, "unit", "direction", "version")}
    had = last["status"] == "ok"
    return {
        **kept,
        **place,
        "status": "absent",
        "value": math.nan,
        "low": math.nan,
        "high": math.nan,
        "processes": 0,
        "before": last["commit"] if had else last["before"],
        "before_value": last["value"] if had else last["before_value"],
        "direct": None,
        **asdict(found),
        "state": "",
        "undone_by": None,
    }


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]
