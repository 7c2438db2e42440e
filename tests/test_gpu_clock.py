# SPDX-License-Identifier: Apache-2.0
"""The GPU clock: its plan anywhere, its measurements on a GPU."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import pytest

from kdbench import golden, gpu_clock, workloads
from kdbench.timing import MeasuringError, Subject, measure

NO_LIMIT = 2200


@pytest.mark.parametrize(
    ("pilot", "limit", "lengths"),
    [
        (1.6e-6, NO_LIMIT, (200, 2200)),
        (2e-6, NO_LIMIT, (200, 2200)),
        (20e-6, NO_LIMIT, (20, 220)),
        (500e-6, NO_LIMIT, (2, 10)),
        (10e-3, NO_LIMIT, (2, 10)),
        (50e-3, NO_LIMIT, (1, 2)),
        (2.0, NO_LIMIT, (1, 2)),
        (2e-6, 600, (54, 600)),
    ],
)
def test_graph_lengths(pilot: float, limit: int, lengths: tuple[int, int]) -> None:
    assert gpu_clock._graph_lengths(pilot, 20, limit) == lengths


@pytest.mark.parametrize("pilot", [1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.08])
def test_samples_stay_in_their_budget(pilot: float) -> None:
    short, long = gpu_clock._graph_lengths(pilot, 20, NO_LIMIT)
    assert 1 <= short < long <= NO_LIMIT
    # A slope needs one launch more than its shorter graph, whatever that costs.
    assert 20 * (short + long) * pilot <= max(2 * gpu_clock.BUDGET_S, 20 * 3 * pilot)


pytest_gpu = pytest.mark.gpu


@pytest.fixture
def cupy() -> Any:
    return pytest.importorskip("cupy")


def subject_of(name: str) -> Subject:
    return Subject(workloads.get(name), "cuda")


@pytest_gpu
@pytest.mark.parametrize("mode", ["hot", "cold"])
@pytest.mark.parametrize("name", ["b64-d7-k16-n1-sharp", "b64-d7-n1-full", "h16-n64-p4k-b1-ps64", "r15-k64-bf16"])
def test_a_kernel_is_timed_in_bounded_time(name: str, mode: str) -> None:
    subject = subject_of(name)
    subject.verify()
    start = time.perf_counter()
    measurement = measure(subject, mode)
    assert time.perf_counter() - start < 20
    assert len(measurement.samples) == 20
    assert all(type(sample) is float and 2e-7 < sample < 0.1 for sample in measurement.samples)
    spread = median(abs(sample - median(measurement.samples)) for sample in measurement.samples)
    assert spread < 0.1 * median(measurement.samples)
    assert measurement.empty_call_s is not None, measurement.notes
    assert 1e-7 < measurement.empty_call_s < 5e-6
    if mode == "cold":
        assert measurement.cache_bytes is not None
        filled = measurement.copies * measurement.touched_bytes >= gpu_clock._L2_FACTOR * measurement.cache_bytes
        assert filled or measurement.calls[1] <= measurement.copies  # no copy twice in one replay
        assert measurement.flushed == (measurement.copies > 1)
    subject.verify()  # the call is usable afterwards


@pytest_gpu
def test_cold_is_not_faster_than_hot_when_data_count() -> None:
    subject = subject_of("h8-n8-p64k-b1-ps64")
    hot, cold = (median(measure(subject, mode, 10).samples) for mode in ("hot", "cold"))
    assert cold > 0.9 * hot


@pytest_gpu
def test_a_slope_is_the_cost_of_one_launch(cupy: Any) -> None:
    """A kernel that waits for 20 us reads 20 us, and two of them a node read twice as much."""
    source = (
        'extern "C" __global__ void wait_ns(long long ns) { long long start, now;'
        ' asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));'
        ' do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - start < ns); }'
    )
    kernel = cupy.RawKernel(source, "wait_ns")
    stream = cupy.cuda.Stream(non_blocking=True)

    def launch() -> None:
        kernel((1,), (1,), (cupy.int64(20_000),))

    with stream:
        launch()
        one = gpu_clock.Slope(stream, [launch], 10, 60)
        two = gpu_clock.Slope(stream, [lambda: (launch(), launch())[0]], 10, 60)
    one.sample(), two.sample()
    single = median(one.sample() for _ in range(5))
    double = median(two.sample() for _ in range(5))
    assert 19e-6 < single < 25e-6
    assert double == pytest.approx(2 * single, rel=0.05)


@pytest_gpu
@pytest.mark.parametrize("mode", ["hot", "cold"])
def test_a_launch_that_does_nothing_gets_no_time(monkeypatch: pytest.MonkeyPatch, cupy: Any, mode: str) -> None:
    """The graph is captured from other work: outputs stay poisoned."""
    subject = subject_of("b64-d7-k16-n1-sharp")
    subject.verify()
    idle = cupy.zeros(32, cupy.float32)

    def work(stream: Any, launches: Any, nodes: int) -> Any:
        stream.begin_capture()
        with stream:
            for _ in range(nodes):
                idle.fill(1)
        return stream.end_capture()

    monkeypatch.setattr(gpu_clock, "capture", work)
    with pytest.raises(golden.DigestMismatch):
        measure(subject, mode, 2)


@pytest_gpu
def test_a_launch_that_fails_while_captured_leaves_the_stream_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_of("b64-d7-k16-n1-sharp")
    batch = subject.call.params.batch
    prepare = gpu_clock.pilot_seconds

    def spoil(stream: Any, call: Any) -> float:
        seconds = prepare(stream, call)
        call.params.batch = -1
        return seconds

    monkeypatch.setattr(gpu_clock, "pilot_seconds", spoil)
    with pytest.raises(Exception, match="batch"):
        measure(subject, "hot", 2)
    subject.call.params.batch = batch
    monkeypatch.undo()
    assert len(measure(subject, "hot", 2).samples) == 2


@pytest_gpu
def test_a_call_beyond_all_bounds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_clock, "pilot_seconds", lambda stream, call: 3.5)
    with pytest.raises(MeasuringError, match=r"takes 3\.5 s"):
        measure(subject_of("b64-d7-k16-n1-sharp"), "hot", 2)


@pytest_gpu
def test_state_is_recorded_around_the_samples() -> None:
    pytest.importorskip("pynvml")
    measurement = measure(subject_of("b64-d7-k16-n1-sharp"), "hot", 3)
    for state in (measurement.gpu_before, measurement.gpu_after):
        assert 100 < state["sm_clock_mhz"] < 4000
        assert isinstance(state["event_reasons"], list)


@pytest_gpu
@pytest.mark.slow
@pytest.mark.parametrize("workload", [w for w in workloads.every() if "cuda" in w.backends], ids=lambda w: w.name)
def test_every_workload_is_right_and_ends_soon(workload: workloads.Workload) -> None:
    start = time.perf_counter()
    subject = Subject(workload, "cuda")
    subject.verify()
    measure(subject, "hot", 20)
    assert time.perf_counter() - start < 30
