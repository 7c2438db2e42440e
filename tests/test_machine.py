# SPDX-License-Identifier: Apache-2.0
"""Identity is short, stable and textual; covariates never fail; records are strict JSON lines."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kdbench import ceilings, gpu_probe, machine, provenance, workloads
from kdbench.timing import Subject, measure


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "intel-xeon-platinum-8481c"),
        ("AMD EPYC 7763 64-Core Processor", "amd-epyc-7763"),
        ("Neoverse-N1", "neoverse-n1"),
        ("", "unknown"),
    ],
)
def test_cpu_slugs(name: str, slug: str) -> None:
    assert machine.slug(name) == slug


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
    ],
)
def test_gpu_slugs(name: str, slug: str) -> None:
    assert machine.gpu_slug(name) == slug


def test_identity_is_strings_and_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KDBENCH_MACHINE", raising=False)
    first, second = machine.identity(), machine.identity()
    assert first == second
    assert list(first) == ["machine", "os", "arch", "cpu", "num_cpu", "ram", "gpu"]
    assert all(isinstance(value, str) for value in first.values())
    assert os.uname().release not in first.values()
    monkeypatch.setenv("KDBENCH_MACHINE", "box-7")
    assert machine.identity() == {**first, "machine": "box-7"}


def test_a_gpu_names_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KDBENCH_MACHINE", raising=False)
    monkeypatch.setattr(gpu_probe, "model", lambda: "NVIDIA H200")
    assert machine.identity()["machine"] == "h200"
    assert machine.identity()["gpu"] == "NVIDIA H200"
    assert machine.gpu_answers()


@pytest.mark.parametrize(("pages", "text"), [(6_100_000, "24GB"), (6_099_000, "24GB"), (262_144, "1GB")])
def test_ram_is_rounded(monkeypatch: pytest.MonkeyPatch, pages: int, text: str) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": pages}.__getitem__)
    assert machine.identity()["ram"] == text


def test_a_probe_that_fails_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise OSError("gone")

    monkeypatch.setattr(machine, "cpu_model", broken)
    found = machine.covariates()
    assert found["cpu"] is None
    assert found["absent"]["cpu"] == "OSError: gone"
    assert found["python"].startswith("3.")
    assert found["load_average"]


class FakeNvml:
    """The few calls of NVML that the probe makes, on a card that lacks some."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU, NVML_SUCCESS = 1, 2, 0, 0
    NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP = 10
    NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN = 11
    NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN = 12
    NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN = 13

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA H200"

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:
        return {1: 1980, 2: 3201}[clock]

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return 41

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        raise RuntimeError("Not Supported")

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return 0x4 | 0x40

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> list[Any]:
        return [SimpleNamespace(nvmlReturn=field == 13, value=SimpleNamespace(ullVal=field * 1000)) for field in fields]


def test_gpu_state_reads_what_the_card_has(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = (gpu_probe.model, gpu_probe._nvml, gpu_probe._handle)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())  # type: ignore[arg-type]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for cache in caches:
        cache.cache_clear()
    try:
        assert gpu_probe.model() == "NVIDIA H200"
        state = machine.gpu_state()
    finally:
        for cache in caches:
            cache.cache_clear()
    assert state["sm_clock_mhz"] == 1980
    assert state["event_reasons"] == ["sw_power_cap", "hw_thermal_slowdown"]
    assert state["power_w"] is None
    assert state["power_w_absent"] == "RuntimeError: Not Supported"
    assert state["throttle_us"] == {"sw_power_cap": 10, "sw_thermal_slowdown": 11, "hw_thermal_slowdown": 12}


def test_lines_are_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "records.jsonl"
    provenance.append(path, {"a": math.nan, "b": [math.inf, np.float32(0.5)], "c": {"d": (1, None)}, "e": Path("x")})
    provenance.append(path, {"text": "one\ntwo"})
    lines = path.read_text().splitlines()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert [json.loads(line, parse_constant=refuse) for line in lines] == [
        {"a": None, "b": [None, 0.5], "c": {"d": [1, None]}, "e": "x"},
        {"text": "one\ntwo"},
    ]


def test_lines_of_many_writers_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"

    def write(writer: int) -> None:
        for _ in range(50):
            provenance.append(path, {"writer": writer, "filler": "x" * 5000})

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writers = [json.loads(line)["writer"] for line in path.read_text().splitlines()]
    assert sorted(writers) == [0] * 50 + [1] * 50 + [2] * 50 + [3] * 50


def test_a_record_of_a_gpu_has_its_floors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    workload = workloads.get("h8-n8-p64k-b1-ps64")  # memory-bound: 75.6 MB
    subject: Any = SimpleNamespace(backend="cuda", workload=workload)
    measured: Any = SimpleNamespace(mode="cold", samples=(30e-6, 40e-6, 90e-6))
    monkeypatch.setattr(gpu_probe, "model", lambda: "NVIDIA H200")
    monkeypatch.setenv(provenance.DIRECTORY_VARIABLE, str(tmp_path))
    found = provenance._roofline(subject, measured)
    assert found is not None
    assert found["datasheet_floor_s"] == pytest.approx(workload.bytes_moved / 4.8e12)
    assert (found["floor_s"], found["of_floor"], found["ceilings"]) == (None, None, None)
    record = {
        "schema": ceilings.SCHEMA,
        "machine": "h200",
        "date": "2026-01-02",
        "bytes_per_s": 4e12,
        "flops_per_s": 7e14,
    }
    (tmp_path / ceilings.FILE).write_text(json.dumps(record))
    found = provenance._roofline(subject, measured)
    assert found is not None
    assert found["of_floor"] == pytest.approx(workload.bytes_moved / 4e12 / 40e-6)
    assert found["ceilings"] == "measured 2026-01-02"
    subject.backend = "cpu"
    assert provenance._roofline(subject, measured) is None


@pytest.mark.usefixtures("cpu_library")
def test_a_measurement_is_recorded_only_when_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    subject = Subject(workloads.get("b64-d7-n1-full"), "cpu")
    measurement = measure(subject, "hot", 2)
    params = {"workload": "b64-d7-n1-full", "backend": "cpu"}
    monkeypatch.delenv(provenance.DIRECTORY_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    provenance.record_measurement(subject, "suite.kern_hot", "1", params, measurement)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv(provenance.DIRECTORY_VARIABLE, str(tmp_path / "box"))
    monkeypatch.setenv("ASV_COMMIT", "0123456789abcdef")
    monkeypatch.setenv("ASV_ENV_NAME", "overlay-py3.11")
    provenance.record_measurement(subject, "suite.kern_hot", "1", params, measurement)
    (line,) = (tmp_path / "box" / "01234567-overlay-py3.11.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert record["schema"] == provenance.MEASUREMENT
    assert record["params"] == params
    assert record["timing"]["samples_s"] == list(measurement.samples)
    assert record["workload"]["seed"] == 2003
    assert record["library"]["sha256"] == subject.library.digest
    assert record["library"]["build_info"]["compiler"]
    assert len(record["harness"]["stopwatch_sha256"]) == 64
