# SPDX-License-Identifier: Apache-2.0
"""Datasheet peaks and measured ceilings: what a floor is, and where its rates are read from."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from kdbench import ceilings, machine
from kdbench.ceilings import Ceilings, datasheet_floor, floor_seconds


def record(**changes: Any) -> dict[str, Any]:
    return {
        "schema": ceilings.SCHEMA,
        "machine": "box",
        "gpu": "NVIDIA H200",
        "date": "2026-01-02T03:04:05+00:00",
        "bytes_per_s": 4.0e12,
        "flops_per_s": 700e12,
        **changes,
    }


def written(root: Path, *lines: object) -> Path:
    folder = root / "box"
    folder.mkdir(parents=True)
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / ceilings.FILE).write_text(text)
    return root


def test_the_longer_of_bytes_and_flops_is_the_floor() -> None:
    rates = Ceilings(4e12, 800e12, "test")
    assert floor_seconds(rates, 4e6, 0, "cold") == 1e-6
    assert floor_seconds(rates, 4e6, 1600e6, "cold") == 2e-6
    # A hot call may find its bytes in the cache.
    assert floor_seconds(rates, 4e6, 0, "hot") == 0
    assert floor_seconds(rates, 4e6, 1600e6, "hot") == 2e-6
    assert math.isnan(floor_seconds(Ceilings(4e12, math.nan, "test"), 4e6, 1600e6, "cold"))
    assert floor_seconds(Ceilings(4e12, math.nan, "test"), 4e6, 0, "cold") == 1e-6


def test_an_unknown_gpu_has_no_datasheet() -> None:
    for gpu in (None, "", "A card of 2031"):
        assert datasheet_floor(gpu, 10**9, 10**12, "cold") is None


def test_datasheets_are_under_the_names_that_drivers_give() -> None:
    assert datasheet_floor("NVIDIA H200", 4_800_000, 0, "cold") == pytest.approx(1e-6)
    assert machine.gpu_slug("NVIDIA H200") == "h200"
    for gpu, rates in ceilings.DATASHEET.items():
        assert gpu.startswith("NVIDIA ")
        # Each card of the table has between 100 and 400 FLOPs a byte: a slip of units would not.
        assert 100 < rates.flops_per_s / rates.bytes_per_s < 400
        assert 1e12 < rates.bytes_per_s < 1e13


def test_the_newest_record_of_a_machine_counts(tmp_path: Path) -> None:
    older = record(bytes_per_s=1e12)
    root = written(tmp_path, older, "", "no json", {"schema": "kdbench/other/1"}, record(), '{"schema": "kdb')
    assert ceilings.read(root) == {"box": Ceilings(4.0e12, 700e12, "measured 2026-01-02")}


@pytest.mark.parametrize(
    "broken", [record(bytes_per_s="fast"), record(bytes_per_s=-1), record(flops_per_s=0), {"schema": ceilings.SCHEMA}]
)
def test_a_broken_record_leaves_the_one_before(tmp_path: Path, broken: dict[str, Any]) -> None:
    assert ceilings.read(written(tmp_path, record(), broken))["box"].bytes_per_s == 4.0e12


def test_a_rate_that_was_not_measured_is_nan(tmp_path: Path) -> None:
    found = ceilings.read(written(tmp_path, record(flops_per_s=None)))["box"]
    assert found.bytes_per_s == 4.0e12
    assert math.isnan(found.flops_per_s)


def test_no_directory_has_no_ceilings(tmp_path: Path) -> None:
    assert ceilings.read(tmp_path / "none") == {}
