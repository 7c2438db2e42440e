# SPDX-License-Identifier: Apache-2.0
"""One parsed asv result file -> rows, a parameter combination each."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kdbench.result_values import combinations, plain_text

_STAT_COLUMNS = ("stats_ci_99_a", "stats_ci_99_b")


def rows_of_file(
    data: Mapping[str, Any], folder: str, benchmarks: Mapping[str, Any], complain: Callable[[str, Exception], None]
) -> Iterator[dict[str, Any]]:
    """Rows as ``kdbench.results.load`` describes them, all but their place in history.

    Args:
        data: the file, api_version 2.
        folder: name of the machine where the file does not say.
        benchmarks: benchmarks.json, by name; {} where there is none.
        complain: called with the name of a benchmark whose entry cannot be read; the others come out.
    """
    machine = data["params"].get("machine")
    common = {
        "machine": plain_text(machine if isinstance(machine, str) and machine else folder),
        "env": plain_text(str(data["env_name"])),
        "commit": plain_text(data["commit_hash"]),
        "date": data.get("date"),
    }
    for name, row in data["results"].items():
        try:
            columns = dict(zip(data["result_columns"], row, strict=False))
            yield from _rows_of_benchmark(name, columns, common, benchmarks.get(name, {}))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            complain(plain_text(name), error)


def _rows_of_benchmark(
    name: str, columns: Mapping[str, Any], common: Mapping[str, Any], meta: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    cells = combinations(columns.get("params") or [], meta.get("param_names"))
    values = _spread(columns.get("result"), len(cells), "result")
    low, high = (_spread(columns.get(key), len(cells), key) for key in _STAT_COLUMNS)
    samples = _spread(columns.get("samples"), len(cells), "samples")
    rounds = meta.get("rounds")
    for at, params in enumerate(cells):
        status, reason, value = _status(values[at])
        taken = [float(x) for x in samples[at] or [] if _is_number(x)] if isinstance(samples[at], list) else []
        yield {
            **common,
            "name": plain_text(name),
            "params": json.dumps(params, sort_keys=True, allow_nan=False),
            "value": value,
            "ci_low": _finite(low[at]),
            "ci_high": _finite(high[at]),
            "samples": taken,
            "rounds": rounds if isinstance(rounds, int) and rounds > 0 else None,
            "process_medians": process_medians(taken, rounds, meta.get("samples_per_process")),
            "unit": plain_text(str(meta.get("unit") or "unit")),
            "direction": "higher" if meta.get("direction") == "higher" else "lower",
            "version": plain_text(str(columns.get("version") or "")),
            "status": status,
            "reason": reason,
            "min_effect": _of_workload(meta.get("min_effect"), params),
            **_cost(meta, params),
        }


def _cost(meta: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """What a kernel benchmark says that one call of this workload must move and compute."""
    known = meta.get("workloads")
    cost = known.get(str(params.get("workload")), {}) if isinstance(known, dict) else {}
    cost = cost if isinstance(cost, dict) else {}
    return {
        "timing_mode": plain_text(str(meta.get("timing_mode") or "")),
        "roofline": plain_text(str(cost.get("roofline") or "")),
        **{key: _finite(cost.get(key)) for key in ("bytes_moved", "flops", "absorbed_nodes")},
    }


def process_medians(samples: list[float], rounds: object, samples_per_process: object = None) -> list[float]:
    """Samples in round order -> one median a process.

    asv strings the samples of all processes together and forgets where one ends; each process gives the same number.
    That number is the better guide where the benchmark states it, since a resumed or interrupted run has another count
    of processes than was asked for.

    Returns:
        An empty list when the samples do not divide evenly, or one of them is no finite number.
    """
    total = len(samples)
    if not total or not all(math.isfinite(x) for x in samples):
        return []
    if isinstance(samples_per_process, int) and samples_per_process > 0 and total % samples_per_process == 0:
        size = samples_per_process
    elif isinstance(rounds, int) and rounds > 0 and total % rounds == 0:
        size = total // rounds
    else:
        return []
    return [statistics.median(samples[at : at + size]) for at in range(0, total, size)]


def _status(value: object) -> tuple[str, str, float]:
    if value is None:
        return "failed", "the benchmark or its build failed; asv keeps no reason in this file", math.nan
    if not _is_number(value):
        return "failed", f"the result is {type(value).__name__}, not a number", math.nan
    number = float(value)  # type: ignore[arg-type]
    if math.isnan(number):
        return "skipped", "skipped: not available on this machine, or not selected in this run", math.nan
    if math.isinf(number):
        return "failed", "the result is infinite", math.nan
    return "ok", "", number


def _spread(column: object, count: int, what: str) -> list[Any]:
    """A column as one entry a combination; asv writes null for a column that is null throughout."""
    if column is None:
        return [None] * count
    if not isinstance(column, list) or len(column) != count:
        size = len(column) if isinstance(column, list) else "no list"
        raise ValueError(f"{what} has {size} entries where its parameters make {count}")
    return column


def _of_workload(value: object, params: Mapping[str, Any]) -> float:
    """A metadata number, or the entry of a dict that is keyed by one of the parameter values."""
    if isinstance(value, dict):
        value = next((value[str(p)] for p in params.values() if str(p) in value), None)
    return _finite(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finite(value: object) -> float:
    return float(value) if _is_number(value) and math.isfinite(value) else math.nan  # type: ignore[arg-type]
