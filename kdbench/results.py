# SPDX-License-Identifier: Apache-2.0
"""asv result files -> one tidy pandas frame, whatever wrote them and however badly.

Reads api_version 2 and, through asv's own converter, version 1. A file that cannot be read costs a warning that names
it, never the frame. What a file does not say is NaN, None or an empty list; nothing is guessed.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from kdbench.ceilings import read as machine_ceilings
from kdbench.commits import read_history
from kdbench.errors import KdbenchError
from kdbench.result_empties import EmptyKernels
from kdbench.result_reasons import Reasons
from kdbench.result_rows import process_medians, rows_of_file
from kdbench.result_values import plain_text

__all__ = ["COLUMNS", "ResultsWarning", "load", "machine_ceilings", "machine_facts", "process_medians"]

_WHERE = ["name", "params", "machine", "env", "commit", "date", "order"]
_NUMBER = ["value", "ci_low", "ci_high", "samples", "rounds", "unit", "direction", "version", "status"]
_COST = ["timing_mode", "roofline", "bytes_moved", "flops", "absorbed_nodes", "empty_call", "empty_launch"]
COLUMNS = [*_WHERE, *_NUMBER, "process_medians", "min_effect", "reason", "parent", "subject", *_COST]
_NOT_RESULTS = {"machine.json", "benchmarks.json"}


class ResultsWarning(UserWarning):
    """Something in a results directory could not be used; the message names the file or the commits."""


def load(results_dir: str | os.PathLike[str], repo: str | os.PathLike[str] | None = None) -> pd.DataFrame:
    """Every result of an asv results directory.

    Args:
        results_dir: the directory that asv calls results_dir (any depth of machine folders below it).
        repo: a git repository that knows the commits; without it the one around ``results_dir`` is tried.

    Returns:
        One row per machine, environment, commit, benchmark and parameter combination, sorted by machine, env, name,
        params, order. Columns:

        - ``name``; ``params`` (dict of parameter values as canonical JSON text, ``"{}"`` when there are none);
          ``machine``; ``env``; ``commit`` (full hash); ``date`` (UTC, asv's author date, may be NaT)
        - ``order``: position in the line of first parents, or by date among the measured commits when no repository
          knows them; -1 for a commit that is not on that line
        - ``value``, ``ci_low``, ``ci_high``: asv's median and its 99 % interval, floats in ``unit``, NaN when unknown
        - ``samples``: list of floats in round order; ``rounds``: processes asked for, from benchmarks.json;
          ``process_medians``: list, one median a process, empty when the samples cannot be cut apart
        - ``unit``, ``direction`` ("lower" | "higher": what is better), ``version``, ``min_effect`` (a fraction, or NaN)
        - ``status`` ("ok" | "failed" | "skipped"), ``reason`` (a sentence, empty when ok)
        - of a kernel's workload, else "" or NaN: ``timing_mode`` ("hot" | "cold"); ``roofline`` ("latency" | "memory" |
          "compute": what bounds it on a data-centre GPU); ``bytes_moved``, ``flops`` of one call, useful work only;
          ``absorbed_nodes``: nodes a request of an attention that works on latents; ``empty_call``, ``empty_launch``:
          seconds of the smallest empty kernel, and of empty kernels launched as this call's are
        - ``parent``: the commit's first parent, ``None`` when no repository says; ``subject``: its title or ""

    Raises:
        KdbenchError: ``results_dir`` is no directory.
    """
    root = Path(results_dir)
    if not root.is_dir():
        raise KdbenchError(f"no results directory at {root}")
    benchmarks = _read_benchmarks(root / "benchmarks.json")
    reasons, empties = Reasons(root), EmptyKernels(root)
    rows: list[dict[str, Any]] = []
    for path in _result_files(root):
        try:
            for row in rows_of_file(_read_result(path), path.parent.name, benchmarks, _complainer(path)):
                recorded = reasons.explain(path.parent, row) if row["status"] != "ok" else ""
                rows.append({**row, "reason": recorded or row["reason"], **empties.of(path.parent, row)})
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            _warn(f"skipped {path}: {_sentence(error)}")
    frame = pd.DataFrame(rows, columns=COLUMNS)
    if frame.empty:
        return frame
    dates = pd.to_numeric(frame["date"], errors="coerce")
    frame["date"] = pd.to_datetime(dates, unit="ms", utc=True, errors="coerce")
    keys = ["machine", "env", "commit", "name", "params"]
    # asv keeps the last of two equal parameter combinations; two files can hold the same commit after a rename.
    frame = frame.drop_duplicates(keys, keep="last")
    frame = _lay_out(frame, Path(repo) if repo is not None else root, asked=repo is not None)
    return frame.sort_values(["machine", "env", "name", "params", "order"], kind="stable", ignore_index=True)


def machine_facts(results_dir: str | os.PathLike[str]) -> dict[str, dict[str, str]]:
    """What machine.json says of each machine (os, arch, cpu, num_cpu, ram, gpu, ...), by machine name."""
    facts: dict[str, dict[str, str]] = {}
    for path in sorted(Path(results_dir).rglob("machine.json")):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            name = plain_text(str(data.pop("machine")))
            data.pop("version", None)
            facts[name] = {plain_text(str(k)): plain_text(str(v)) for k, v in data.items()}
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            _warn(f"skipped {path}: {_sentence(error)}")
    return facts


def _result_files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders.sort()
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".json") and name not in _NOT_RESULTS)


def _read_result(path: Path) -> dict[str, Any]:
    data = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or not isinstance(data.get("results"), dict):
        raise ValueError("it is no asv result file")
    version = data.get("version", 2)
    if version == 1:
        from asv.results import Results
        from asv.util import UserError

        try:
            data = Results.update_to_2(data)
        except UserError as error:
            raise ValueError(str(error)) from error
    elif version != 2:
        raise ValueError(f"api_version {version!r} is none that asv 0.6 reads")
    for key in ("commit_hash", "env_name", "params", "result_columns"):
        if key not in data:
            raise ValueError(f"it lacks {key!r}")
    if not isinstance(data["commit_hash"], str) or not data["commit_hash"]:
        raise ValueError("its commit_hash is no text")
    return dict(data)


def _read_benchmarks(path: Path) -> dict[str, dict[str, Any]]:
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {name: entry for name, entry in data.items() if isinstance(entry, dict)}
    except (OSError, ValueError, AttributeError) as error:
        _warn(f"skipped {path}: {_sentence(error)}")
        return {}


def _lay_out(frame: pd.DataFrame, repo: Path, *, asked: bool) -> pd.DataFrame:
    """Fill order, parent and subject; sort commits by first parents where git knows them, else by date."""
    dates = frame.groupby("commit")["date"].min()
    by_date = [str(commit) for commit in dates.reset_index().sort_values(["date", "commit"])["commit"]]
    history = read_history(repo, by_date)
    if history is None:
        if asked:
            _warn(f"git finds none of the measured commits at {repo}; commits are ordered by date")
        order = {commit: at for at, commit in enumerate(by_date)}
        return frame.assign(order=frame["commit"].map(order), parent=None, subject="")
    start = pd.Timestamp(history.commits[history.line[0]].time, unit="s", tz="UTC")
    # Commits from before the line begins: a shallow clone holds only its newest part.
    before = [c for c in by_date if c not in history.commits and dates[c] < start]
    order = {commit: at for at, commit in enumerate([*before, *history.line])}
    left = [c for c in by_date if c not in order]
    if left:
        shown = ", ".join(c[:8] for c in left[:5])
        _warn(f"{len(left)} measured commit(s) are not on the line of first parents and are not compared: {shown}")
    known = history.commits
    return frame.assign(
        order=frame["commit"].map(lambda c: order.get(c, -1)),
        parent=frame["commit"].map(lambda c: known[c].parent if c in known else None),
        subject=frame["commit"].map(lambda c: plain_text(known[c].subject) if c in known else ""),
    )


def _complainer(path: Path) -> Callable[[str, Exception], None]:
    return lambda name, error: _warn(f"skipped {name} in {path}: {_sentence(error)}")


def _sentence(error: Exception) -> str:
    text = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
    return plain_text(text or type(error).__name__)


def _warn(message: str) -> None:
    warnings.warn(message, ResultsWarning, stacklevel=3)
