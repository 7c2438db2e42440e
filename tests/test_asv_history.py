# SPDX-License-Identifier: Apache-2.0
"""asv over a history with a build failure, a slow commit and a throughput drop: recorded, published, flagged."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from asv_clone import SERIES, THROUGHPUT, Clone, history, kdbench_run

from kdbench import report
from kdbench.lint import lint

pytestmark = pytest.mark.slow

ROUNDS = 3
BENCH = "^(" + "|".join(re.escape(name) for name in (SERIES, THROUGHPUT)) + ")$"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return history(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def measured(clone: Clone) -> Clone:
    """The whole history measured by asv itself, from a clone where nothing was set up by hand."""
    assert not list(clone.home.iterdir())
    commits = clone.folder / "commits"
    commits.write_text("\n".join(clone.commits.values()) + "\n")
    output = clone.asv(
        *("run", f"HASHFILE:{commits}", "-E", "overlay", "-b", BENCH, "-a", f"rounds={ROUNDS}", "--record-samples"),
        code=2,  # one commit does not build
    )
    commits.unlink()
    assert f"Commit {clone.commits['broken'][:8]} does not build" in output
    return clone


@pytest.fixture(scope="module")
def published(measured: Clone) -> Path:
    measured.asv("publish")
    return measured.folder / ".asv" / "html"


def test_every_commit_has_its_samples(measured: Clone) -> None:
    for title in measured.commits:
        if title == "broken":
            continue
        row = measured.row(title, SERIES)
        assert 1e-8 < row["result"] < 1e-2
        assert len(row["samples"]) == ROUNDS * 20
        assert row["stats_number"] == 1
    assert measured.row("nine", THROUGHPUT)["result"] == 75.0


def test_what_was_not_asked_for_is_not_failed(measured: Clone) -> None:
    document = measured.result("nine")
    values = document["results"]["bench_tree_accept.TreeAccept.kern_hot"][0]
    assert sum(not math.isnan(value) for value in values) == 1
    assert None not in values


def test_each_commit_was_measured_with_its_own_library(measured: Clone) -> None:
    for title, commit in measured.commits.items():
        records = measured.measurements(title)
        assert len(records) == (0 if title == "broken" else ROUNDS)
        for record in records:
            assert record["library"]["build_info"]["git_commit"] == commit
            assert "/.asv/env/" in record["library"]["path"]
    digests = {measured.measurements(title)[0]["library"]["sha256"] for title in ("mended", "slow")}
    assert len(digests) == 2


def test_a_commit_that_does_not_build_is_null_with_its_log_kept(measured: Clone) -> None:
    document = measured.result("broken")
    assert "<build>" in document["durations"]
    assert all(row[0] is None for row in document["results"].values())
    (failure,) = [line for line in measured.lines("failures.jsonl") if line["kind"] == "build"]
    assert failure["commit"] == measured.commits["broken"]
    assert "this does not compile" in failure["output_tail"]
    assert "this does not compile" in (measured.folder / failure["log"]).read_text()


def test_results_are_sound(measured: Clone) -> None:
    findings = lint(measured.folder / "results", repo=measured.folder, branches=["main"])
    assert findings == []


def test_nothing_but_results_and_caches_is_left(measured: Clone) -> None:
    assert measured.git("status", "--short") == "?? results/"
    machine_file = json.loads((measured.home / ".asv-machine.json").read_text())
    assert machine_file["box"]["machine"] == "box"


def _regressions(published: Path, series: str) -> list[Any]:
    document = json.loads((published / "regressions.json").read_text())
    return [row for row in document["regressions"] if row[0] == series]


def _revision(published: Path, commit: str) -> int:
    index = json.loads((published / "index.json").read_text())
    return next(int(revision) for revision, sha in index["revision_to_hash"].items() if sha == commit)


def test_a_slow_commit_is_flagged_exactly(published: Path, measured: Clone) -> None:
    (row,) = _regressions(published, SERIES)
    _, _, _, _, last, best, jumps = row
    assert last > 4 * best
    # A busy machine may add small steps of its own, but the planted one is there, whole, and nowhere else.
    large = [jump[:2] for jump in jumps if jump[3] > 4 * jump[2]]
    assert large == [[None, _revision(published, measured.commits["slow"])]]


def test_a_drop_is_flagged_where_more_is_better(published: Path, measured: Clone) -> None:
    (row,) = _regressions(published, THROUGHPUT)
    _, _, _, _, last, best, jumps = row
    assert (last, best) == pytest.approx((75, 100))
    assert [jump[:2] for jump in jumps] == [[None, _revision(published, measured.commits["seven"])]]
    assert jumps[0][2:] == pytest.approx([100, 75])


def test_the_feed_names_both_commits(published: Path, measured: Clone) -> None:
    feed = (published / "regressions.xml").read_text()
    assert f"-25.00% {THROUGHPUT}" in feed
    assert measured.commits["slow"][:8] in feed
    assert measured.commits["seven"][:8] in feed


def test_the_report_names_exactly_these_commits(measured: Clone) -> None:
    out = measured.folder.parent / "report"
    changes = report.write(measured.folder / "results", out, repo=measured.folder)["changes"]
    slow = [c for c in changes if c["name"] in SERIES and c["change_percent"] and c["change_percent"] > 300]
    assert [(c["commit"], c["verdict"]) for c in slow] == [(measured.commits["slow"], "slower")]
    drops = [c for c in changes if c["name"] == THROUGHPUT and c["verdict"] != "missing"]
    assert [(c["commit"], c["verdict"], c["change_percent"]) for c in drops] == [
        (measured.commits["seven"], "slower", -25.0)
    ]
    assert measured.commits["slow"][:10] in (out / "index.html").read_text()


def test_infinity_is_refused_before_publish_hangs(measured: Clone, published: Path) -> None:
    name = f"results/box/{measured.commits['eight'][:8]}-overlay-py"
    (path,) = [path for path in measured.folder.glob("results/box/*.json") if name in str(path)]
    text = path.read_text()
    try:
        path.write_text(text.replace("[75.0]", "[Infinity]", 1))
        assert path.read_text() != text
        output = measured.asv("publish", code=1)
    finally:
        path.write_text(text)
    assert "a finite number above 0 is expected" in output
    assert THROUGHPUT in output


def test_compare_continuous_and_find_work(measured: Clone) -> None:
    before, after = measured.commits["mended"], measured.commits["slow"]
    assert "TreeAccept" in measured.asv("compare", before, after)
    pattern = f"^{re.escape(SERIES)}$"
    output = measured.asv("continuous", "-E", "overlay", "-b", pattern, "-a", "rounds=2", before, after, code=1)
    assert "PERFORMANCE DECREASED" in output
    found = measured.asv("find", "-E", "overlay", f"{before}~1..{measured.commits['seven']}", pattern)
    assert f"Greatest regression found: {after[:8]}" in found


def test_a_second_run_measures_nothing_again(measured: Clone) -> None:
    before = {path: path.read_bytes() for path in measured.folder.glob("results/box/*-overlay-*")}
    options = {"commits": 2, "bench": BENCH, "rounds": ROUNDS, "machine_name": "box"}
    measured.run(*kdbench_run(**options))
    assert {path: path.read_bytes() for path in measured.folder.glob("results/box/*-overlay-*")} == before
    (run,) = measured.lines("runs.jsonl")
    assert run["exit_code"] == 0
    assert run["commits"] == [measured.commits["nine"], measured.commits["eight"]]
