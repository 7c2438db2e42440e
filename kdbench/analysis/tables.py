# SPDX-License-Identifier: Apache-2.0
"""Frames -> frames that people read: in notebooks and on a terminal."""

from __future__ import annotations

import json
import math

import pandas as pd

from kdbench import units


def coverage(frame: pd.DataFrame) -> pd.DataFrame:
    """What a results frame holds: per machine and environment the commits, series, dates and entries of each status."""
    groups = frame.groupby(["machine", "env"], sort=True)
    lines = [
        {
            "machine": place[0],
            "env": place[1],
            "commits": group["commit"].nunique(),
            "series": len(group[["name", "params"]].drop_duplicates()),
            "first": group["date"].min(),
            "last": group["date"].max(),
            **{status: int((group["status"] == status).sum()) for status in ("ok", "failed", "skipped")},
        }
        for place, group in groups
    ]
    columns = ["machine", "env", "commits", "series", "first", "last", "ok", "failed", "skipped"]
    return pd.DataFrame(lines, columns=columns)


def readable(judged: pd.DataFrame) -> pd.DataFrame:
    """Rows of ``kdbench.analysis.changes``, ``newest`` or ``events`` with their numbers as text in fitting units."""
    rows = judged.to_dict("records")
    return pd.DataFrame(
        {
            "machine": [row["machine"] for row in rows],
            "commit": [units.short(row["commit"]) for row in rows],
            "subject": [row["subject"] for row in rows],
            "name": [row["name"] for row in rows],
            "params": [", ".join(str(value) for value in json.loads(row["params"]).values()) for row in rows],
            "before": [units.quantity(row["before_value"], row["unit"]) for row in rows],
            "value": [units.quantity(row["value"], row["unit"]) for row in rows],
            "interval": [units.interval(row["value"], row["low"], row["high"], row["unit"]) for row in rows],
            "change": [units.change(row["change"]) for row in rows],
            "change interval": [units.change_interval(row["change_low"], row["change_high"]) for row in rows],
            "verdict": [row["verdict"] for row in rows],
            "reason": [row["reason"] for row in rows],
            "state": [row["state"] for row in rows],
        }
    )


def readable_floors(rooflines: pd.DataFrame) -> pd.DataFrame:
    """Rows of ``kdbench.analysis.roofline`` with their numbers as text, the nearest to its floor first."""
    rows = rooflines.sort_values("of_floor", ascending=False, na_position="last", kind="stable").to_dict("records")
    return pd.DataFrame(
        {
            "machine": [row["machine"] for row in rows],
            "commit": [units.short(row["commit"]) for row in rows],
            "name": [row["name"] for row in rows],
            "params": [", ".join(str(value) for value in json.loads(row["params"]).values()) for row in rows],
            "bound": [row["bound"] for row in rows],
            "floor": [units.quantity(row["floor"], "seconds") for row in rows],
            "of floor": [f"{row['of_floor']:.1%}" if math.isfinite(row["of_floor"]) else "n/a" for row in rows],
            "TFLOP/s": [f"{row['flop_rate'] / 1e12:.4g}" for row in rows],
            "TB/s": [f"{row['byte_rate'] / 1e12:.4g}" for row in rows],
            "above empty": [units.quantity(row["above_empty"], "seconds") for row in rows],
            "why": [" ".join(word for word in (row["mark"], row["why"]) if word) for row in rows],
        }
    )
