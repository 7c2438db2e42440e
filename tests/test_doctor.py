# SPDX-License-Identifier: Apache-2.0
"""kdbench doctor: every probe answers, on this machine and on one where everything is missing or breaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from kdbench import ceilings, doctor, machine, native
from kdbench import doctor_decode as decoding
from kdbench import doctor_hardware as hardware
from kdbench import doctor_software as software
from kdbench.doctor import Finding, Probe, Report, examine, guarded
from kdbench.errors import BackendUnavailable

STATES = {"ok", "warn", "missing", "broken"}


def test_every_probe_answers_here(tmp_path: Path) -> None:
    report = examine(tmp_path / "results")
    assert len(report.probes) >= 15
    for probe in report.probes:
        assert probe.finding.state in STATES
        assert probe.finding.found
        # What is not right comes with what to do.
        assert probe.finding.state == "ok" or probe.finding.advice
    json.dumps(report.document(), allow_nan=False)
    assert not (tmp_path / "results").exists()


def test_a_machine_with_nothing_still_gets_its_whole_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CXX", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KDTREE_NATIVE_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(software, "_version", lambda _: None)
    for name in ("cupy", "pynvml"):
        monkeypatch.setitem(sys.modules, name, None)
    report = examine(tmp_path)
    states = {probe.name: probe.finding.state for probe in report.probes}
    for name in ("cmake", "ninja", "report packages", "CUDA library", "GPU"):
        assert states[name] == "missing", name
    needs = {probe.name for probe in report.probes if probe.needed}
    assert needs == {"git", "C++ compiler", "asv", "CPU library"}
    assert {states[name] for name in needs} == {"broken"}
    assert not report.can_measure
    assert len(states) == len(examine(tmp_path).probes)


def test_a_probe_that_raises_is_a_line_of_the_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def explode(*_: Any) -> Finding:
        raise RuntimeError("driver bug")

    for module, names in ((software, ("git", "cupy")), (hardware, ("gpu", "load"))):
        for name in names:
            monkeypatch.setattr(module, name, explode)
    report = examine(tmp_path)
    broken = [probe.name for probe in report.probes if "RuntimeError: driver bug" in probe.finding.found]
    assert broken == ["git", "cupy", "GPU", "load"]
    assert guarded(explode).state == "broken"


def test_only_a_broken_need_keeps_from_measuring() -> None:
    def can(*probes: Probe) -> bool:
        return Report(probes).can_measure

    assert can(Probe("a", Finding("broken", "x")), Probe("b", Finding("ok", "x"), needed=True))
    assert not can(Probe("b", Finding("broken", "x"), needed=True))
    assert can(Probe("b", Finding("warn", "x"), needed=True))


def test_the_cpu_library_is_tried_and_not_only_found(
    cpu_library: native.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = software.cpu_library()
    assert found.state == "ok"
    assert str(cpu_library.path) in found.found
    from kdbench import reference

    right = reference.tree_build

    def wrong(*arguments: Any) -> Any:
        tree = right(*arguments)
        tree.token_ids[0, 1] += 1
        return tree

    monkeypatch.setattr(reference, "tree_build", wrong)
    assert software.cpu_library().state == "broken"


@pytest.fixture
def only_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine whose PATH has a C++ compiler and git, and whose interpreter has no library."""
    for name in ("c++", "git"):
        tool = tmp_path / name
        tool.write_text("#!/bin/sh\necho version 1\n")
        tool.chmod(0o755)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("KDTREE_NATIVE_DIR", str(tmp_path))
    monkeypatch.setattr(software, "_version", lambda name: software._ASV.get(name))
    return tmp_path


def test_no_cpu_library_is_fatal_only_without_a_compiler(only_a_compiler: Path) -> None:
    report = examine(only_a_compiler)
    library = next(probe.finding for probe in report.probes if probe.name == "CPU library")
    assert (library.state, library.advice) == ("missing", "make test installs one")
    assert report.can_measure
    (only_a_compiler / "c++").unlink()
    assert software.cpu_library().state == "broken"


@pytest.mark.parametrize("lacking", ["c++", "git", "asv"])
def test_kdbench_run_needs_git_a_compiler_and_asv(
    cpu_library: native.Library, only_a_compiler: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    monkeypatch.setenv("KDTREE_NATIVE_DIR", str(cpu_library.path.parent))
    assert examine(only_a_compiler).can_measure
    if lacking == "asv":
        monkeypatch.setattr(software, "_version", lambda _: None)
    else:
        (only_a_compiler / lacking).unlink()
    report = examine(only_a_compiler)
    broken = [probe.name for probe in report.probes if probe.needed and probe.finding.state == "broken"]
    assert broken == [{"c++": "C++ compiler"}.get(lacking, lacking)]
    assert not report.can_measure


def test_reports_are_made_without_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "_version", lambda name: None if name == "scipy" else "1")
    assert software.report_packages().state == "ok"


def test_the_cpu_has_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cpu_model", lambda: "Abacus 9")
    assert hardware.cpu().found.startswith("Abacus 9, ")


