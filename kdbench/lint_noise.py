# SPDX-License-Identifier: Apache-2.0
"""Checks of ``results/*/noise.jsonl``: every line whole, and its noise that of its samples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kdbench.lint_lines import read_lines
from kdbench.noise_records import row_of

_ROUNDING = 1e-6
_CHECKED = ("sigma_within", "sigma_between", "s_p", "spread")


def check_file(path: Path) -> Iterator[tuple[str, str]]:
    """(series, problem) of one file; "" where no series is meant.

    Raises:
        OSError: the file cannot be read.
    """
    lines, problems = read_lines(path, lambda record: (record, row_of(record)), "measurement of noise")
    yield from (("", problem) for problem in problems)
    for _, (record, row) in lines:
        yield from ((row["series"], problem) for problem in _check_row(record, row, path))


def _check_row(record: Mapping[str, Any], row: Mapping[str, Any], path: Path) -> Iterator[str]:
    written = record.get("noise")
    if not isinstance(written, Mapping) or not all(_near(written.get(key), row[key]) for key in _CHECKED):
        yield "its noise is not that of its samples"
    elif not _near(record.get("mde"), row["mde"]):
        yield f"can see {record.get('mde')!r} is written, and its samples give {row['mde']:.6g}"
    if not 0 < row["min_effect"] < 1:
        yield f"min_effect is {row['min_effect']!r}, and a fraction between 0 and 1 is expected"
    if row["machine"] != path.parent.name:
        yield f"names machine {row['machine']!r} in a folder of another name"


def _near(written: object, found: float) -> bool:
    return isinstance(written, int | float) and math.isclose(written, found, rel_tol=_ROUNDING, abs_tol=1e-12)
