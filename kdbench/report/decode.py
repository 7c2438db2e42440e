# SPDX-License-Identifier: Apache-2.0
"""The decode loop's results -> tables of the page: tok/s beside the two numbers that make it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from kdbench import units
from kdbench.analysis.decode import decode_split
from kdbench.report.sparkline import Point, Sparkline, draw

_COMMITS_DRAWN = 60


@dataclass(frozen=True)
class Part:
    """One number with its change since the commit before, and its history."""

    value: str
    change: str
    sparkline: Sparkline | None
    sparkline_text: str


@dataclass(frozen=True)
class DecodeRow:
    """One workload at the newest commit that measured it; texts are ready to print.

    Attributes:
        mode: "ar", "chain" or "ddtree", with its tree_budget.
        times_ar: tok/s over those of plain decoding at the same batch and commit, "" where there are none.
        sentence: what moved tok/s, "" where nothing did.
        bad: tok/s fell.
    """

    workload: str
    mode: str
    batch: int
    tok_s: Part
    times_ar: str
    acceptance: Part
    round_time: Part
    sentence: str
    bad: bool


@dataclass(frozen=True)
class DecodeTable:
    """Everything of one model on one machine, environment and backend.

    Attributes:
        simulated: the acceptance of the rows with a drafter is an assumption.
    """

    machine: str
    env: str
    backend: str
    model: str
    commit: str
    simulated: bool
    rows: tuple[DecodeRow, ...]


def tables(frame: pd.DataFrame) -> tuple[DecodeTable, ...]:
    """One table a machine, environment, backend and model.

    Args:
        frame: as from ``kdbench.results.load``.
    """
    split = decode_split(frame)
    found = []
    for key, here in split.groupby(["machine", "env", "backend", "model"], sort=True):
        machine, env, backend, model = map(str, key)
        newest = here.sort_values("order").groupby("workload", sort=False).tail(1)
        newest = newest.sort_values(["batch", "mode", "tree_budget"])
        plain = {(r["batch"], r["commit"]): r["tok_s"] for r in newest.to_dict("records") if r["mode"] == "ar"}
        rows = tuple(_row(row, here[here["workload"] == row["workload"]], plain) for row in newest.to_dict("records"))
        head = newest.sort_values("order")["commit"].iloc[-1]
        simulated = bool((here["simulated"] > 0).any())
        found.append(DecodeTable(machine, env, backend, model, units.short(str(head)), simulated, rows))
    return tuple(found)


def entries(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The same for machines: one object a workload and commit; what is not known is null."""
    return [{str(key): _plain(value) for key, value in row.items()} for row in decode_split(frame).to_dict("records")]


def _row(row: Mapping[Any, Any], line: pd.DataFrame, plain: Mapping[tuple[int, str], float]) -> DecodeRow:
    base = plain.get((row["batch"], row["commit"]))
    mode = f"{row['mode']} {row['tree_budget']}" if row["mode"] == "ddtree" else row["mode"]
    return DecodeRow(
        workload=row["workload"],
        mode=mode,
        batch=int(row["batch"]),
        tok_s=_part(row, line, "tok_s", "tok/s", row["tok_s_change"]),
        times_ar=f"{row['tok_s'] / base:.2f} ×" if base and row["mode"] != "ar" else "",
        acceptance=_part(row, line, "acceptance_length", "unit", row["acceptance_change"]),
        round_time=_part(row, line, "round_s", "seconds", row["round_change"]),
        sentence=row["sentence"],
        bad=bool(row["cause"]) and row["tok_s_change"] < 0,
    )


def _part(row: Mapping[Any, Any], line: pd.DataFrame, column: str, unit: str, change: float) -> Part:
    known = line[line[column].notna()].sort_values("order").tail(_COMMITS_DRAWN)
    values = [float(value) for value in known[column]]
    points = [Point(at, value, value, value, "same") for at, value in enumerate(values)]
    told = ", ".join(units.quantity(value, unit) for value in values[-8:])
    return Part(
        value=units.quantity(row[column], unit) if math.isfinite(row[column]) else "–",
        change=units.change(change),
        sparkline=draw(points, len(points)) if len(points) > 1 else None,
        sparkline_text=f"{column} of the last commits: {told}",
    )


def _plain(value: Any) -> Any:
    if value in ("", None) or value is pd.NaT or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, pd.Timestamp):
        return value.isoformat()
    return value.item() if hasattr(value, "item") else value
