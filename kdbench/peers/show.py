# SPDX-License-Identifier: Apache-2.0
"""A finished comparison as text: a table of times and ratios, what was passed over and why, what may be claimed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Group, RenderableType
from rich.text import Text

from kdbench import units
from kdbench.analysis.peers import LESS_THAN, OURS, sentence, spans
from kdbench.errors import KdbenchError
from kdbench.peers.command import Comparison
from kdbench.peers.contest import PassedOver
from kdbench.terminal import table

_HEADER = ("workload", "implementation", "clock", "time (95 % interval)", "× kdtree (interval)", "of floor")


def shown(compared: pd.DataFrame, passed_over: Sequence[PassedOver]) -> RenderableType:
    """Tables kernel by kernel, then what has no time, then a sentence an implementation.

    Args:
        compared: as from ``kdbench.analysis.peers.ratios``.
        passed_over: everything without a time.
    """
    parts: list[RenderableType] = []
    panels = compared.assign(panel=[LESS_THAN.get(scope, scope) for scope in compared["scope"]])
    for (kernel, panel), rows in panels.groupby(["kernel", "panel"], sort=False):
        parts += [Text(f"{kernel}: {panel}"), table(_HEADER, [cells(row) for row in rows.to_dict("records")]), Text("")]
    if passed_over:
        parts.append(Text("without a time"))
        parts.append(table(("implementation", "workloads", "", "why"), _reasons(passed_over)))
        parts.append(Text(""))
    parts += [Text(sentence(span)) for span in spans(compared).to_dict("records")]
    return Group(*parts)


def cells(row: Mapping[Any, Any]) -> tuple[str, ...]:
    """One row of ``kdbench.analysis.peers.ratios`` as the table's texts."""
    seconds = row["seconds"]
    less = f", {row['scope']}" if row["does_less"] else ""
    between = units.interval(seconds, row["ci_low"], row["ci_high"], "seconds")
    known = row["implementation"] != OURS and math.isfinite(row["ratio"])
    return (
        row["workload"],
        f"{row['implementation']}{less}",
        row["clock"],
        f"{units.quantity(seconds, 'seconds')} ({between})",
        f"{row['ratio']:.3g} ({row['ratio_low']:.3g} – {row['ratio_high']:.3g})" if known else "",
        f"{100 * row['of_floor']:.0f} %" if math.isfinite(row["of_floor"]) else "",
    )


def _reasons(passed_over: Sequence[PassedOver]) -> list[tuple[str, ...]]:
    """One line a reason, with the workloads that it holds for."""
    grouped: dict[tuple[str, str, str, str], list[str]] = {}
    for item in passed_over:
        key = (item.implementation, item.scope, item.status, item.reason)
        grouped.setdefault(key, []).append(item.workload.name)
    return [
        (f"{name}, {scope}", names[0] if len(names) == 1 else f"{len(names)} workloads", status, reason)
        for (name, scope, status, reason), names in grouped.items()
    ]


def document(found: Comparison, compared: pd.DataFrame, figure: Path | None) -> dict[str, Any]:
    """The same for machines, ``kdbench/peers/1``; what is not known is null."""
    numbers = ("seconds", "ci_low", "ci_high", "floor_seconds", "of_floor", "ratio", "ratio_low", "ratio_high", "error")
    texts = ("kernel", "workload", "implementation", "scope", "clock", "mode", "library", "note", "commit")
    rows = compared.assign(error=found.frame["error"]).to_dict("records")
    return {
        "schema": "kdbench/peers/1",
        "machine": found.machine,
        "measurements": [
            {name: row[name] or None for name in texts}
            | {name: float(row[name]) if math.isfinite(row[name]) else None for name in numbers}
            | {"does_less": bool(row["does_less"]), "rounds": int(row["rounds"])}
            for row in rows
        ],
        "passed_over": [
            {
                "kernel": item.workload.kernel,
                "workload": item.workload.name,
                "implementation": item.implementation,
                "scope": item.scope,
                "status": item.status,
                "reason": item.reason,
            }
            for item in found.passed_over
        ],
        "claims": [sentence(span) for span in spans(compared).to_dict("records")],
        "records": str(found.path) if found.path else None,
        "figure": str(figure) if figure else None,
    }


def draw(compared: pd.DataFrame, path: Path) -> Path:
    """Write the figure; KdbenchError when it cannot be written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from kdbench.analysis.peer_plots import peers_figure

    figure = peers_figure(compared)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise KdbenchError(f"cannot write the figure to {path}: {error}") from error
    finally:
        pyplot.close(figure)
    return path
