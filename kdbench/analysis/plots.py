# SPDX-License-Identifier: Apache-2.0
"""Frames -> matplotlib figures, for notebooks. Nothing is shown or saved here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kdbench import units
from kdbench.analysis.compare import SERIES
from kdbench.ceilings import Ceilings

_MARKS = {"slower": ("^", "tab:red"), "faster": ("v", "tab:green")}


def history_figure(judged: pd.DataFrame, most: int = 6) -> Figure:
    """One panel a series: each commit's number with its interval, slower and faster commits marked and named.

    Args:
        judged: as from ``kdbench.analysis.changes``; nothing in it gives a figure that says so.
        most: panels; series with the largest judged change come first.
    """
    with_numbers = judged[judged["status"] == "ok"]
    if with_numbers.empty:
        return _nothing("no results to draw")
    rank = with_numbers["change"].abs().where(with_numbers["verdict"].isin(list(_MARKS)), 0.0).fillna(0.0)
    largest = rank.groupby([with_numbers[key] for key in SERIES]).max().sort_values(ascending=False, kind="stable")
    figure, axes = plt.subplots(
        len(largest.index[:most]), 1, figsize=(9, 2.4 * min(most, len(largest))), squeeze=False, layout="constrained"
    )
    groups = dict(list(with_numbers.groupby(SERIES, sort=False)))
    for axis, key in zip(axes[:, 0], largest.index[:most], strict=True):
        _draw_series(axis, groups[key])
    return figure


def process_figure(frame: pd.DataFrame, event: pd.Series[Any]) -> Figure:
    """The replicates behind one verdict: process medians of the commit and of its predecessor side by side.

    Args:
        frame: as from ``kdbench.results.load``.
        event: a row of ``kdbench.analysis.events``.
    """
    here = frame
    for key in SERIES:
        here = here[here[key] == event[key]]
    figure, axis = plt.subplots(figsize=(5, 3), layout="constrained")
    scale, unit = units.scale_of(float(event["value"]), str(event["unit"]))
    names = []
    for at, commit in enumerate((event["before"], event["commit"])):
        medians = [x for row in here.loc[here["commit"] == commit, "process_medians"] for x in row]
        axis.plot([at] * len(medians), [x / scale for x in medians], "o", alpha=0.6)
        names.append(f"{units.short(commit)}\n{units.count(len(medians), 'process')}")
    axis.set_xticks([0, 1], names)
    axis.set_xlim(-0.5, 1.5)
    axis.set_ylabel(unit)
    axis.set_title(_title(event), fontsize=9, parse_math=False)
    return figure


def roofline_figure(rooflines: pd.DataFrame, ceilings: Mapping[str, Ceilings], machine: str) -> Figure:
    """Useful FLOPs a second against FLOPs a byte, under a machine's measured ceiling; numbers above it are crossed.

    Args:
        rooflines: as from ``kdbench.analysis.roofline``, perhaps of one commit only.
        ceilings: as from ``kdbench.ceilings.read``; without those of ``machine`` the figure says so.
        machine: whose numbers are drawn. Kernels without FLOPs have no place in it.
    """
    if machine not in ceilings:
        return _nothing(f"no measured ceilings of {machine or 'any machine'}")
    here = rooflines[(rooflines["machine"] == machine) & (rooflines["flop_rate"] > 0)]
    if here.empty:
        return _nothing(f"no number of {machine} counts FLOPs")
    rates = ceilings[machine]
    figure, axis = plt.subplots(figsize=(8, 4), layout="constrained")
    intensity = here["flop_rate"] / here["byte_rate"]
    ridge = rates.flops_per_s / rates.bytes_per_s
    reach = np.geomspace(min(intensity.min(), ridge) / 2, max(intensity.max(), ridge) * 2, 200)
    roof = np.minimum(reach * rates.bytes_per_s, rates.flops_per_s)
    axis.loglog(reach, roof / 1e12, color="black", label=f"{rates.source} ceiling")
    for bound, group in here.assign(intensity=intensity).groupby("bound"):
        axis.plot(group["intensity"], group["flop_rate"] / 1e12, "o", alpha=0.6, label=bound or "not known")
    above = here["of_floor"] > 1
    axis.plot(intensity[above], here.loc[above, "flop_rate"] / 1e12, "rx", label="above the ceiling")
    axis.set_xlabel("FLOP a byte")
    axis.set_ylabel("TFLOP/s")
    axis.set_title(machine, fontsize=9, parse_math=False)
    axis.legend(fontsize=8)
    return figure


def _draw_series(axis: Axes, series: pd.DataFrame) -> None:
    scale, unit = units.scale_of(float(series["value"].median()), str(series["unit"].iloc[0]))
    at = range(len(series))
    value = series["value"] / scale
    axis.fill_between(at, series["low"] / scale, series["high"] / scale, alpha=0.25, linewidth=0)
    axis.plot(at, value, marker=".", linewidth=1)
    for verdict, (marker, color) in _MARKS.items():
        for place in [i for i in at if series["verdict"].iloc[i] == verdict]:
            row = series.iloc[place]
            axis.plot(place, value.iloc[place], marker, color=color, markersize=9)
            words = f"{units.short(row['commit'])} {units.change(row['change'])} {verdict}"
            axis.annotate(words, (place, value.iloc[place]), (6, -14), textcoords="offset points", fontsize=8)
    axis.set_xticks(list(at), [units.short(commit)[:7] for commit in series["commit"]], rotation=60, fontsize=7)
    axis.set_ylabel(unit)
    # A quiet series must look quiet.
    middle, span = float(value.median()), float(value.max() - value.min())
    if span < 0.1 * abs(middle):
        axis.set_ylim(middle - 0.1 * abs(middle), middle + 0.1 * abs(middle))
    axis.set_title(_title(series.iloc[-1]), fontsize=9, parse_math=False)


def _title(row: pd.Series[Any]) -> str:
    params = ", ".join(str(value) for value in json.loads(row["params"]).values())
    words = [row["machine"], row["name"], params, "higher is better" if row["direction"] == "higher" else ""]
    return "  ".join(word for word in words if word)[:140]


def _nothing(why: str) -> Figure:
    figure, axis = plt.subplots(figsize=(6, 1.5))
    axis.set_axis_off()
    axis.text(0.5, 0.5, why, ha="center", va="center")
    return figure
