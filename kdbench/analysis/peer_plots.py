# SPDX-License-Identifier: Apache-2.0
"""Ratios -> one matplotlib figure: who takes how long, workload by workload. Nothing is shown or saved here."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kdbench.analysis.peers import LESS_THAN, OURS

_MARKERS = "osDv^<>PXp*h"
_OURS_COLOR = "tab:red"
# The others' colours: the default cycle without ours.
_COLORS = ("C0", "C1", "C2", "C4", "C5", "C6", "C7", "C8", "C9")


def peers_figure(compared: pd.DataFrame) -> Figure:
    """One panel a kernel and scope: seconds of each implementation on a logarithmic axis, a line a workload.

    Implementations without a tree mask are drawn hollow, beside those with one; a short bar is the floor.

    Args:
        compared: as from ``kdbench.analysis.peers.ratios``, of one machine.
    """
    if compared.empty:
        figure, axis = plt.subplots(figsize=(6, 1.5))
        axis.set_axis_off()
        axis.text(0.5, 0.5, "nothing was compared", ha="center", va="center")
        return figure
    shown = compared.assign(panel=[LESS_THAN.get(scope, scope) for scope in compared["scope"]])
    panels = list(shown.groupby(["kernel", "panel"], sort=False))
    heights = [1.4 + panel["workload"].nunique() * (0.2 + 0.06 * len(_kinds(panel))) for _, panel in panels]
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(10, sum(heights)), squeeze=False, layout="constrained", height_ratios=heights
    )
    for axis, (key, panel) in zip(axes[:, 0], panels, strict=True):
        _draw(axis, panel, f"{key[0]}: {key[1]}")
    return figure


def _draw(axis: Axes, panel: pd.DataFrame, title: str) -> None:
    workloads = list(dict.fromkeys(panel["workload"]))
    kinds = _kinds(panel)
    for at, (name, clock, does_less) in enumerate(kinds):
        rows = panel[(panel["implementation"] == name) & (panel["clock"] == clock) & (panel["does_less"] == does_less)]
        # Implementations of one workload lie below one another, and so do not hide each other.
        shift = 0.6 * (at / (len(kinds) - 1) - 0.5) if len(kinds) > 1 else 0.0
        places = [workloads.index(workload) + shift for workload in rows["workload"]]
        seconds = rows["seconds"].to_numpy()
        spread = [seconds - rows["ci_low"].to_numpy(), rows["ci_high"].to_numpy() - seconds]
        color = _OURS_COLOR if name == OURS else _COLORS[at % len(_COLORS)]
        face = "none" if does_less else color
        label = f"{name} ({clock}{', no mask' if does_less else ''})"
        marker = _MARKERS[at % len(_MARKERS)]
        axis.errorbar(seconds, places, xerr=spread, fmt=marker, color=color, mfc=face, ms=6, lw=1, label=label)
    floors = panel.dropna(subset=["floor_seconds"]).drop_duplicates("workload")
    if len(floors):
        places = [workloads.index(workload) for workload in floors["workload"]]
        axis.plot(floors["floor_seconds"], places, "|", color="black", ms=18, label="floor")
    axis.set_xscale("log")
    axis.set_yticks(range(len(workloads)), workloads, fontsize=8, parse_math=False)
    axis.set_ylim(len(workloads) - 0.5, -0.5)
    axis.set_xlabel("seconds")
    axis.grid(axis="x", alpha=0.3)
    axis.set_title(title, fontsize=10, parse_math=False)
    axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _kinds(panel: pd.DataFrame) -> list[tuple[str, str, bool]]:
    """(implementation, clock, does_less) in the order of the frame."""
    return list(dict.fromkeys(zip(panel["implementation"], panel["clock"], panel["does_less"], strict=True)))
