# SPDX-License-Identifier: Apache-2.0
"""kdbench calibrate: its record and its refusals anywhere, its rates on a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kdbench import calibration, ceilings
from kdbench.errors import BackendUnavailable, KdbenchError
from kdbench.timing import MeasuringError


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine that says it is an H200 whose copy and product take what the test says."""
    pool = SimpleNamespace(free_all_blocks=lambda: None)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(get_default_memory_pool=lambda: pool))
    monkeypatch.setattr(calibration, "model", lambda: "NVIDIA H200")
    monkeypatch.setattr(calibration, "_copy", lambda: {"bytes_per_s": 4.1e12})
    monkeypatch.setattr(calibration, "_product", lambda: {"burst_flops_per_s": 740e12})
    return monkeypatch


def test_a_record_is_what_ceilings_reads(gpu: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = calibration.measure()
    found["machine"] = "h200"
    assert calibration.save(found, tmp_path) == tmp_path / "h200" / ceilings.FILE
    calibration.save({**found, "bytes_per_s": 4.2e12}, tmp_path)
    lines = (tmp_path / "h200" / ceilings.FILE).read_text().splitlines()
    assert [json.loads(line)["bytes_per_s"] for line in lines] == [4.1e12, 4.2e12]
    rates = ceilings.read(tmp_path)["h200"]
    assert (rates.bytes_per_s, rates.flops_per_s) == (4.2e12, 740e12)
    assert rates.source == f"measured {found['date'][:10]}"


def test_the_product_s_rate_is_that_of_a_window() -> None:
    times = [1e-3] * 30 + [2e-3] * 60
    one = 2 * 8192**3
    assert calibration._rate(times, 0.0301) == pytest.approx(one / 1e-3)
    assert calibration._rate(times, 0.0901) == pytest.approx(one * 60 / 0.09)
    assert calibration._rate(times, 1e-6) == pytest.approx(one / 1e-3)  # slower than the window: one call


def test_one_rate_is_worth_having(gpu: pytest.MonkeyPatch) -> None:
    def fail() -> dict[str, Any]:
        raise OSError("libcublas.so.13 is missing")

    gpu.setattr(calibration, "_product", fail)
    found = calibration.measure()
    assert (found["bytes_per_s"], found["flops_per_s"]) == (4.1e12, None)
    assert found["absent"] == {"matmul": "OSError: libcublas.so.13 is missing"}


@pytest.mark.parametrize(
    ("name", "answer"), [("_copy", {"bytes_per_s": 4.9e12}), ("_product", {"burst_flops_per_s": 990e12})]
)
def test_a_rate_above_the_datasheet_is_refused(gpu: pytest.MonkeyPatch, name: str, answer: dict[str, float]) -> None:
    gpu.setattr(calibration, name, lambda: answer)
    with pytest.raises(MeasuringError, match="its datasheet has"):
        calibration.measure()
    gpu.setattr(calibration, "model", lambda: "A card of 2031")
    calibration.measure()  # nothing is known that it could break


def test_no_gpu_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "model", lambda: None)
    with pytest.raises(BackendUnavailable, match="no GPU answers"):
        calibration.measure()
    monkeypatch.setattr(calibration, "model", lambda: "NVIDIA H200")
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(BackendUnavailable, match="cupy is needed"):
        calibration.measure()


def test_a_folder_that_cannot_be_written_is_one_sentence(gpu: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KdbenchError, match="cannot write"):
        calibration.save(calibration.measure(), tmp_path / "file")


@pytest.mark.gpu
def test_a_gpu_gives_what_its_datasheet_allows() -> None:
    pytest.importorskip("cupy")
    found = calibration.measure()
    assert found["absent"] == {}
    sheet = ceilings.DATASHEET.get(found["gpu"])
    assert found["matmul"]["sustained_flops_per_s"] > 0.5 * found["flops_per_s"]
    if sheet:
        assert 0.6 * sheet.bytes_per_s < found["bytes_per_s"] < sheet.bytes_per_s
        assert 0.4 * sheet.flops_per_s < found["flops_per_s"] < sheet.flops_per_s
