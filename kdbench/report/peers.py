# SPDX-License-Identifier: Apache-2.0
"""Recorded comparisons with other people's kernels -> the tables that the page shows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from kdbench import units
from kdbench.analysis.peers import LESS_THAN, OURS, newest_runs, ratios, sentence, spans


@dataclass(frozen=True)
class PeerRow:
    """One implementation on one workload; texts are ready to print, and say nothing where nothing is known.

    Attributes:
        ours: it is our kernel.
        does_less: it applies no tree mask, and so is an upper competitor.
    """

    workload: str
    implementation: str
    ours: bool
    does_less: bool
    clock: str
    value: str
    interval: str
    ratio: str
    ratio_interval: str
    of_floor: str
    library: str
    note: str


@dataclass(frozen=True)
class PeerTable:
    """Everything of one kernel and scope on one machine.

    Attributes:
        commits: of our library, short, and the days they were measured on.
        claims: a sentence an implementation.
    """

    machine: str
    backend: str
    kernel: str
    scope: str
    commits: tuple[tuple[str, str], ...]
    rows: tuple[PeerRow, ...]
    claims: tuple[str, ...]


def tables(frame: pd.DataFrame) -> tuple[PeerTable, ...]:
    """One table a machine, backend, kernel and scope, each workload by its newest run.

    Args:
        frame: as from ``kdbench.peer_results.load``.
    """
    compared = ratios(newest_runs(frame))
    if compared.empty:
        return ()
    panels = compared.assign(panel=[LESS_THAN.get(scope, scope) for scope in compared["scope"]])
    found = []
    for key, rows in panels.groupby(["machine", "backend", "kernel", "panel"], sort=False):
        measured = rows[["commit", "date"]].assign(day=rows["date"].map(units.day)).drop_duplicates(["commit", "day"])
        found.append(
            PeerTable(
                machine=str(key[0]),
                backend=str(key[1]),
                kernel=str(key[2]),
                scope=str(key[3]),
                commits=tuple((units.short(c), d) for c, d in zip(measured["commit"], measured["day"], strict=True)),
                rows=tuple(_row(row) for row in rows.to_dict("records")),
                claims=tuple(sentence(span) for span in spans(rows).to_dict("records")),
            )
        )
    return tuple(found)


def entries(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The same for machines: one object a measurement; what is not known is null."""
    numbers = ("seconds", "ci_low", "ci_high", "floor_seconds", "of_floor", "ratio", "ratio_low", "ratio_high")
    texts = (
        "machine",
        "backend",
        "kernel",
        "workload",
        "implementation",
        "scope",
        "clock",
        "mode",
        "commit",
        "library",
    )
    return [
        {name: row[name] or None for name in texts}
        | {"date": row["date"].isoformat(), "does_less": bool(row["does_less"]), "rounds": int(row["rounds"])}
        | {name: float(row[name]) if math.isfinite(row[name]) else None for name in numbers}
        for row in ratios(newest_runs(frame)).to_dict("records")
    ]


def _row(row: Mapping[Any, Any]) -> PeerRow:
    seconds = row["seconds"]
    ours = row["implementation"] == OURS
    known = not ours and math.isfinite(row["ratio"])
    return PeerRow(
        workload=row["workload"],
        implementation=row["implementation"],
        ours=ours,
        does_less=bool(row["does_less"]),
        clock=row["clock"],
        value=units.quantity(seconds, "seconds"),
        interval=units.interval(seconds, row["ci_low"], row["ci_high"], "seconds"),
        ratio=f"{row['ratio']:.3g} ×" if known else "",
        ratio_interval=f"{row['ratio_low']:.3g} – {row['ratio_high']:.3g}" if known else "",
        of_floor=f"{100 * row['of_floor']:.0f}\N{NARROW NO-BREAK SPACE}%" if math.isfinite(row["of_floor"]) else "",
        library=row["library"],
        note=row["note"],
    )
