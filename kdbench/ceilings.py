# SPDX-License-Identifier: Apache-2.0
"""What a GPU can give: by its datasheet, which no result may beat, and as measured, which floors are made of.

A floor is the time that a workload's bytes and FLOPs need at these rates. The datasheet's is a law: a shorter time is
a measuring error. The measured one (``kdbench calibrate``) is what good code reaches, and a short burst on a cool chip
may pass it by a few per cent.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = "kdbench/ceilings/1"
# Beside a machine's results; its lines are appended, and the last one counts.
FILE = "ceilings.jsonl"


@dataclass(frozen=True)
class Ceilings:
    """Rates of one GPU.

    Attributes:
        bytes_per_s: of device memory, reads and writes together.
        flops_per_s: of dense bf16 products with f32 sums; NaN when it is not known.
        source: "datasheet", or when they were measured.
    """

    bytes_per_s: float
    flops_per_s: float
    source: str


def _datasheet(terabytes: float, teraflops: float) -> Ceilings:
    return Ceilings(terabytes * 1e12, teraflops * 1e12, "datasheet")


# Memory bandwidth and dense bf16 rate by the vendor's datasheets, under the names that the driver gives. Cards for
# desktops are left out: they may run above the clock that their datasheet counts with.
DATASHEET: Mapping[str, Ceilings] = {
    "NVIDIA A100-SXM4-40GB": _datasheet(1.555, 312),
    "NVIDIA A100-SXM4-80GB": _datasheet(2.039, 312),
    "NVIDIA A100 80GB PCIe": _datasheet(1.935, 312),
    "NVIDIA H100 80GB HBM3": _datasheet(3.35, 989),
    "NVIDIA H100 PCIe": _datasheet(2.0, 756),
    "NVIDIA H100 NVL": _datasheet(3.9, 835),
    "NVIDIA H200": _datasheet(4.8, 989),
    "NVIDIA H200 NVL": _datasheet(4.8, 835),
    "NVIDIA B200": _datasheet(8.0, 2250),
}


def datasheet_floor(gpu: str | None, bytes_moved: int, flops: int, mode: str) -> float | None:
    """Seconds that no correct call can beat by the datasheet of ``gpu``; None for a GPU that is not in the table."""
    ceilings = DATASHEET.get(gpu or "")
    return floor_seconds(ceilings, bytes_moved, flops, mode) if ceilings else None


def floor_seconds(ceilings: Ceilings, bytes_moved: float, flops: float, mode: str) -> float:
    """The longer of the times that the bytes and the FLOPs take; NaN when a rate that counts is not known.

    A hot call may find its inputs in the L2 cache, so that memory bandwidth bounds cold calls only.
    """
    by_flops = flops / ceilings.flops_per_s if flops else 0.0
    return max(by_flops, bytes_moved / ceilings.bytes_per_s) if mode == "cold" else by_flops


def read(results_dir: str | os.PathLike[str]) -> dict[str, Ceilings]:
    """The newest measured ceilings of each machine that has some below ``results_dir``, by the machine's name.

    A line that is no such record is passed over: the file of an interrupted run ends in half a line.
    """
    found: dict[str, Ceilings] = {}
    for path in sorted(Path(results_dir).rglob(FILE)):
        try:
            lines = path.read_text("utf-8", "replace").splitlines()
        except OSError:
            continue
        for line in lines:
            try:
                record = json.loads(line)
                if record["schema"] == SCHEMA:
                    found[str(record["machine"])] = _from_record(record)
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
    return found


def _from_record(record: Mapping[str, Any]) -> Ceilings:
    rates = [math.nan if record[key] is None else float(record[key]) for key in ("bytes_per_s", "flops_per_s")]
    if not all(rate > 0 or math.isnan(rate) for rate in rates):
        raise ValueError("a rate is not above 0")
    return Ceilings(rates[0], rates[1], f"measured {str(record['date'])[:10]}")
