# SPDX-License-Identifier: Apache-2.0
"""Rows of ``kdbench.analysis.roofline`` -> the texts and the figure of a page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from kdbench import units
from kdbench.analysis.roofline import KEYS
from kdbench.ceilings import DATASHEET, Ceilings
from kdbench.report import roofline_chart
from kdbench.report.records import FloorCell

_THIN = "\N{NARROW NO-BREAK SPACE}"


class Floors:
    """What is known of floors, by series and commit.

    Args:
        rooflines: as from ``kdbench.analysis.roofline``.
        ceilings: measured rates by machine name.
        gpus: GPU by machine name.
    """

    def __init__(
        self, rooflines: pd.DataFrame, ceilings: Mapping[str, Ceilings], gpus: Mapping[str, str] | None = None
    ) -> None:
        self._rows = {tuple(row[key] for key in KEYS): row for row in rooflines.to_dict("records")}
        self._ceilings = ceilings
        self._gpus = gpus or {}

    def row(self, series: Mapping[Any, Any]) -> Mapping[Any, Any] | None:
        """The roofline of a series at its commit; None where it has no number or no cost."""
        return self._rows.get(tuple(series[key] for key in KEYS))

    def cell(self, series: Mapping[Any, Any]) -> FloorCell | None:
        """What the page says of a series."""
        row = self.row(series)
        if row is None:
            return None
        reached = row["of_floor"]
        notes = []
        if math.isfinite(row["floor"]):
            notes.append(f"floor {units.quantity(row['floor'], 'seconds')}")
        if row["bound"] == "latency":
            above = row["above_empty"]
            known = f"{units.quantity(above, 'seconds')} above an empty launch"
            notes.append(known if math.isfinite(above) else "no empty launch recorded")
        elif row["why"]:
            notes.append(row["why"])
        if row["mark"] == "burst":
            notes.append("over the measured ceiling, as a cold burst can be")
        if row["mark"] == "suspect":
            notes.append("over 5 % beyond the measured ceiling: measure again, or calibrate again")
        if math.isfinite(row["plain_ratio"]):
            notes.append(f"absorbed: {row['plain_ratio']:.1f} × the FLOPs of plain heads")
        percent = f"{100 * reached:.{1 if reached < 0.0995 else 0}f}{_THIN}%" if math.isfinite(reached) else "–"
        return FloorCell(percent, row["bound"], tuple(notes), row["mark"] == "suspect")

    def ceilings(self, machine: str) -> str:
        """The measured rates of a machine as text, "" where there are none."""
        rates = self._ceilings.get(machine)
        if rates is None:
            return ""
        parts = [
            f"{rate / 1e12:.4g} {unit}"
            for rate, unit in ((rates.bytes_per_s, "TB/s of copy"), (rates.flops_per_s, "TFLOP/s of bf16 product"))
            if math.isfinite(rate)
        ]
        return f"{' and '.join(parts)}, {rates.source}" if parts else ""

    def chart(self, machine: str, newest: pd.DataFrame) -> roofline_chart.Chart | None:
        """The roofline of a machine with its series at the newest commit."""
        rates = self._ceilings.get(machine)
        if rates is None:
            return None
        rows = [row for series in newest.to_dict("records") if (row := self.row(series)) is not None]
        series = [
            roofline_chart.Series(
                _name(row), row["flop_rate"] / row["byte_rate"], row["flop_rate"], row["mark"] == "suspect"
            )
            for row in rows
            if row["byte_rate"] > 0
        ]
        return roofline_chart.draw(series, rates, DATASHEET.get(self._gpus.get(machine, "")))


def _name(row: Mapping[Any, Any]) -> str:
    words = [str(row["name"]).rpartition(".")[2], *map(str, json.loads(row["params"]).values())]
    reached = f", {100 * row['of_floor']:.0f} % of floor" if math.isfinite(row["of_floor"]) else ""
    return f"{' '.join(words)}: {row['flop_rate'] / 1e12:.4g} TFLOP/s{reached}"
