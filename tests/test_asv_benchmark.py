# SPDX-License-Identifier: Apache-2.0
"""The benchmark type as asv_runner sees it: private API, so that each member it relies on is pinned here."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from asv_runner.benchmarks import benchmark_types
from asv_runner.discovery import get_benchmark_from_name, list_benchmarks

from kdbench import asv_benchmark, decode_workloads, native, provenance, workloads
from kdbench.asv_benchmark import KernelBenchmark

SUITES = str(Path(__file__).parents[1] / "benchmarks")
NAMES = [
    f"bench_{kernel}.{name}.kern_{mode}"
    for kernel, name in [
        ("draft_topk", "DraftTopk"),
        ("kv_compact", "KvCompact"),
        ("merge_attn_states", "MergeAttnStates"),
        ("tree_accept", "TreeAccept"),
        ("tree_build", "TreeBuild"),
        ("verify_attn", "VerifyAttn"),
        ("verify_mla", "VerifyMla"),
    ]
    for mode in ("cold", "hot")
]
VARIABLES = ("OMP_WAIT_POLICY", provenance.DIRECTORY_VARIABLE, "ASV_COMMIT", "ASV_ENV_NAME")


@pytest.fixture(autouse=True)
def _leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))


@pytest.fixture
def metadata() -> dict[str, Any]:
    """What asv discovers, by name."""
    text = io.StringIO()
    list_benchmarks(SUITES, text)
    return {entry["name"]: entry for entry in json.loads(text.getvalue())}


def index_of(kernel: str, workload: str, backend: str) -> int:
    return workloads.names(kernel).index(workload) * len(native.BACKENDS) + native.BACKENDS.index(backend)


def benchmark(workload: str = "b64-d7-n1-full", backend: str = "cpu", extra: dict[str, Any] | None = None) -> Any:
    name = f"bench_tree_accept.TreeAccept.kern_hot-{index_of('tree_accept', workload, backend)}"
    return get_benchmark_from_name(SUITES, name, extra_params=extra)


def test_discovery_finds_exactly_the_suites(metadata: dict[str, Any]) -> None:
    assert sorted(metadata) == sorted([*NAMES, *decode_workloads.SERIES.values()])


def test_metadata_tell_direction_unit_and_cost(metadata: dict[str, Any]) -> None:
    for name in NAMES:
        entry = metadata[name]
        assert entry["type"] == "kernel"
        assert entry["unit"] == "seconds"
        assert entry["version"] == "1"  # explicit: a hash of the source would orphan history
        assert entry["direction"] == "lower"
        assert (entry["rounds"], entry["samples_per_process"], entry["min_effect"]) == (5, 20, 0.02)
        assert entry["timing_mode"] == name.rpartition("_")[2]
        assert entry["param_names"] == ["workload", "backend"]
        assert entry["params"] == [[repr(w) for w in workloads.names(entry["kernel"])], ["'cpu'", "'cuda'"]]
        for workload, cost in entry["workloads"].items():
            assert cost["bytes_moved"] == workloads.get(workload).bytes_moved
            assert cost["seed"] == workloads.get(workload).seed


def test_names_do_not_depend_on_the_machine(metadata: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDTREE_NATIVE_DIR", "/nowhere")
    text = io.StringIO()
    list_benchmarks(SUITES, text)
    assert {entry["name"]: entry for entry in json.loads(text.getvalue())} == metadata


def test_registration_is_first_and_once() -> None:
    asv_benchmark.register()
    asv_benchmark.register()
    assert benchmark_types[0] is KernelBenchmark
    assert benchmark_types.count(KernelBenchmark) == 1
    assert os.environ["OMP_WAIT_POLICY"] == "passive"


def test_setup_verifies_and_run_returns_plain_samples(cpu_library: native.Library) -> None:
    chosen = benchmark()
    assert chosen.do_setup() is False
    result = chosen.do_run()
    assert set(result) == {"samples", "number"}
    assert result["number"] == 1
    assert len(result["samples"]) == 20
    assert all(type(sample) is float for sample in json.loads(json.dumps(result))["samples"])


def test_quick_and_repeat_reach_run(cpu_library: native.Library) -> None:
    for extra, count in [({"repeat": 7}, 7), ({"repeat": 1, "number": 1, "warmup_time": 0, "rounds": 1}, 1)]:
        chosen = benchmark(extra=extra)
        chosen.do_setup()
        assert len(chosen.do_run()["samples"]) == count


def test_a_wrong_kernel_fails_in_setup(cpu_library: native.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    from kdbench import golden

    spoilt = {
        name: {**entry, "outputs": {**entry["outputs"], "sha256": "0" * 64}} for name, entry in golden.load().items()
    }
    monkeypatch.setattr(golden, "load", lambda: spoilt)
    with pytest.raises(golden.DigestMismatch, match="b64-d7-n1-full"):
        benchmark().do_setup()


def test_a_missing_backend_is_skipped_with_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KDTREE_NATIVE_DIR", str(tmp_path))
    monkeypatch.setenv(provenance.DIRECTORY_VARIABLE, str(tmp_path / "box"))
    assert benchmark().do_setup() is True
    (line,) = (tmp_path / "box" / "unknown-unknown.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert record["schema"] == provenance.SKIP
    assert record["params"] == {"workload": "b64-d7-n1-full", "backend": "cpu"}
    assert "no libkdtree_cpu.so" in record["reason"]


def test_a_workload_of_another_backend_is_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    name = f"bench_verify_attn.VerifyAttn.kern_cold-{index_of('verify_attn', 'h128-n64-p64k-b1-ps64', 'cpu')}"
    assert get_benchmark_from_name(SUITES, name).do_setup() is True
    assert "h128-n64-p64k-b1-ps64 is not measured on cpu" in capsys.readouterr().out


def test_one_process_ends_soon(cpu_library: native.Library, tmp_path: Path) -> None:
    """What asv starts for each combination, whole: import, inputs, check, twenty samples."""
    import time

    from asv.runner import BENCHMARK_RUN_SCRIPT

    answer = tmp_path / "answer.json"
    name = f"bench_tree_build.TreeBuild.kern_hot-{index_of('tree_build', 'b1024-d15-k64-n1-sharp', 'cpu')}"
    arguments = [BENCHMARK_RUN_SCRIPT, "run", SUITES, name, "{}", "None", str(answer)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    assert len(json.loads(answer.read_text())["samples"]) == 20
    assert time.perf_counter() - start < 10  # under one second on an idle machine
