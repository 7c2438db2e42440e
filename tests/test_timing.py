# SPDX-License-Identifier: Apache-2.0
"""The CPU clock, and the rules that every clock obeys."""

from __future__ import annotations

import gc
import time
from statistics import median
from typing import Any

import pytest

from kdbench import ceilings, cpu_clock, golden, timing, workloads
from kdbench.errors import BackendUnavailable
from kdbench.timing import Measurement, MeasuringError, Subject, measure

pytestmark = pytest.mark.usefixtures("cpu_library")


def subject_of(name: str = "b64-d7-n1-full") -> Subject:
    return Subject(workloads.get(name), "cpu")


@pytest.mark.parametrize("mode", timing.MODES)
def test_samples_are_plain_seconds_in_bounded_time(mode: str) -> None:
    subject = subject_of()
    start = time.perf_counter()
    measurement = measure(subject, mode)
    wall = time.perf_counter() - start
    assert len(measurement.samples) == timing.SAMPLES_PER_PROCESS == 20
    assert all(type(sample) is float and 1e-8 < sample < 1e-2 for sample in measurement.samples)
    assert wall < 10
    assert measurement.touched_bytes == sum(
        array.nbytes for array in [*subject.inputs.values(), *subject.call.outputs.values()]
    )
    assert measurement.empty_call_s is not None
    assert 0 < measurement.empty_call_s < median(measurement.samples) * 2


def test_a_hot_batch_is_long_against_the_clock() -> None:
    measurement = measure(subject_of(), "hot", 5)
    (calls,) = measurement.calls
    assert calls * median(measurement.samples) > 1e-3
    assert (measurement.copies, measurement.flushed) == (1, False)


def test_small_cold_copies_are_flushed_and_never_met_twice_in_a_batch() -> None:
    measurement = measure(subject_of(), "cold", 3)
    assert measurement.flushed
    assert measurement.calls[0] <= measurement.copies


def test_large_cold_copies_outgrow_the_cache() -> None:
    measurement = measure(subject_of("r7-k16-bf16"), "cold", 3)
    assert not measurement.flushed
    assert (
        measurement.cache_bytes is None or measurement.copies * measurement.touched_bytes >= 2 * measurement.cache_bytes
    )


def test_a_slower_kernel_reads_slower_by_its_own_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_of()
    launch = subject.call.launch

    def delayed() -> None:
        end = time.perf_counter_ns() + 500_000
        while time.perf_counter_ns() < end:
            pass
        launch()

    monkeypatch.setattr(subject.call, "launch", delayed)
    # The spin bounds it from below; above, only the order of magnitude is the clock's and not the machine's.
    assert 499e-6 < min(measure(subject, "hot", 5).samples) < 50e-3


def test_a_call_that_writes_nothing_while_timed_gets_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_of()
    subject.verify()
    monkeypatch.setattr(subject.call, "launch", lambda: None)
    with pytest.raises(golden.DigestMismatch):
        measure(subject, "hot", 2)


def test_a_call_beyond_all_bounds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_clock, "_warm_up", lambda launch: 3.5e9)
    with pytest.raises(MeasuringError, match=r"takes 3\.5 s"):
        measure(subject_of(), "hot", 2)


def test_the_collector_is_off_while_timed_and_on_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    subject = subject_of()
    launch = subject.call.launch
    monkeypatch.setattr(subject.call, "launch", lambda: (seen.append(gc.isenabled()), launch())[1])
    measure(subject, "hot", 1)
    assert not any(seen)
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("mode", "samples", "message"), [("warm", 5, "timing mode is 'warm'"), ("hot", 0, "0 samples")]
)
def test_bad_requests_are_one_clear_sentence(mode: str, samples: int, message: str) -> None:
    with pytest.raises(MeasuringError, match=message):
        measure(subject_of(), mode, samples)


def test_a_missing_library_is_a_missing_backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("KDTREE_NATIVE_DIR", str(tmp_path))
    with pytest.raises(BackendUnavailable, match=r"no libkdtree_cpu\.so"):
        subject_of()


def test_what_beats_the_datasheet_is_refused() -> None:
    workload = workloads.get("h128-n64-p64k-b1-ps64")
    floor = ceilings.datasheet_floor("NVIDIA H200", workload.bytes_moved, workload.flops, "hot")
    assert floor == pytest.approx(workload.flops / 989e12)
    assert 1e-3 < floor < 2e-3
    with pytest.raises(MeasuringError, match="by its datasheet"):
        timing.refuse_impossible(workload, "NVIDIA H200", "hot", floor * 0.99)
    assert timing.refuse_impossible(workload, "NVIDIA H200", "hot", floor * 1.01) is None
    note = timing.refuse_impossible(workload, "A card of 2031", "hot", 1e-9)
    assert note is not None
    assert "not known" in note


def test_bandwidth_bounds_cold_calls_only() -> None:
    workload = workloads.get("h8-n8-p64k-b1-ps64")
    cold = ceilings.datasheet_floor("NVIDIA H200", workload.bytes_moved, workload.flops, "cold")
    hot = ceilings.datasheet_floor("NVIDIA H200", workload.bytes_moved, workload.flops, "hot")
    assert cold == pytest.approx(workload.bytes_moved / 4.8e12)
    assert hot is not None
    assert cold is not None
    assert hot < cold


def test_the_stopwatch_has_a_digest() -> None:
    assert len(timing.stopwatch_digest()) == 64
    assert isinstance(measure(subject_of(), "hot", 1), Measurement)
