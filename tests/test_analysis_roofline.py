# SPDX-License-Identifier: Apache-2.0
"""Floors of results, marks, refusals, and what the report and the figures say of them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from asv_writer import AsvDirectory, benchmark, processes

from kdbench import workloads
from kdbench.analysis import absorbed_over_plain, plots, readable_floors, refuse, roofline
from kdbench.ceilings import FILE, SCHEMA, Ceilings
from kdbench.report import build, roofline_chart
from kdbench.report.roofline_chart import Series
from kdbench.results import load, machine_ceilings

RATES = {"h200": Ceilings(4e12, 800e12, "measured 2026-01-02")}
A = "a" * 40


def cost(roofline: str, bytes_moved: float, flops: float, **more: int) -> dict[str, Any]:
    return {"roofline": roofline, "bytes_moved": bytes_moved, "flops": flops, **more}


WORKLOADS = {
    "wide": cost("memory", 40e6, 800e6),  # 10 us of bytes, 1 us of FLOPs
    "deep": cost("compute", 40e6, 16e9, absorbed_nodes=256),  # 10 us and 20 us
    "tiny": cost("latency", 400, 0),  # 0.1 ns
    "rows": cost("latency", 4.8e6, 0),  # 1.2 us, more than an empty kernel takes
}


def results(root: Path, times: dict[str, float], mode: str = "cold", empties: bool = True) -> Path:
    """An asv directory of one commit on "h200" with seconds by workload on cuda, and half of that on cpu."""
    name = f"s.K.kern_{mode}"
    entry = benchmark(
        name, params={"workload": list(times), "backend": ["cpu", "cuda"]}, timing_mode=mode, workloads=WORKLOADS
    )
    directory = AsvDirectory(root / "results", [entry])
    rng = np.random.default_rng(1)
    cells = [processes(rng, t * part, sd=1e-6) for t in times.values() for part in (0.5, 1)]
    path = directory.add(A, {name: cells}, machine="h200")
    machine = path.parent / "machine.json"
    machine.write_text(json.dumps({**json.loads(machine.read_text()), "gpu": "NVIDIA H200"}))
    lines = [
        {
            "schema": "kdbench/measurement/1", "commit": A, "env_name": "virtualenv-py3.11", "benchmark": name,
            "params": {"workload": workload, "backend": "cuda"}, "library": {"backend": "cuda"},
            "timing": {"empty_call_s": 0.6e-6, "empty_launch_s": 0.8e-6 + process * 1e-8},
        }
        for workload in times for process in range(3)
    ]  # fmt: skip
    if empties:
        text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
        path.with_suffix(".jsonl").write_text(text + '\n{"schema":"kdbench/measurement/1","library":{"backend":"cuda')
    return directory.root


def floors(root: Path, times: dict[str, float], **options: Any) -> dict[str, dict[str, Any]]:
    """Rooflines by workload."""
    frame = roofline(load(results(root, times, **options)), RATES)
    assert set(frame["machine"]) == {"h200"}
    return {json.loads(str(row["params"]))["workload"]: row for row in frame.to_dict("records")}  # type: ignore[misc]


def test_the_frame_knows_what_a_workload_costs(tmp_path: Path) -> None:
    frame = load(results(tmp_path, {"deep": 25e-6}))
    row = frame[frame["params"].str.contains("cuda")].iloc[0]
    assert (row["bytes_moved"], row["flops"], row["absorbed_nodes"]) == (40e6, 16e9, 256)
    assert (row["roofline"], row["timing_mode"]) == ("compute", "cold")
    assert row["empty_call"] == 0.6e-6
    assert row["empty_launch"] == pytest.approx(0.81e-6)  # the median of its processes
    on_cpu = frame[frame["params"].str.contains("cpu")].iloc[0]
    assert math.isnan(on_cpu["empty_call"])


def test_the_longer_of_bytes_and_flops_binds(tmp_path: Path) -> None:
    found = floors(tmp_path, {"wide": 12.5e-6, "deep": 25e-6})
    wide, deep = found["wide"], found["deep"]
    assert len(found) == 2  # numbers of a CPU have no floor
    assert (wide["bound"], deep["bound"]) == ("memory", "compute")
    assert (wide["floor"], deep["floor"]) == (pytest.approx(10e-6), pytest.approx(20e-6))
    assert (wide["of_floor"], deep["of_floor"]) == (pytest.approx(0.8, rel=1e-3), pytest.approx(0.8, rel=1e-3))
    assert wide["byte_rate"] == pytest.approx(40e6 / 12.5e-6, rel=1e-3)
    assert deep["flop_rate"] == pytest.approx(16e9 / 25e-6, rel=1e-3)
    assert wide["why"] == deep["why"] == wide["mark"] == ""


def test_what_no_byte_bounds_is_held_against_an_empty_launch(tmp_path: Path) -> None:
    found = floors(tmp_path, {"tiny": 2e-6, "rows": 3e-6})
    tiny, rows = found["tiny"], found["rows"]
    assert tiny["bound"] == rows["bound"] == "latency"
    assert math.isnan(tiny["of_floor"])
    assert "less than an empty launch" in tiny["why"]
    assert tiny["above_empty"] == pytest.approx(2e-6 - 0.81e-6, rel=1e-3)
    assert rows["of_floor"] == pytest.approx(0.4, rel=1e-3)


def test_an_empty_launch_that_was_not_measured_is_not_invented(tmp_path: Path) -> None:
    tiny = floors(tmp_path, {"tiny": 2e-6}, empties=False)["tiny"]
    assert tiny["bound"] == "latency"
    assert math.isnan(tiny["above_empty"])
    assert math.isnan(tiny["of_floor"])
    page = build(tmp_path / "results")[1]
    assert "no empty launch recorded" in page


@pytest.mark.parametrize(("seconds", "mark"), [(10.1e-6, ""), (9.6e-6, "burst"), (9.4e-6, "suspect")])
def test_a_little_under_the_floor_is_marked(tmp_path: Path, seconds: float, mark: str) -> None:
    assert floors(tmp_path, {"wide": seconds})["wide"]["mark"] == mark


def test_a_hot_call_may_be_served_by_the_cache(tmp_path: Path) -> None:
    wide = floors(tmp_path, {"wide": 5e-6}, mode="hot")["wide"]
    assert wide["of_floor"] == pytest.approx(2, rel=1e-3)
    assert wide["mark"] == ""
    assert "cache" in wide["why"]
    frame = load(tmp_path / "results")
    assert refuse(frame, {"h200": "NVIDIA H200"}) is frame


def test_without_ceilings_nothing_is_said_but_why(tmp_path: Path) -> None:
    frame = roofline(load(results(tmp_path, {"wide": 12e-6})), {})
    assert frame["of_floor"].isna().all()
    assert frame["why"].tolist() == ["no ceilings of h200 are known: kdbench calibrate measures them"]
    unknown = {"h200": Ceilings(4e12, math.nan, "measured")}
    deep = roofline(load(results(tmp_path / "deep", {"deep": 25e-6})), unknown).iloc[0]
    assert deep["why"] == "the rate that bounds it is not known on h200"


def test_faster_than_the_datasheet_is_no_number(tmp_path: Path) -> None:
    # 40 MB at 4.8 TB/s are 8.33 us.
    root = results(tmp_path, {"wide": 8.2e-6, "deep": 25e-6})
    frame = load(root)
    checked = refuse(frame, {"h200": "NVIDIA H200"})
    refused = checked[checked["status"] == "failed"]
    assert [json.loads(params) for params in refused["params"]] == [{"workload": "wide", "backend": "cuda"}]
    assert refused["value"].isna().all()
    assert refused["process_medians"].tolist() == refused["samples"].tolist() == [[]]
    assert re.search("8.[12].. µs is faster than the 8.333 µs", refused["reason"].iloc[0].replace("\u202f", " "))
    assert (frame["status"] == "ok").all()  # the frame that was given is left alone
    assert list(checked.columns) == list(frame.columns)
    for gpus in ({}, {"h200": "A card of 2031"}):
        assert refuse(frame, gpus) is frame
    content, page = build(root)
    wide = next(s for s in content["series"] if s["params"] == {"workload": "wide", "backend": "cuda"})
    assert (wide["status"], wide["value"], wide["roofline"]) == ("failed", None, None)
    assert "refused: " in wide["reason"]
    assert "by its datasheet" in page


def test_absorbed_attention_stops_paying_beyond_170_nodes(tmp_path: Path) -> None:
    assert absorbed_over_plain(170) < 1 < absorbed_over_plain(171)
    assert absorbed_over_plain(1024) == pytest.approx(2.43, abs=0.01)
    deep = floors(tmp_path, {"deep": 25e-6, "wide": 25e-6})
    assert deep["deep"]["plain_ratio"] == pytest.approx(absorbed_over_plain(256))
    assert math.isnan(deep["wide"]["plain_ratio"])
    assert "absorbed: 1.3 × the FLOPs of plain heads" in build(tmp_path / "results")[1]


def test_the_costs_that_asv_is_told_are_those_of_the_workloads() -> None:
    from kdbench.asv_benchmark import KernelBenchmark, KernelSuite

    class Suite(KernelSuite):
        kernel = "verify_attn"

        def kern_cold(self, workload: str, backend: str) -> Any:
            return None

    made = KernelBenchmark("bench.Suite.kern_cold", Suite().kern_cold, [Suite()])
    told = made.workloads["h16-n1024-p16k-b1-ps64"]
    assert told["absorbed_nodes"] == 1024
    assert told["flops"] == workloads.get("h16-n1024-p16k-b1-ps64").flops


def test_the_report_shows_floors_and_ceilings(tmp_path: Path) -> None:
    root = results(tmp_path, {"wide": 12.5e-6, "deep": 25e-6, "tiny": 2e-6})
    plain = build(root)
    assert '<svg class="roofline"' not in plain[1]
    record = {"schema": SCHEMA, "machine": "h200", "gpu": "NVIDIA H200", "date": "2026-01-02T03:04:05+00:00"}
    (root / "h200" / FILE).write_text(json.dumps({**record, "bytes_per_s": 4e12, "flops_per_s": 800e12}))
    assert machine_ceilings(root) == RATES
    content, page = build(root)
    by_workload = {
        s["params"]["workload"]: s["roofline"] for s in content["series"] if s["params"]["backend"] == "cuda"
    }
    assert by_workload["deep"]["percent_of_floor"] == pytest.approx(80, rel=1e-3)
    assert by_workload["deep"]["bound"] == "compute"
    assert by_workload["tiny"]["percent_of_floor"] is None
    assert by_workload["tiny"]["seconds_above_empty"] == pytest.approx(1.19e-6, rel=1e-3)
    text = page.replace("\u202f", " ")
    assert '<th scope="col" class="number">% of floor</th>' in text
    assert '80 % <span class="soft">memory</span>' in text
    assert "Measured ceilings: 4 TB/s of copy and 800 TFLOP/s of bf16 product, measured 2026-01-02" in text
    assert "1.190 µs above an empty launch" in text
    assert text.count('<circle class="point"') == 2  # tiny has no FLOPs


def test_results_of_others_have_no_column_of_floors(tmp_path: Path) -> None:
    directory = AsvDirectory(tmp_path / "results", [benchmark("time_x")])
    directory.add(A, {"time_x": [processes(np.random.default_rng(1), 1e-3)]})
    content, page = build(directory.root)
    assert content["series"][0]["roofline"] is None
    assert '<th scope="col" class="number">% of floor</th>' not in page


def test_the_chart_stays_in_its_box_and_under_its_roof() -> None:
    rates, sheet = Ceilings(4e12, 800e12, "m"), Ceilings(4.8e12, 989e12, "datasheet")
    series = [Series("a", 20.0, 40e12), Series("b", 5000.0, 790e12, True), Series("idle", 0.0, 0.0)]
    drawn = roofline_chart.draw(series, rates, sheet)
    assert drawn is not None
    assert [dot[2:] for dot in drawn.dots] == [("a", False), ("b", True)]
    corners = [tuple(map(float, pair.split(","))) for pair in (drawn.roof + " " + drawn.sheet).split()]
    for x, y in [*corners, *(dot[:2] for dot in drawn.dots)]:
        assert 0 <= x <= roofline_chart.WIDTH
        assert 0 <= y <= roofline_chart.HEIGHT
    assert drawn.dots[1][1] > corners[2][1]  # below the flat part: y grows downwards
    assert corners[4][1] < corners[1][1]  # the datasheet lies above what was measured
    assert [label for _, label in drawn.columns] == ["10", "100", "1000", "10000"]
    assert roofline_chart.draw([], rates, sheet) is None
    assert roofline_chart.draw(series, Ceilings(4e12, math.nan, "m"), None) is None


def test_tables_and_figures_for_notebooks(tmp_path: Path) -> None:
    found = roofline(load(results(tmp_path, {"wide": 9.6e-6, "deep": 25e-6, "tiny": 2e-6})), RATES)
    table = readable_floors(found)
    assert table["of floor"].tolist() == ["104.2%", "80.0%", "n/a"]
    assert table["why"].iloc[0] == "burst"
    figure = plots.roofline_figure(found, RATES, "h200")
    (axis,) = figure.axes
    legend = axis.get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["measured 2026-01-02 ceiling", "compute", "memory", "above the ceiling"]
    for empty, machine in ((found, "elsewhere"), (found.iloc[:0], "h200"), (pd.DataFrame(columns=found.columns), "")):
        assert plots.roofline_figure(empty, RATES, machine).axes[0].texts
    plt.close("all")