def test_no_cuda_library_is_missing_and_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> native.Library:
        raise BackendUnavailable("built without it")

    monkeypatch.setattr(native, "load", refuse)
    assert software.cuda_library().state == "missing"


def test_other_versions_of_asv_are_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "_version", lambda name: "0.6.7" if name == "asv" else "0.3.2")
    found = software.asv()
    assert found.state == "warn"
    assert found.advice == "pip install asv==0.6.6"


def test_git_says_why_it_reads_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    found = software.git()
    assert found.state == "warn"
    assert "not a git repository" in found.found
    subprocess.run(["git", "init", "-q"], check=True)
    assert software.git().state == "warn"


@pytest.mark.parametrize(("average", "state"), [(0.1, "ok"), (64.0, "warn")])
def test_a_busy_machine_is_warned_about(monkeypatch: pytest.MonkeyPatch, average: float, state: str) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (average, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert hardware.load().state == state


@pytest.mark.parametrize(("name", "state"), [("performance", "ok"), ("powersave", "warn"), (None, "ok")])
def test_the_governor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str | None, state: str) -> None:
    monkeypatch.setattr(hardware, "_CPUFREQ", tmp_path)
    if name:
        (tmp_path / "scaling_governor").write_text(f"{name}\n")
    assert hardware.governor().state == state


def fake_nvml(processes: int, count: int = 1) -> types.ModuleType:
    """As much of pynvml as the probe asks."""
    module = types.ModuleType("pynvml")
    answers: dict[str, Any] = {
        "NVMLError": RuntimeError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: count,
        "nvmlDeviceGetHandleByIndex": lambda at: at,
        "nvmlDeviceGetName": lambda _: b"NVIDIA H200",
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [None] * processes,
        "nvmlSystemGetDriverVersion": lambda: "580.1",
    }
    for name, answer in answers.items():
        setattr(module, name, answer)
    return module


@pytest.mark.parametrize(("processes", "count", "state"), [(0, 2, "ok"), (3, 1, "warn"), (0, 0, "missing")])
def test_gpus_through_nvml(monkeypatch: pytest.MonkeyPatch, processes: int, count: int, state: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(processes, count))
    found = hardware.gpu()
    assert found.state == state
    assert "580.1" in found.found
    assert found.found.count("NVIDIA H200") == count


def test_ceilings_are_asked_for_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KDBENCH_MACHINE", "box")
    monkeypatch.setattr(machine, "gpu_answers", lambda: False)
    assert hardware.floors(tmp_path).state == "ok"
    monkeypatch.setattr(machine, "gpu_answers", lambda: True)
    found = hardware.floors(tmp_path)
    assert (found.state, found.found) == ("missing", "no ceilings of box")
    assert "kdbench calibrate" in found.advice
    record = {
        "schema": ceilings.SCHEMA,
        "machine": "box",
        "date": "2026-01-02",
        "bytes_per_s": 4e12,
        "flops_per_s": 7e14,
    }
    (tmp_path / ceilings.FILE).write_text(json.dumps(record))
    assert hardware.floors(tmp_path).found == "4 TB/s, 700 TFLOP/s, measured 2026-01-02"


def test_a_results_directory_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert hardware.writable(tmp_path).state == "ok"
    assert hardware.writable(tmp_path / "a" / "b").found.endswith("(will be made)")

    def refuse(**_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(hardware.tempfile, "TemporaryFile", refuse)
    found = hardware.writable(tmp_path)
    assert (found.state, found.advice != "") == ("broken", True)
    assert "Permission denied" in found.found


def test_the_schema_is_named() -> None:
    assert doctor.Report(()).document() == {"schema": "kdbench/doctor/1", "can_measure": True, "probes": []}


def test_what_decoding_needs_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from kdbench import blas, decode_golden

    found = decoding.model()
    assert found.state == "ok"
    assert "tiny" in found.found
    monkeypatch.setattr(decode_golden, "model_digest", lambda _: "0" * 64)
    assert decoding.model().state == "broken"
    monkeypatch.setattr("kdbench.models.__file__", str(tmp_path / "__init__.py"))
    assert decoding.model().state == "missing"
    monkeypatch.setattr(decoding, "_READERS", ("safetensors_that_nobody_has",))
    assert decoding.readers().found == "no safetensors_that_nobody_has"
    monkeypatch.setattr(blas, "find", lambda _: None)
    assert decoding.gemm_library("cpu").state == decoding.gemm_library("cuda").state == "missing"
    (tmp_path / "libblas.so").write_text("not ELF")
    monkeypatch.setattr(blas, "find", lambda _: tmp_path / "libblas.so")
    assert "cannot be loaded" in decoding.gemm_library("cpu").found
    monkeypatch.setattr(blas, "find", lambda _: native.load("cpu").path)
    assert "has no cublasGemmEx" in decoding.gemm_library("cuda").found


def test_the_blas_that_is_found_is_tried() -> None:
    pytest.importorskip("scipy_openblas32")
    assert decoding.gemm_library("cpu").state == "ok"
