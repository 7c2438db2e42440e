# SPDX-License-Identifier: Apache-2.0
"""results/peers: read, linted, turned into ratios and claims, drawn, and shown in the report."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from asv_writer import planted
from peer_lines import line, lines, write

from kdbench import lint, lint_peers, peer_results, report
from kdbench.analysis import peer_plots, peers
from kdbench.bootstrap import median_interval
from kdbench.results import ResultsWarning

matplotlib.use("Agg")


def frame(records: list[dict[str, Any]]) -> Any:
    return peer_results.frame_of([peer_results.row_of(record) for record in records])


def test_a_file_becomes_one_row_a_line(tmp_path: Path) -> None:
    write(tmp_path, lines())
    loaded = peer_results.load(tmp_path)
    assert list(loaded.columns) == peer_results.COLUMNS
    assert len(loaded) == 10
    assert loaded["seconds"].tolist() == [record["seconds"] for record in lines()]
    assert math.isnan(loaded["floor_seconds"][5])
    assert str(loaded["date"].dtype).endswith("UTC]")
    assert peer_results.load(tmp_path / "nothing").empty


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ('{"schema": "kdbench/peer/1"', "skipped line 2"),
        (json.dumps(line("x", 1e-6, schema="other/1")), "schema 'other/1'"),
        (json.dumps(line("x", 1e-6, seconds=-1.0)), "seconds is -1.0"),
        (json.dumps(line("x", 1e-6, samples_s=[])), "samples_s"),
        (json.dumps({k: v for k, v in line("x", 1e-6).items() if k != "workload"}), "workload"),
        (json.dumps(line("x", 1e-6, date="some day")), "some day"),
        ("[]", "skipped line 2"),
    ],
)
def test_a_broken_line_costs_a_warning_and_no_other_line(tmp_path: Path, broken: str, words: str) -> None:
    path = write(tmp_path, lines()[:1])
    path.write_text(path.read_text() + broken + "\n" + json.dumps(lines()[1]) + "\n")
    with pytest.warns(ResultsWarning, match=re.escape(words)):
        loaded = peer_results.load(tmp_path)
    assert loaded["implementation"].tolist() == ["kdtree", "cascade"]


def test_a_ratio_is_taken_within_rounds() -> None:
    compared = peers.ratios(frame(lines()))
    assert list(compared.columns) == peers.COLUMNS
    by = {(r.implementation, r.run, r.workload, r.clock): r for r in compared.itertuples()}
    cascade = by["cascade", "run1", "h16-n64-p4k-b1-ps64", "graph slope"]
    # Rounds drift by 10 %, which both share: the interval of the ratio knows nothing of it, that of the time does.
    assert cascade.ratio == pytest.approx(1.5, rel=2e-3)
    assert cascade.ratio_high / cascade.ratio_low < 1.005
    assert cascade.ci_high / cascade.ci_low > 1.05
    assert cascade.of_floor == pytest.approx(12.1 / 45, rel=0.1)
    assert by["cascade", "run2", "h16-n64-p4k-b1-ps64", "graph slope"].ratio == pytest.approx(2.0, rel=2e-3)
    heap = by["heap", "run1", "b64-d7-k16-n1-sharp", "wall clock"]
    assert heap.ratio == pytest.approx(20, rel=2e-3)  # by ours under the same clock
    engine = by["engine", "run1", "h16-n64-p4k-b1-ps64", "graph slope"]
    assert engine.ratio == pytest.approx(0.8, rel=2e-3)
    assert engine.does_less
    assert by["kdtree", "run1", "h8-n64-p1k-b8-ps1", "graph slope"].ratio == pytest.approx(1)


def test_without_ours_in_every_round_there_is_no_ratio() -> None:
    alone = peers.ratios(frame([line("cascade", 1e-5)]))
    assert alone["ratio"].isna().all()
    fewer = {**line("kdtree", 1e-5), "samples_s": [1e-5] * 4}
    assert peers.ratios(frame([fewer, line("cascade", 1e-5)]))["ratio"].isna()[1]
    assert peers.spans(alone).empty


def test_claims_say_no_more_than_was_measured() -> None:
    newest = peers.newest_runs(frame(lines()))
    assert set(newest.loc[newest["workload"] == "h16-n64-p4k-b1-ps64", "run"]) == {"run2"}
    said = [peers.sentence(span) for span in peers.spans(peers.ratios(newest)).to_dict("records")]
    assert said == [
        "verify_attn: 1.1–2× faster than cascade (2 workloads, tree mask, graph slope)",
        "tree_build: 20× faster than heap (1 workload, logits to tree, wall clock)",
    ]
    everything = peers.spans(peers.ratios(frame(lines())))
    (engine,) = everything[everything["implementation"] == "engine"].to_dict("records")
    assert peers.sentence(engine) == (
        "verify_attn: 1.25× slower than engine, which applies no tree mask (1 workload, no mask, graph slope)"
    )
    mixed = peers.ratios(frame([line("kdtree", 1e-5), line("x", 2e-5), line("kdtree", 1e-5, workload="w"),
                                line("x", 0.5e-5, workload="w")]))  # fmt: skip
    (span,) = peers.spans(mixed).to_dict("records")
    assert (span["slower"], span["faster"]) == (1, 1)
    assert "at 0.5–2× the speed of x" in peers.sentence(span)


def test_the_bootstrap_covers_a_known_median() -> None:
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(300):
        low, high = median_interval(rng.normal(5.0, 1.0, 25).tolist())
        assert low <= high
        held += low <= 5.0 <= high
    assert 270 <= held <= 298
    assert median_interval([2.0]) == (2.0, 2.0)
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


def test_the_figure_has_a_panel_a_kernel_and_a_mark_an_implementation(tmp_path: Path) -> None:
    figure = peer_plots.peers_figure(peers.ratios(frame(lines())))
    assert [axis.get_title() for axis in figure.axes] == ["verify_attn: tree mask", "tree_build: logits to tree"]
    legend = figure.axes[0].get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    assert {"kdtree (graph slope)", "cascade (graph slope)", "engine (graph slope, no mask)", "floor"} == set(names)
    assert figure.axes[0].get_xscale() == "log"
    figure.savefig(tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 5000
    nothing = peer_plots.peers_figure(peers.ratios(frame([])))
    assert nothing.axes[0].texts[0].get_text() == "nothing was compared"


def test_a_sound_file_has_no_finding(tmp_path: Path) -> None:
    path = write(tmp_path, lines())
    assert list(lint_peers.check_file(path)) == []
    (tmp_path / "benchmarks.json").write_text('{"version": 2}')
    assert lint.lint(tmp_path) == []


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([line("x", 1e-6)], "no measurement of kdtree in the same run"),
        ([line("kdtree", 2e-5), {**line("x", 2e-5), "samples_s": [2e-5] * 3, "seconds": 2e-5}], "9 of kdtree"),
        ([line("kdtree", 2e-5, seconds=5e-5)], "is not among its samples"),
        ([line("kdtree", 2e-5, ci_low=2.2e-5)], "does not hold"),
        ([line("kdtree", 2e-6)], "faster than the chip can be"),
        ([line("kdtree", 2e-5, machine="b300")], "names machine 'b300'"),
        ([line("kdtree", 2e-5, commit=None)], "names no commit"),
        ([line("kdtree", 2e-5, scope=7)], "line 1 is no measurement of a comparison: scope is no text"),
    ],
)
def test_lint_says_what_is_wrong_with_a_line(tmp_path: Path, records: list[dict[str, Any]], words: str) -> None:
    write(tmp_path, records)
    (tmp_path / "benchmarks.json").write_text('{"version": 2}')
    found = lint.lint(tmp_path)
    assert any(words in str(finding) for finding in found), [str(finding) for finding in found]
    assert {finding.path for finding in found} == {"peers/h200.jsonl"}


def test_lint_finds_a_line_that_was_not_written_to_its_end(tmp_path: Path) -> None:
    path = write(tmp_path, lines())
    path.write_text(path.read_text()[:-40])
    problems = [problem for _, problem in lint_peers.check_file(path)]
    assert problems[0] == "its last line was not written to its end"
    assert problems[1].startswith("line 10 is no measurement")


def test_the_report_shows_the_newest_comparison(tmp_path: Path) -> None:
    planted(tmp_path / "results", tmp_path / "repo", commits=2)
    content, page = report.build(tmp_path / "results", tmp_path / "repo")
    assert content["peers"] == []
    assert "other people" not in page
    write(tmp_path / "results", [*lines(), line("<b>bold</b>", 33e-6, workload="h8-n64-p1k-b8-ps1")])
    content, page = report.build(tmp_path / "results", tmp_path / "repo")
    assert len(content["peers"]) == 8  # the second run replaces the first of its workload
    (cascade,) = [entry for entry in content["peers"] if entry["ratio"] and entry["ratio"] > 1.9 and entry["ratio"] < 3]
    assert (cascade["implementation"], cascade["workload"]) == ("cascade", "h16-n64-p4k-b1-ps64")
    json.dumps(content, allow_nan=False)
    for words in ("Beside other people", "2 ×", "&lt;b&gt;bold&lt;/b&gt;", "20× faster than heap", "wall clock"):
        assert words in page
    assert "<b>bold" not in page
