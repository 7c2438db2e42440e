# SPDX-License-Identifier: Apache-2.0
"""Machine or code: each kind of change injected into records of two commits, and what is said of a series then."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kdbench.analysis.attribution import AMBIGUOUS, CODE, MACHINE, UNKNOWN, attribute, disturbances, explain, vouched
from kdbench.analysis.calibration_shift import moved, stability
from kdbench.analysis.covariates import COLUMNS, changed, machine_labels
from kdbench.errors import KdbenchError
from kdbench.result_records import read_records

KERNELS = {"fma": 2e-4, "copy": 1.3e-4, "l2_copy": 8e-5, "empty": 6e-7}
CPU_KERNELS = {"integer": 2.5e-4, "wide": 6e-4, "copy": 2e-3}


def record(commit: str, seed: int, backend: str = "cuda") -> dict[str, Any]:
    """One process of a quiet machine, its calibration with 0.1 % of noise."""
    rng = np.random.default_rng(seed)
    kernels = KERNELS if backend == "cuda" else CPU_KERNELS
    reading = lambda: {"seconds": {k: v * math.exp(rng.normal(0, 0.001)) for k, v in kernels.items()}, "spread": {}}  # noqa: E731
    state = {
        "sm_clock_mhz": 1980,
        "throttle_us": dict.fromkeys(("sw_power_cap", "sw_thermal_slowdown", "hw_thermal_slowdown"), 10),
    }
    gpu = {
        "uuid_sha256": "c502199e48d708c6",
        "vbios": "96.00.A5.00.1A",
        "driver": "580.159.04",
        "ecc": True,
        "mig": False,
        "persistence": True,
        "power_limit_w": 700.0,
        "max_sm_clock_mhz": 1980,
        "max_memory_clock_mhz": 3201,
        "other_processes": 0,
    }
    return {
        "schema": "kdbench/measurement/1",
        "machine_name": "h200",
        "commit": commit,
        "started": f"2026-11-30T19:14:{seed % 60:02d}",
        "benchmark": "bench_tree_build.TreeBuild.kern_hot",
        "params": {"workload": "w", "backend": backend},
        "harness": {"stopwatch_sha256": "c7ff82d0ae66"},
        "library": {"backend": backend, "build_info": {"compiler": "g++ 12.2.0", "cuda_version": "13.0.88"}},
        "timing": {"gpu_before": copy.deepcopy(state), "gpu_after": copy.deepcopy(state)},
        "calibration": {
            "backend": backend,
            "plan": 1,
            "code": {"sha256": "ab" * 32},
            "before": reading(),
            "after": {**reading(), "sm_clock_mhz": 1980.0 if backend == "cuda" else None},
        },
        "machine": {
            "cpu": "Xeon",
            "kernel": "6.18.44",
            "cpu_governor": "performance",
            "cpu_boost": "1",
            "cpu_affinity": list(range(16)),
            "container": None,
            "gpu": gpu if backend == "cuda" else None,
        },
    }


def session(commit: str, seed: int = 0, backend: str = "cuda", count: int = 5) -> list[dict[str, Any]]:
    return [record(commit, seed + at, backend) for at in range(count)]


def put(*keys: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(target: dict[str, Any]) -> None:
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = value

    return change


def shifted(records: list[dict[str, Any]], kernel: str, factor: float) -> list[dict[str, Any]]:
    for each in records:
        for when in ("before", "after"):
            each["calibration"][when]["seconds"][kernel] *= factor
    return records


def test_nothing_changed_is_nothing_said() -> None:
    for seed in range(40):
        assert changed(session("a", 1000 + 10 * seed), session("b", 5000 + 10 * seed)) == ()
    assert changed([], session("b")) == ()
    assert attribute(1.05, (), backend="cuda").cause == CODE
    assert attribute(1.05, (), backend="cuda", recorded=False).cause == UNKNOWN


@pytest.mark.parametrize(
    ("what", "change", "backend", "detail"),
    [
        ("driver", put("machine", "gpu", "driver", value="590.10"), "cuda", "driver 580.159.04 -> 590.10"),
        ("power limit", put("machine", "gpu", "power_limit_w", value=500.0), "cuda", "power limit 700 W -> 500 W"),
        ("ECC", put("machine", "gpu", "ecc", value=False), "cuda", "ECC on -> off"),
        ("MIG", put("machine", "gpu", "mig", value=True), "cuda", "MIG off -> on"),
        ("VBIOS", put("machine", "gpu", "vbios", value="97"), "cuda", "VBIOS 96.00.A5.00.1A -> 97"),
        ("GPU card", put("machine", "gpu", "uuid_sha256", value="ff"), "cuda", "GPU card c502199e48d708c6 -> ff"),
        (
            "maximum SM clock",
            put("machine", "gpu", "max_sm_clock_mhz", value=1500),
            "cuda",
            "maximum SM clock 1980 MHz -> 1500 MHz",
        ),
        ("kernel", put("machine", "kernel", value="6.19"), "", "kernel 6.18.44 -> 6.19"),
        ("governor", put("machine", "cpu_governor", value="powersave"), "", "governor performance -> powersave"),
        ("CPUs allowed", put("machine", "cpu_affinity", value=[0, 1]), "", "CPUs allowed 16 -> 2"),
        (
            "compiler",
            put("library", "build_info", "compiler", value="g++ 14"),
            "cuda",
            "compiler g++ 12.2.0 -> g++ 14",
        ),
        ("SM clock", put("calibration", "after", "sm_clock_mhz", value=1755.0), "cuda", "SM clock 1980 -> 1755 MHz"),
        (
            "other compute processes",
            put("machine", "gpu", "other_processes", value=1),
            "cuda",
            "other compute processes in 0 % -> 100 % of processes",
        ),
        (
            "thermal or hardware slowdown",
            put("timing", "gpu_after", "throttle_us", value={"hw_thermal_slowdown": 900}),
            "cuda",
            "thermal or hardware slowdown in 0 % -> 100 % of processes",
        ),
    ],
)
def test_each_covariate_is_named_and_blamed(
    what: str, change: Callable[[dict[str, Any]], None], backend: str, detail: str
) -> None:
    after = session("b", 100)
    for each in after:
        change(each)
    (label,) = changed(session("a"), after)
    assert (label.what, label.kind, label.backend, label.detail) == (what, "covariate", backend, detail)
    found = attribute(1.05, [label], backend="cuda")
    assert (found.cause, found.reason) == (MACHINE, detail)
    # What is the GPU's alone explains nothing of the CPU's series.
    assert attribute(1.05, [label], backend="cpu").cause == (MACHINE if backend == "" else CODE)


def test_a_power_cap_is_normal_and_one_marked_process_is_chance() -> None:
    after = session("b", 100, count=10)
    for each in after:
        each["timing"]["gpu_after"]["throttle_us"]["sw_power_cap"] += 10**6
    after[3]["machine"]["gpu"]["other_processes"] = 1
    assert changed(session("a", count=10), after) == ()


def test_what_was_not_recorded_has_not_changed() -> None:
    after = session("b", 100)
    for each in after:
        each["machine"]["gpu"] = None
        each["calibration"] = None
        each["timing"] = {}
        del each["harness"]
    assert changed(session("a"), after) == ()
    assert changed(after, session("a")) == ()
    assert not vouched(after, "cuda")
    assert vouched(session("a"), "cuda")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("factor", [0.9, 0.97, 1.03, 1.1])
def test_a_calibration_kernel_that_moves_is_found(kernel: str, factor: float) -> None:
    (label,) = changed(session("a"), shifted(session("b", 100), kernel, factor))
    assert (label.what, label.kind) == (f"calibration {kernel}", "calibration")
    assert label.ratio == pytest.approx(factor, rel=0.005)
    assert label.detail.startswith(f"calibration kernel {kernel} {100 * (label.ratio - 1):+.1f} %")


@pytest.mark.parametrize(("count", "highest"), [(5, 0.01), (20, 0.002)])
def test_noise_of_calibration_is_no_move(count: int, highest: float) -> None:
    rng = np.random.default_rng(count)
    trials = [[list(rng.normal(0, 0.02, count)) for _ in range(2)] for _ in range(2000)]
    assert sum(moved(old, new) is not None for old, new in trials) <= highest * len(trials)
    assert moved(*trials[0], least=10.0) is None
    assert moved([0.0] * 2, [1.0] * 2) is None  # too few to tell
    assert moved([0.0] * 3, [0.5] * 3) == 0.5


@pytest.mark.parametrize(
    ("factor", "slowdown", "roofline", "mode", "kernel", "cause"),
    [
        (1.05, 1.05, "memory", "cold", "copy", MACHINE),  # moved together
        (1.10, 1.04, "latency", "hot", "fma", MACHINE),  # a part of it depends on the clock
        (0.95, 0.95, "compute", "hot", "fma", MACHINE),  # also for the better
        (1.03, 1.15, "memory", "cold", "copy", AMBIGUOUS),  # further than calibration explains
        (1.05, 0.95, "compute", "hot", "fma", AMBIGUOUS),  # the other way
        (1.05, 1.05, "memory", "cold", "empty", AMBIGUOUS),  # does not bear on it
        (1.05, 1.05, "", "decode", "empty", MACHINE),  # the loop is bounded by anything
    ],
)
def test_moved_together_or_not(
    factor: float, slowdown: float, roofline: str, mode: str, kernel: str, cause: str
) -> None:
    labels = changed(session("a"), shifted(session("b", 100), kernel, factor))
    found = attribute(slowdown, labels, backend="cuda", roofline=roofline, mode=mode)
    assert found.cause == cause
    assert f"calibration kernel {kernel}" in found.reason


def test_a_covariate_with_a_series_that_moved_alone_is_ambiguous() -> None:
    after = session("b", 100)
    for each in after:
        each["machine"]["gpu"]["driver"] = "590.10"
    labels = changed(session("a"), after)
    alone = attribute(1.05, labels, backend="cuda", siblings=[1.0, 1.001, 0.999, 1.002, 1.0, 1.05])
    assert alone.cause == AMBIGUOUS
    assert "only 1 of 6 other series moved" in alone.reason
    assert attribute(1.05, labels, backend="cuda", siblings=[1.05, 1.04, 1.06, 1.05, 1.0, 1.05]).cause == MACHINE
    assert attribute(1.05, labels, backend="cuda", siblings=[1.0, 1.0]).cause == MACHINE  # too few to tell


def test_a_change_that_calibration_would_have_shown_is_not_the_machine_s() -> None:
    before, after = session("a"), session("b", 100)
    for each in after:
        each["machine"]["gpu"]["uuid_sha256"] = "ff"
    near, far = (explain(slowdown, before, after, backend="cuda") for slowdown in (1.05, 1.5))
    assert (near.cause, far.cause) == (MACHINE, AMBIGUOUS)
    assert "held still" in far.reason
    for each in (*before, *after):
        each["calibration"] = None
    assert explain(1.5, before, after, backend="cuda").cause == MACHINE
    assert explain(1.5, [], after, backend="cuda").cause == UNKNOWN
    assert explain(1.5, session("a"), session("b", 100), backend="cuda").cause == CODE


def test_launches_are_compared_before_anything_ran() -> None:
    """On an H200 the empty kernel takes 0.48 us in a fresh process and 0.66 us in one that has measured something."""
    after = session("b", 100)
    for each in after:
        each["calibration"]["after"]["seconds"]["empty"] *= 1.37
    assert changed(session("a"), after) == ()
    assert disturbances(after, "cuda") == ()


def test_where_a_series_memory_lies_is_no_move() -> None:
    """L2 gives each series its own rate; another share of the two among the processes is no change."""
    sides = []
    for commit, counts in (("a", (9, 3)), ("b", (3, 9))):
        quick, large = session(commit, 10, count=counts[0]), session(commit, 200, count=counts[1])
        for each in shifted(large, "l2_copy", 1.05):
            each["params"] = {"workload": "large", "backend": "cuda"}
        sides.append(quick + large)
    assert changed(*sides) == ()
    (label,) = changed(sides[0], shifted(sides[1], "l2_copy", 1.03))
    assert label.ratio == pytest.approx(1.03, rel=0.003)


def test_how_well_calibration_repeats() -> None:
    records = session("a", count=40)
    for each in records:
        each["calibration"]["after"]["seconds"]["empty"] *= 1.37
        each["params"]["workload"] = f"w{len(records) % 2}"
    rows = {row["kernel"]: row for row in stability(records)}
    assert list(rows) == sorted(KERNELS)
    for kernel, row in rows.items():
        assert (row["backend"], row["processes"]) == ("cuda", 40)
        assert row["seconds"] == pytest.approx(KERNELS[kernel], rel=1e-3)
        # The mean of two readings of 0.1 %; of empty the first one alone.
        assert row["spread"] == pytest.approx(0.001 if kernel == "empty" else 0.001 / math.sqrt(2), rel=0.4)
        assert row["after"] == pytest.approx(0.37 if kernel == "empty" else 0.0, abs=1e-3)


def test_other_machine_code_is_not_compared() -> None:
    after = shifted(session("b", 100), "fma", 1.3)
    for each in after:
        each["calibration"]["code"]["sha256"] = "cd" * 32
    (label,) = changed(session("a"), after)
    assert (label.what, label.kind) == ("calibration code", "note")
    assert attribute(1.05, [label], backend="cuda").cause == CODE


def test_a_new_stopwatch_is_a_note() -> None:
    after = session("b", 100)
    for each in after:
        each["harness"]["stopwatch_sha256"] = "0123456789abcdef"
    (label,) = changed(session("a"), after)
    assert (label.kind, label.detail) == ("note", "stopwatch c7ff82d0ae66 -> 0123456789ab")
    found = attribute(1.05, [label], backend="cuda")
    assert (found.cause, found.reason) == (CODE, label.detail)


def test_only_what_both_commits_measured_is_compared() -> None:
    """A commit that adds a workload under which clocks are lower has not changed the machine."""
    after = session("b", 100)
    heavy = session("b", 200, count=20)
    for each in heavy:
        each["params"] = {"workload": "heavy", "backend": "cuda"}
        each["calibration"]["after"]["sm_clock_mhz"] = 1400.0
    assert changed(session("a"), after + heavy) == ()


def test_labels_stand_at_the_first_commit_after_the_change() -> None:
    line = ["a", "b", "c", "d"]
    records = [each for at, commit in enumerate(line) for each in session(commit, 100 * at)]
    for each in records:
        if each["commit"] in ("c", "d"):
            each["machine"]["gpu"]["driver"] = "590.10"
    other = [
        {**each, "machine_name": "box"}
        for each in session("a", 7, "cpu") + shifted(session("d", 70, "cpu"), "integer", 1.2)
    ]
    off = [{**each, "commit": "elsewhere"} for each in session("b")]
    frame = machine_labels(records + other + off, line)
    assert list(frame.columns) == COLUMNS
    found = frame[["machine", "commit", "previous_commit", "what", "kind", "backend"]].to_numpy().tolist()
    assert found == [
        ["box", "d", "a", "calibration integer", "calibration", "cpu"],
        ["h200", "c", "b", "driver", "covariate", "cuda"],
    ]
    assert machine_labels([], line).empty


def test_a_session_tells_its_disturbances() -> None:
    quiet = session("a", count=10)
    assert disturbances(quiet, "cuda") == ()
    assert disturbances([], "cuda") == ()
    drifting = session("a", count=10)
    for each in drifting:
        each["calibration"]["after"]["seconds"]["fma"] *= 1.05
    (reason,) = disturbances(drifting, "cuda")
    assert reason.startswith("calibration kernel fma moved by +5.")
    assert reason.endswith("from before to after a measurement")
    stepped = session("a", count=10)
    shifted(stepped[5:], "copy", 0.9)
    (reason,) = disturbances(stepped, "cuda")
    assert "copy moved by -10" in reason
    assert reason.endswith("during the session")
    hot = session("a", count=10)
    for each in hot[:3]:
        each["timing"]["gpu_after"]["throttle_us"]["hw_thermal_slowdown"] += 5
    hot[9]["machine"]["gpu"]["other_processes"] = 2
    company, slowed = disturbances(hot, "cuda")
    assert company == "another process computed on the GPU beside 1 of 10 processes"
    assert slowed == "thermal or hardware slowdown in 3 of 10 processes"
    assert disturbances(hot, "cpu") == ()


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    for value in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="slowdown is"):
            attribute(value, (), backend="cuda")
    with pytest.raises(KdbenchError, match="no results directory"):
        read_records(tmp_path / "nowhere")


def test_records_are_read_whole_lines_only(tmp_path: Path) -> None:
    (tmp_path / "box").mkdir()
    one, two = record("a", 2), record("b", 1)
    for each in (one, two):
        del each["machine_name"]
    lines = [json.dumps(one), "[]", '{"schema": "kdbench/run/1"}', json.dumps(two), json.dumps(one)[:200]]
    (tmp_path / "box" / "x.jsonl").write_text("\n".join(lines))
    found = read_records(tmp_path)
    assert [each["commit"] for each in found] == ["b", "a"]  # by time
    assert found[0]["machine_name"] == "box"


def test_the_repository_s_records_are_of_one_quiet_machine() -> None:
    """What is stored was measured in few sessions of one driver: no covariate may be blamed where none changed."""
    records = read_records(Path(__file__).parents[1] / "results")
    assert len(records) > 100
    drivers = {each["machine"]["gpu"]["driver"] for each in records if each["machine"].get("gpu")}
    line = list(dict.fromkeys(each["commit"] for each in records))
    frame = machine_labels(records, line)
    assert ("driver" in set(frame["what"])) == (len(drivers) > 1)
