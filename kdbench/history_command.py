# SPDX-License-Identifier: Apache-2.0
"""The verb ``kdbench history``: the changes of every series in any asv results directory."""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.progress import Progress
from rich.text import Text

from kdbench import units
from kdbench.errors import KdbenchError
from kdbench.terminal import finish, progress, stderr, table

if TYPE_CHECKING:
    import pandas as pd

    from kdbench.analysis.history import History

SCHEMA = "kdbench/history/1"
_OURS = ("kernel", "decode")
# Below this many points a pool costs more than it saves.
_POINTS_FOR_POOL = 100_000


def history(
    results: Annotated[Path, typer.Option("--results", help="asv results directory, of any project.")] = Path(
        "results"
    ),
    bench: Annotated[
        str | None, typer.Option("--bench", help="Only series whose name(params) fit this regular expression.")
    ] = None,
    machine: Annotated[str | None, typer.Option("--machine", help="Only this machine.")] = None,
    repo: Annotated[
        Path | None,
        typer.Option("--repo", help="Git repository that knows the commits; by default the one around --results."),
    ] = None,
    fail: Annotated[
        bool,
        typer.Option(
            "--fail", help="Exit with 1 when a confirmed slowdown stands that nothing undid; bad input is then 2."
        ),
    ] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")
    ] = False,
) -> None:
    """List the commits that made series slower or faster, and drift: levels, not single points, are compared."""
    try:
        standing = _show(results, bench, machine, repo, json_)
    except KdbenchError as error:
        if not fail:
            raise
        # "Slower" must mean slower.
        stderr().print(Text(f"kdbench: {error}"))
        raise typer.Exit(2) from error
    raise typer.Exit(1 if fail and standing else 0)


def document(found: History, notes: list[str]) -> dict[str, Any]:
    """A ``History`` as strict JSON: numbers that are not known are null."""
    changes = [
        {
            "series": row["name"],
            "params": json.loads(row["params"]),
            "machine": row["machine"],
            "env": row["env"],
            "change_percent": 100.0 * row["change"],
            "mde_percent": 100.0 * row["mde"],
            **{
                key: _plain(row[key]) for key in row if key not in ("name", "params", "machine", "env", "change", "mde")
            },
        }
        for row in _records(found.changes)
    ]
    series = [
        {
            "series": row["name"],
            "params": json.loads(row["params"]),
            **{key: _plain(row[key]) for key in row if key not in ("name", "params")},
        }
        for row in _records(found.series)
    ]
    return {"schema": SCHEMA, "summary": _summary(found), "changes": changes, "series": series, "warnings": notes}


def _show(results: Path, bench: str | None, machine: str | None, repo: Path | None, as_json: bool) -> bool:
    from kdbench.analysis.covariates import machine_labels
    from kdbench.analysis.history import history as analyse
    from kdbench.analysis.history import standing_regressions
    from kdbench.commits import read_releases
    from kdbench.result_records import read_records
    from kdbench.results import load

    if repo is not None and not repo.is_dir():
        raise KdbenchError(f"no repository at {repo}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frame = load(results, repo)
    notes = [str(warning.message) for warning in caught]
    for note in notes:
        stderr().print(Text(f"warning: {note}"))
    frame = _chosen(frame, bench, machine, results)
    _check_directions(results / "benchmarks.json", set(frame["name"]))
    lines = frame.groupby(["machine", "env", "name", "params", "version"]).ngroups
    order = frame[frame["order"] >= 0].sort_values("order")["commit"].drop_duplicates().tolist()
    labels = machine_labels(read_records(results), order)
    workers = _cpus() if len(frame) > _POINTS_FOR_POOL else 1
    with Progress(console=progress(as_json), transient=True, disable=not progress(as_json).is_terminal) as bar:
        task = bar.add_task("series", total=lines)
        found = analyse(
            frame,
            labels=labels,
            releases=read_releases(repo if repo is not None else results),
            workers=workers,
            on_series=lambda: bar.advance(task),
        )
    finish(as_json, document(found, notes), _for_people(found))
    return not standing_regressions(found.changes).empty


def _chosen(frame: pd.DataFrame, bench: str | None, machine: str | None, results: Path) -> pd.DataFrame:
    if frame.empty:
        raise KdbenchError(f"no results in {results}")
    if machine is not None:
        known = sorted(frame["machine"].unique())
        if machine not in known:
            raise KdbenchError(f"--machine {machine}: choose from {', '.join(known)}")
        frame = frame[frame["machine"] == machine]
    if bench is not None:
        try:
            pattern = re.compile(bench)
        except re.error as error:
            raise KdbenchError(f"--bench {bench!r} is no regular expression: {error}") from error
        names = [_label(name, params) for name, params in zip(frame["name"], frame["params"], strict=True)]
        frame = frame[[pattern.search(name) is not None for name in names]]
        if frame.empty:
            raise KdbenchError(f"no series has a name that fits {bench!r}")
    return frame


def _check_directions(path: Path, wanted: set[str]) -> None:
    """kdbench's own benchmarks say what is better; asv's are lower-is-better where nothing is said."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    for name, entry in known.items() if isinstance(known, dict) else ():
        if name not in wanted or not isinstance(entry, dict) or entry.get("type") not in _OURS:
            continue
        if (said := entry.get("direction")) not in ("lower", "higher"):
            raise KdbenchError(f'{path}: {name} must say its direction, "lower" or "higher", and says {said!r}')


def _for_people(found: History) -> Group:
    several = found.series[["machine", "env"]].drop_duplicates().shape[0] > 1
    rows = [
        (
            units.short(row["commit"]),
            _label(row["name"], row["params"]) + (f" on {row['machine']}, {row['env']}" if several else ""),
            f"{units.quantity(row['before'], row['unit'])} → {units.quantity(row['after'], row['unit'])}",
            units.change(row["change"]),
            _words(row),
        )
        for row in _records(found.changes.sort_values("order", ascending=False, kind="stable"))
    ]
    header = ("commit", "series", "before → after", "change", "verdict")
    counts = _summary(found)
    said = ", ".join(f"{n} {word}" for word, n in counts["changes"].items() if n) or "no change found"
    text = f"{units.count(counts['series'], 'series').replace('serieses', 'series')}: {said}"
    if counts["too_short"]:
        text += f"; {counts['too_short']} too short to tell anything (13 points are the least)"
    return Group(*([table(header, rows)] if rows else []), Text(text))


def _words(row: dict[str, Any]) -> str:
    words = [row["verdict"]]
    if row["kind"] == "drift":
        words.append(f"drift since {units.short(row['previous_commit'])}, against {row['against']}")
    elif row["status"] == "suspected":
        words.append("suspected")
    if row["undone_by"] is not None:
        words.append(f"undone by {units.short(row['undone_by'])}")
    return "; ".join(text for text in (", ".join(words), row["reason"]) if text)


def _summary(found: History) -> dict[str, Any]:
    counts = {
        f"{verdict} ({status})": int(
            ((found.changes["verdict"] == verdict) & (found.changes["status"] == status)).sum()
        )
        for verdict in ("slower", "faster", "machine changed", "ambiguous")
        for status in ("confirmed", "suspected")
    }
    return {
        "series": len(found.series),
        "too_short": int((found.series["state"] == "too short").sum()),
        "changes": {word: number for word, number in counts.items() if number},
    }


def _label(name: str, params: str) -> str:
    values = json.loads(params)
    return f"{name}({', '.join(str(value) for value in values.values())})" if values else name


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in frame.astype(object).to_dict("records")]


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    number = float(value)
    return number if math.isfinite(number) else None


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
