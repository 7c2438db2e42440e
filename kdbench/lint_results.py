# SPDX-License-Identifier: Apache-2.0
"""Checks of one asv result file: values, samples, versions, provenance and roofline of every series in it."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kdbench.timing import roofline_floor

Problem = tuple[str, str, bool]  # series, what is wrong, fatal for asv publish


def check_file(
    document: Mapping[str, Any], benchmarks: Mapping[str, Any], recorded: Collection[tuple[str, ...]]
) -> Iterator[Problem]:
    """Problems of a parsed result file.

    Args:
        document: the file, with results, result_columns, params, commit_hash and env_name.
        benchmarks: benchmarks.json by name.
        recorded: what has a provenance record, see ``kdbench.lint``.
    """
    columns = document["result_columns"]
    for name, row in document["results"].items():
        if not isinstance(row, list) or len(row) > len(columns):
            yield name, "its row is not a list of result_columns", True
            continue
        cells = dict(zip(columns, row, strict=False))
        benchmark = benchmarks.get(name)
        if benchmark is None:
            yield name, "not in benchmarks.json, and asv leaves it out", False
        elif cells.get("version") not in (None, benchmark.get("version")):
            yield name, f"version {cells['version']!r}, and benchmarks.json has {benchmark.get('version')!r}", False
        params = cells.get("params") or []
        if not all(isinstance(values, list) for values in params):
            yield name, "its params are not lists", True
            continue
        yield from _check_row(name, cells, list(itertools.product(*params)), benchmark or {}, document, recorded)


def _check_row(
    name: str,
    cells: Mapping[str, Any],
    combinations: list[tuple[str, ...]],
    benchmark: Mapping[str, Any],
    document: Mapping[str, Any],
    recorded: Collection[tuple[str, ...]],
) -> Iterator[Problem]:
    values = cells.get("result")
    if values is None:  # all failed
        return
    if not isinstance(values, list) or len(values) != len(combinations):
        yield name, f"{len(combinations)} results are expected, and there is {_short(values)}", True
        return
    for index, (value, combination) in enumerate(zip(values, combinations, strict=True)):
        series = f"{name}({', '.join(combination)})" if combination else name
        if value is None or (isinstance(value, float) and math.isnan(value)):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            yield series, f"the result is {_short(value)}, and null, NaN or a finite number above 0 is expected", True
            continue
        yield from ((series, problem, False) for problem in _check_samples(cells, index, benchmark))
        if benchmark.get("type") == "kernel":
            plain = tuple(str(_literal(text)) for text in combination)
            where = (str(document["commit_hash"]), str(document["env_name"]), name, *plain)
            if where not in recorded:
                yield series, "no record of a passing digest beside it", False
            if problem := _too_fast(value, plain, benchmark, str(document["params"].get("gpu", ""))):
                yield series, problem, False


def _check_samples(cells: Mapping[str, Any], index: int, benchmark: Mapping[str, Any]) -> Iterator[str]:
    if _cell(cells, "stats_number", index) is None and _cell(cells, "stats_repeat", index) is not None:
        yield "stats_number is null: the type that measured it returned no number"
    samples = _cell(cells, "samples", index)
    if samples is None and _cell(cells, "stats_repeat", index) is None:
        return  # a single value, which never had samples
    if samples is None:
        yield "its samples were not kept: run asv with --record-samples"
        return
    if not isinstance(samples, list) or not all(
        isinstance(sample, int | float) and math.isfinite(sample) for sample in samples
    ):
        yield "its samples are not all finite numbers"
        return
    share = int(benchmark.get("samples_per_process") or benchmark.get("rounds") or 1)
    if len(samples) % share:
        yield f"{len(samples)} samples do not come from whole processes of {share}"


def _too_fast(value: float, params: tuple[str, ...], benchmark: Mapping[str, Any], gpu: str) -> str | None:
    names = dict(zip(benchmark.get("param_names", []), params, strict=False))
    cost = benchmark.get("workloads", {}).get(names.get("workload", ""))
    if names.get("backend") != "cuda" or not cost:
        return None
    floor = roofline_floor(gpu, cost["bytes_moved"], cost["flops"], str(benchmark.get("timing_mode")))
    if floor is None or value >= floor:
        return None
    return f"{value * 1e6:.3f} us is faster than the {floor * 1e6:.3f} us that {gpu} needs by its datasheet"


def _cell(cells: Mapping[str, Any], column: str, index: int) -> Any:
    values = cells.get(column)
    return values[index] if isinstance(values, list) and index < len(values) else None


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
