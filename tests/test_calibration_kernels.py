# SPDX-License-Identifier: Apache-2.0
"""Calibration kernels: compiled once and kept, the same code each time, cheap, and never in a measurement's way."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kdbench import native
from kdbench.calibration_kernels import Calibration, cpu, store

SOURCE = b"int x;"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(store.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def never() -> tuple[bytes, str]:
    raise AssertionError("kept code was compiled again")


def test_code_is_compiled_once_and_kept(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = store.keep("k.so", SOURCE, "x86_64", lambda: (b"code", "cc 1"))
    assert (first.fresh, first.kept, first.compiler) == ("first use", True, "cc 1")
    assert first.sha256 == hashlib.sha256(b"code").hexdigest()
    assert "compiled (first use)" in capsys.readouterr().err
    again = store.keep("k.so", SOURCE, "x86_64", never)
    assert (again.fresh, again.sha256, again.built, again.path) == ("", first.sha256, first.built, first.path)
    assert capsys.readouterr().err == ""
    # Another source or another chip has code of its own.
    assert store.keep("k.so", b"int y;", "x86_64", lambda: (b"other", "cc 1")).sha256 != first.sha256
    assert store.keep("k.so", SOURCE, "aarch64", lambda: (b"arm", "cc 1")).sha256 != first.sha256
    assert "path" not in first.record()


def test_another_compiler_does_not_replace_it(cache: Path) -> None:
    first = store.keep("k.so", SOURCE, "x86_64", lambda: (b"code", "cc 1"))
    assert store.keep("k.so", SOURCE, "x86_64", lambda: (b"newer", "cc 2")).record() == {**first.record(), "fresh": ""}


@pytest.mark.parametrize("what", ["k.so", "manifest.json"])
@pytest.mark.parametrize("text", [None, b"", b"{}"])
def test_damaged_code_is_made_again_and_says_so(cache: Path, what: str, text: bytes | None) -> None:
    first = store.keep("k.so", SOURCE, "x86_64", lambda: (b"code", "cc 1"))
    path = first.path.with_name(what)
    path.unlink() if text is None else path.write_bytes(text)
    again = store.keep("k.so", SOURCE, "x86_64", lambda: (b"newer", "cc 2"))
    assert again.fresh.startswith("what was kept is damaged")
    assert again.sha256 == hashlib.sha256(b"newer").hexdigest() == hashlib.sha256(again.path.read_bytes()).hexdigest()
    assert store.keep("k.so", SOURCE, "x86_64", never).fresh == ""


def test_of_processes_that_compile_at_once_all_run_the_same_code(cache: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda at: store.keep("k.so", SOURCE, "x86_64", lambda: (b"%d" % at, f"cc {at}")), range(8))
        )
    assert len({code.sha256 for code in found}) == 1
    assert {hashlib.sha256(code.path.read_bytes()).hexdigest() for code in found} == {found[0].sha256}
    assert sorted(path.suffix for path in (cache / "calibration").iterdir()) == ["", ".lock"]


def test_without_a_place_to_keep_it_code_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(store.CACHE_VARIABLE, str(tmp_path / "file"))
    code = store.keep("k.so", SOURCE, "x86_64", lambda: (b"code", "cc 1"))
    assert not code.kept
    assert "it cannot be kept" in code.fresh
    assert code.path.read_bytes() == b"code"


def test_two_processes_read_with_the_same_code(cache: Path) -> None:
    script = "import json\nfrom kdbench.calibration_kernels import Calibration\nc = Calibration('cpu')\n"
    script += "print(json.dumps(c.record(c.read(), c.read())))"
    environment = {**os.environ, store.CACHE_VARIABLE: str(cache)}
    first, second = (
        json.loads(subprocess.check_output([sys.executable, "-c", script], env=environment, text=True))
        for _ in range(2)
    )
    assert (first["code"]["fresh"], second["code"]["fresh"]) == ("first use", "")
    assert first["code"]["sha256"] == second["code"]["sha256"]
    assert (cache / "calibration").is_dir()
    for reading in (first["before"], first["after"], second["before"]):
        assert set(reading["seconds"]) == set(cpu.KERNELS)
        assert all(0 < seconds < 1 for seconds in reading["seconds"].values())


def test_a_reading_is_cheap_and_tells_what_the_kernels_do(cache: Path) -> None:
    chosen = Calibration("cpu")
    readings = [chosen.read() for _ in range(5)]
    assert chosen.absent == {}
    assert min(reading["took_s"] for reading in readings if reading) < 0.1
    kernels = cpu.CpuKernels()
    # 4 cycles a round at some GHz, and not a loop that the compiler worked out.
    assert 0.2e-9 < min(kernels.probes()["integer"]()) / 200_000 < 20e-9
    assert kernels.probes()["copy"]()
    assert bool((kernels._target == kernels._source).all())


def test_what_is_missing_has_a_reason(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu.shutil, "which", lambda name: None)
    chosen = Calibration("cpu")
    assert chosen.read() is None
    assert chosen.record(None, None) == {
        "backend": "cpu",
        "plan": 1,
        "code": None,
        "before": None,
        "after": None,
        "absent": {"all": "BuildError: no C compiler to make the calibration kernels with"},
    }


def test_one_kernel_that_fails_costs_only_itself(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = Calibration("cpu")

    def fail() -> list[float]:
        raise MemoryError("16 MiB")

    monkeypatch.setattr(cpu.CpuKernels, "_copy_times", lambda self: fail())
    reading = chosen.read()
    assert reading is not None
    assert set(reading["seconds"]) == {"integer", "wide"}
    assert chosen.absent == {"copy": "MemoryError: 16 MiB"}


def test_a_benchmark_process_records_both_readings(
    cache: Path, cpu_library: native.Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from asv_runner.discovery import get_benchmark_from_name

    from kdbench import provenance

    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv(provenance.DIRECTORY_VARIABLE, str(tmp_path))
    monkeypatch.delenv("ASV_COMMIT", raising=False)
    suites = str(Path(__file__).parents[1] / "benchmarks")
    chosen: Any = get_benchmark_from_name(suites, "bench_tree_accept.TreeAccept.kern_hot-0", extra_params={"repeat": 2})
    chosen.do_setup()
    chosen.do_run()
    (path,) = tmp_path.glob("*.jsonl")
    calibration = json.loads(path.read_text())["calibration"]
    assert calibration["code"]["fresh"] == "first use"
    assert set(calibration["before"]["seconds"]) == set(calibration["after"]["seconds"]) == set(cpu.KERNELS)


@pytest.mark.gpu
def test_a_gpu_reads_in_a_tenth_of_a_second_with_kept_code(cache: Path) -> None:
    from kdbench.calibration_kernels import cuda

    first = Calibration("cuda")
    first.read()
    second = Calibration("cuda")
    before, after = second.read(), second.read()
    assert before is not None
    assert after is not None
    assert second.absent == {}
    record = second.record(before, after)
    assert record["code"]["fresh"] == ""
    assert record["code"]["sha256"] == first.record(None, None)["code"]["sha256"]
    assert set(before["seconds"]) == set(cuda.KERNELS)
    assert after["took_s"] < 0.1
    assert 300 < after["sm_clock_mhz"] < 4000
    # A chain of 96000 multiply-adds of 4 cycles each.
    assert after["seconds"]["fma"] * after["sm_clock_mhz"] * 1e6 == pytest.approx(4 * 64 * cuda._FMA_ROUNDS, rel=0.1)
