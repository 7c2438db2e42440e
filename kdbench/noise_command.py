# SPDX-License-Identifier: Apache-2.0
"""The verb ``kdbench noise``: the noise floor of this machine's series, and the smallest change each lets one see."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from rich.text import Text

from kdbench.errors import InvalidArgument, KdbenchError
from kdbench.selection import chosen, pattern
from kdbench.terminal import finish, progress, table
from kdbench.units import change, percent, quantity

OK, FAILED, INTERRUPTED = 0, 2, 130


def noise(
    bench: Annotated[
        str | None, typer.Option("--bench", help="Only series whose name fits this regular expression.")
    ] = None,
    kernel: Annotated[list[str] | None, typer.Option("--kernel", help="Only this kernel; may be repeated.")] = None,
    backend: Annotated[list[str] | None, typer.Option("--backend", help="Only cpu or cuda; may be repeated.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Only workloads with this tag, e.g. quick.")] = None,
    mode: Annotated[
        list[str] | None, typer.Option("--mode", help="hot, cold, or primary for each kernel's own; may be repeated.")
    ] = None,
    processes: Annotated[int, typer.Option("--processes", min=3, help="Fresh processes a series.")] = 8,
    samples: Annotated[int | None, typer.Option("--samples", min=1, help="Samples a process; by default 20.")] = None,
    min_effect: Annotated[
        float, typer.Option("--min-effect", help="The smallest change that should be seen, as a fraction.")
    ] = 0.02,
    recorded: Annotated[
        bool,
        typer.Option(
            "--recorded", help="Measure nothing: the noise of the history in --results, and what A/A runs left there."
        ),
    ] = False,
    results: Annotated[Path, typer.Option("--results", help="asv results directory.")] = Path("results"),
    machine: Annotated[str | None, typer.Option("--machine", help="Name that results are filed under.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure, and save nothing.")] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")
    ] = False,
) -> None:
    """Measure the same build again and again: noise within and between processes, and what can be seen through it.

    Lines go to results/MACHINE/noise.jsonl. Exits with 2 when a series could not be measured.
    """
    from kdbench.analysis.noise import PROCESSES

    if not 0 < min_effect < 1:
        raise InvalidArgument(f"--min-effect {min_effect}: a fraction between 0 and 1 is expected, 0.02 for 2 %")
    failed: dict[str, str] = {}
    machine_changes: list[dict[str, Any]] = []
    calibration: list[dict[str, Any]] = []
    code, path = OK, None
    if recorded:
        rows, machine_changes = _recorded(results, bench, machine)
        calibration = _calibration(results, machine)
    else:
        names = _names(bench, kernel, backend, tag, mode)
        rows, failed, interrupted, path = _measured(
            names, processes, samples, min_effect, None if dry_run else results, machine, json_
        )
        code = INTERRUPTED if interrupted else FAILED if failed else OK
    told = [table(*_table(rows))] if len(rows) else []
    blind = [row for row in rows if row["mde"] > row["min_effect"]]
    lines = [_blind(row) for row in blind] + [f"{name} failed: {why}" for name, why in failed.items()]
    lines.append(f"MDE: the change that {PROCESSES} processes a side find in 9 of 10 cases, two-sided at 1 %.")
    out = progress(json_)
    if machine_changes:
        shown = [[each[key][:10] for key in ("machine", "commit")] + [each["detail"]] for each in machine_changes]
        told.append(table(("machine", "since", "what changed about it"), shown))
    if calibration:
        told.append(table(*_calibration_table(calibration)))
    for each in told:
        out.print(each, "")
    content = {
        "schema": "kdbench/noise/1",
        "path": str(path) if path else None,
        "processes": PROCESSES,
        "series": rows,
        "too_noisy": list(dict.fromkeys(row["series"] for row in blind)),
        "failed": failed,
        "machine_changes": machine_changes,
        "calibration": calibration,
        "interrupted": code == INTERRUPTED,
    }
    finish(json_, content, Text("\n".join(lines)))
    raise typer.Exit(code)


def _names(
    bench: str | None,
    kernel: Sequence[str] | None,
    backend: Sequence[str] | None,
    tag: str | None,
    mode: Sequence[str] | None,
) -> list[str]:
    from kdbench import native, runner

    pattern("--bench", bench)
    kernel = chosen("--kernel", kernel, runner.MEASURED)
    backend = chosen("--backend", backend, native.BACKENDS)
    mode = chosen("--mode", mode, ("hot", "cold", "primary"))
    reasons = {name: native.available(name) for name in backend or native.BACKENDS}
    usable = [name for name, why in reasons.items() if why is None]
    names = runner.series_names(kernel or runner.MEASURED, usable, mode or ("primary",), tag, bench)
    # Values of the decode loop without samples have no noise of their own.
    names = [name for name in names if ".track_" not in name]
    if not names:
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason)
        raise InvalidArgument(f"no series fits the selection{' (' + why + ')' if why else ''}")
    return names


def _measured(
    names: Sequence[str],
    processes: int,
    samples: int | None,
    min_effect: float,
    results: Path | None,
    machine: str | None,
    json_: bool,
) -> tuple[list[dict[str, Any]], dict[str, str], bool, Path | None]:
    from kdbench import machine as machines
    from kdbench import noise_records, noise_run, provenance
    from kdbench.timing import SAMPLES_PER_PROCESS

    out = progress(json_)

    def show(step: noise_run.Progress) -> None:
        out.print(f"{step.done}/{step.total} {step.series}{': ' + step.error if step.error else ''}")

    session = noise_run.measure(names, processes, samples or SAMPLES_PER_PROCESS, show)
    place = machine or machines.identity()["machine"]
    path = results / place / noise_records.FILE if results else None
    run, rows = noise_records.new_run(), []
    for name, records in session.records.items():
        try:
            line = noise_records.record(name, records, machine=place, min_effect=min_effect, run=run)
        except ValueError as error:
            session.failed.setdefault(name, str(error))
            continue
        if path is not None:
            try:
                provenance.append(path, line)
            except OSError as error:
                raise KdbenchError(f"cannot write {path}: {error.strerror or error}") from error
        rows.append({**noise_records.row_of(line), "source": "A/A"})
    return rows, session.failed, session.interrupted, path


def _recorded(
    results: Path, bench: str | None, machine: str | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    from kdbench import noise_records
    from kdbench.analysis.covariates import machine_labels
    from kdbench.analysis.noise import PROCESSES, from_results, mde
    from kdbench.result_records import read_records
    from kdbench.results import load

    pattern("--bench", bench)
    history = load(results)
    if machine is not None:
        history = history[history["machine"] == machine]
    frame = from_results(history)
    line = history[history["order"] >= 0].sort_values("order")["commit"].drop_duplicates()
    labels = machine_labels(read_records(results), line.tolist())
    changes = labels[labels["machine"].isin(set(history["machine"]))]
    measured = noise_records.read(results)
    if machine is not None:
        measured = measured[measured["machine"] == machine]
    sides = [_rows(frame), _rows(measured)]
    chosen, kept = ([row for row in side if bench is None or re.search(bench, row["series"])] for side in sides)
    if not chosen and not kept:
        raise InvalidArgument(f"{results} holds no series with samples of several processes that fits")
    keys = ("machine", "series", "unit", "commits")
    found = [
        {
            **{key: row[key] for key in keys},
            "min_effect": row["min_effect"] if row["min_effect"] > 0 else 0.02,
            "mde": mde(row["spread"], PROCESSES),
            "source": "history",
            **{key: row[key] for key in _NOISE},
        }
        for row in chosen
    ]
    found += [{**row, "source": "A/A"} for row in kept]
    return found, [{**row, "ratio": row["ratio"] if row["ratio"] > 0 else None} for row in _rows(changes)]


_NOISE = ("processes", "samples", "sigma_within", "sigma_between", "s_p", "spread", "several_kinds")


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]


def _table(rows: Sequence[Mapping[str, Any]]) -> tuple[Sequence[str], list[list[str]]]:
    header = ("series", "from", "time", "processes", "within", "between", "a process", "can see")
    shown = []
    for row in sorted(rows, key=lambda row: -float(row["mde"])):
        cells = [percent(row[key]) for key in ("sigma_within", "sigma_between", "spread")]
        time = quantity(row["value"], row["unit"]) if "value" in row else "–"
        shown.append(
            [_short(row["series"]), row["source"], time, str(row["processes"]), *cells, f">= {percent(row['mde'])}"]
        )
    return header, shown


def _calibration(results: Path, machine: str | None) -> list[dict[str, Any]]:
    from kdbench import noise_records
    from kdbench.analysis.calibration_shift import stability

    found = noise_records.read_calibration(results).items()
    return [{"machine": name, **row} for name, read in found if machine in (None, name) for row in stability(read)]


def _calibration_table(rows: Sequence[Mapping[str, Any]]) -> tuple[Sequence[str], list[list[str]]]:
    header = ("machine", "calibration kernel", "time", "processes", "sd between them", "after a measurement")
    shown = [
        [
            *(row["machine"], f"{row['backend']} {row['kernel']}", quantity(row["seconds"], "seconds")),
            *(str(row["processes"]), percent(row["spread"]), change(row["after"])),
        ]
        for row in rows
    ]
    return header, shown


def _short(series: str) -> str:
    """Without module and quotes: "VerifyAttn.kern_cold h8-n8-p64-b1-ps64 cuda"."""
    return re.sub(r"[(),' ]+", " ", series.partition(".")[2]).strip() or series


def _blind(row: Mapping[str, Any]) -> str:
    kinds = "; its processes are of several kinds" if row["several_kinds"] else ""
    wanted, seen = percent(row["min_effect"]), percent(row["mde"])
    return f"{row['series']} ({row['source']}) is too noisy for {wanted}: it shows {seen}{kinds}"
