# SPDX-License-Identifier: Apache-2.0
"""Checks of one asv result file: values, samples, versions, provenance and roofline of every series in it."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kdbench.ceilings import datasheet_floor
from kdbench.lint_shapes import is_number, is_positive, row_cells, short

Problem = tuple[str, str, bool]  # series, what is wrong, fatal for asv publish

# Of the types that this project measures with: they keep samples, and a record of what was checked.
OWN_TYPES = ("kernel", "decode")
# asv interpolates medians in floating point, which may leave the samples' range by a rounding.
_ROUNDING = 1e-9


def check_file(
    document: Mapping[str, Any], benchmarks: Mapping[str, Any], recorded: Collection[tuple[str, ...]]
) -> Iterator[Problem]:
    """Problems of a parsed result file.

    Args:
        document: the file, of a sound shape by ``kdbench.lint_shapes.result_file``.
        benchmarks: benchmarks.json by name; {} for an entry that is broken and has been told of.
        recorded: what has a provenance record, see ``kdbench.lint``.
    """
    columns = document["result_columns"]
    for name, row in document["results"].items():
        if not isinstance(row, list) or len(row) > len(columns):
            yield name, "its row is not a list of result_columns", True
            continue
        if not row:
            yield name, "its row is empty, which says neither what was measured nor that it failed", False
            continue
        cells = dict(zip(columns, row, strict=False))
        if problem := row_cells(cells):
            yield name, problem, True
            continue
        benchmark, version = benchmarks.get(name), cells.get("version")
        if benchmark is None:
            yield name, "not in benchmarks.json, and asv leaves it out", False
        elif version is None and benchmark.get("type") in OWN_TYPES:
            yield name, "its version is null, and nobody knows what was measured", False
        elif benchmark and version not in (None, benchmark.get("version")):
            yield name, f"version {short(version)}, and benchmarks.json has {short(benchmark.get('version'))}", False
        yield from _check_row(name, cells, benchmark or {}, document, recorded)


def _check_row(
    name: str,
    cells: Mapping[str, Any],
    benchmark: Mapping[str, Any],
    document: Mapping[str, Any],
    recorded: Collection[tuple[str, ...]],
) -> Iterator[Problem]:
    params, values = cells.get("params") or [], cells.get("result")
    expected = math.prod(map(len, params))
    for column, entries in cells.items():
        listed = column == "samples" or column.startswith("stats_")
        if listed and entries is not None and len(entries) != expected:
            yield name, f"{expected} entries of {column} are expected, and there are {len(entries)}", True
            return
    if values is None:  # all failed
        return
    if not isinstance(values, list) or len(values) != expected:
        yield name, f"{expected} results are expected, and there is {short(values)}", True
        return
    for index, (value, combination) in enumerate(zip(values, itertools.product(*params), strict=True)):
        series = f"{name}({', '.join(combination)})" if combination else name
        if value is None or (isinstance(value, float) and math.isnan(value)):
            continue
        if not is_positive(value):
            yield series, f"the result is {short(value)}, and null, NaN or a finite number above 0 is expected", True
            continue
        yield from ((series, problem, False) for problem in _check_statistics(cells, index, benchmark))
        yield from ((series, problem, False) for problem in _check_samples(cells, index, benchmark))
        if benchmark.get("type") in OWN_TYPES:
            plain = tuple(str(_literal(text)) for text in combination)
            where = (document["commit_hash"], document["env_name"], name, *plain)
            if where not in recorded:
                yield series, "no record of a passing digest beside it", False
            samples = _cell(cells, "samples", index)
            fastest = min([value, *filter(is_positive, samples if isinstance(samples, list) else [])])
            if problem := _too_fast(fastest, plain, benchmark, str(document["params"].get("gpu", ""))):
                yield series, problem, False


def _check_statistics(cells: Mapping[str, Any], index: int, benchmark: Mapping[str, Any]) -> Iterator[str]:
    own = benchmark.get("type") in OWN_TYPES
    number, repeat = (_cell(cells, column, index) for column in ("stats_number", "stats_repeat"))
    if number is None and (own or repeat is not None):
        yield "stats_number is null: the type that measured it returned no number"
    elif number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
        yield f"stats_number is {short(number)}, and a whole number above 0 is expected"
    interval = [_cell(cells, column, index) for column in ("stats_ci_99_a", "stats_ci_99_b")]
    # Of a single sample asv says that its median may be anything.
    single = not own and repeat in (None, 1)
    if not single and not all(end is None or is_number(end) for end in interval):
        yield f"its interval is {interval[0]!r} to {interval[1]!r}, and finite numbers are expected"


def _check_samples(cells: Mapping[str, Any], index: int, benchmark: Mapping[str, Any]) -> Iterator[str]:
    samples = _cell(cells, "samples", index)
    if samples is None:
        # A single value of another type never had samples.
        if benchmark.get("type") in OWN_TYPES or _cell(cells, "stats_repeat", index) is not None:
            yield "its samples were not kept: run asv with --record-samples"
        return
    if not isinstance(samples, list) or not samples:
        yield f"its samples are {short(samples)}, and a list of numbers is expected"
        return
    if not all(map(is_positive, samples)):
        yield "its samples are not all finite numbers above 0"
        return
    share = benchmark.get("samples_per_process") or benchmark.get("rounds") or 1
    if len(samples) % share:
        yield f"{len(samples)} samples do not come from whole processes of {share}"
    value = _cell(cells, "result", index)
    if not min(samples) * (1 - _ROUNDING) <= value <= max(samples) * (1 + _ROUNDING):
        yield f"the result {short(value)} lies outside its samples, {short(min(samples))} to {short(max(samples))}"


def _too_fast(seconds: float, params: tuple[str, ...], benchmark: Mapping[str, Any], gpu: str) -> str | None:
    names = dict(zip(benchmark.get("param_names", []), params, strict=False))
    cost = benchmark.get("workloads", {}).get(names.get("workload", ""))
    if names.get("backend") != "cuda" or not cost or "bytes_moved" not in cost:
        return None
    floor = datasheet_floor(gpu, cost["bytes_moved"], cost["flops"], str(benchmark.get("timing_mode")))
    if floor is None or seconds >= floor:
        return None
    return f"{seconds * 1e6:.3f} us is faster than the {floor * 1e6:.3f} us that {gpu} needs by its datasheet"


def _cell(cells: Mapping[str, Any], column: str, index: int) -> Any:
    values = cells.get(column)
    return None if values is None else values[index]


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
