# SPDX-License-Identifier: Apache-2.0
"""kdbench.results against directories that asv's own classes wrote, and against files that nobody should write."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from asv.results import Results
from asv_writer import AsvDirectory, benchmark, git, git_commit, git_repository, processes

from kdbench.errors import KdbenchError
from kdbench.result_values import combinations, plain_text, value_of
from kdbench.results import COLUMNS, ResultsWarning, load, machine_facts, process_medians

A, B, C = (letter * 40 for letter in "abc")


@pytest.fixture
def directory(tmp_path: Path) -> AsvDirectory:
    return AsvDirectory(
        tmp_path / "results",
        [
            benchmark("suite.Kern.kern_hot", params={"workload": ["small", "large"], "budget": [64, 1024]}),
            benchmark("suite.track_tok_s", unit="tok/s", direction="higher", rounds=1, min_effect=0.05),
        ],
    )


def only(frame: pd.DataFrame, **wanted: Any) -> pd.Series[Any]:
    """The one row with these values."""
    for key, value in wanted.items():
        frame = frame[frame[key] == value]
    assert len(frame) == 1
    return frame.iloc[0]


def test_every_cell_is_a_row_with_its_meaning(directory: AsvDirectory) -> None:
    rng = np.random.default_rng(1)
    first = processes(rng, 10e-6)
    directory.add(
        A, {"suite.Kern.kern_hot": [first, None, math.nan, processes(rng, 2e-3)], "suite.track_tok_s": [900.0]}
    )
    frame = load(directory.root)
    assert list(frame.columns) == COLUMNS
    assert len(frame) == 5
    ok = only(frame, params='{"budget": 64, "workload": "small"}')
    assert ok["status"] == "ok"
    assert ok["reason"] == ""
    assert ok["value"] == pytest.approx(np.median(np.concatenate(first)))
    assert ok["ci_low"] < ok["value"] < ok["ci_high"]
    assert ok["samples"] == [x for process in first for x in process]
    assert ok["process_medians"] == pytest.approx([np.median(process) for process in first])
    assert (ok["rounds"], ok["unit"], ok["direction"], ok["version"]) == (5, "seconds", "lower", "1")
    assert (ok["machine"], ok["env"], ok["commit"]) == ("box", "virtualenv-py3.11", A)
    assert ok["date"] == pd.Timestamp(1_750_000_000, unit="s", tz="UTC")
    failed = only(frame, params='{"budget": 1024, "workload": "small"}')
    assert failed["status"] == "failed"
    assert math.isnan(failed["value"])
    assert failed["process_medians"] == []
    skipped = only(frame, params='{"budget": 64, "workload": "large"}')
    assert skipped["status"] == "skipped"
    rate = only(frame, name="suite.track_tok_s")
    assert (rate["unit"], rate["direction"], rate["params"], rate["min_effect"]) == ("tok/s", "higher", "{}", 0.05)
    assert rate["value"] == 900.0
    assert math.isnan(rate["ci_low"])
    assert math.isnan(ok["min_effect"])


def test_machines_and_environments_stay_apart(directory: AsvDirectory) -> None:
    for machine, env, value in (("box", "venv", 1.0), ("box", "overlay", 2.0), ("h200", "venv", 3.0)):
        directory.add(A, {"suite.track_tok_s": [value]}, machine=machine, env=env)
    frame = load(directory.root)
    assert {(row.machine, row.env): row.value for row in frame.itertuples()} == {
        ("box", "overlay"): 2.0,
        ("box", "venv"): 1.0,
        ("h200", "venv"): 3.0,
    }
    facts = machine_facts(directory.root)
    assert set(facts) == {"box", "h200"}
    assert facts["h200"]["cpu"] == "cpu of h200"


def test_without_a_repository_commits_go_by_date(directory: AsvDirectory) -> None:
    for commit, day in ((A, 5), (B, 1), (C, 3)):
        directory.add(commit, {"suite.track_tok_s": [1.0]}, day=day)
    frame = load(directory.root)
    assert list(frame.sort_values("order")["commit"]) == [B, C, A]
    assert frame["parent"].isna().all()


def test_with_a_repository_commits_go_by_first_parents(tmp_path: Path, directory: AsvDirectory) -> None:
    repo = tmp_path / "repo"
    first, second = git_repository(repo, ["first", "second"])
    git(repo, "checkout", "-q", "-b", "side")
    aside = git_commit(repo, "aside", 9)
    git(repo, "checkout", "-q", "main")
    third = git_commit(repo, "third", 0.5)
    git(repo, "merge", "-q", "--no-ff", "-m", "merge side", "side", day=10)
    merge = git(repo, "rev-parse", "HEAD")
    # Dates lie on purpose: the third commit claims to be older than the second.
    for commit, day in ((third, 0.5), (merge, 10), (first, 0), (aside, 9), (second, 1)):
        directory.add(commit, {"suite.track_tok_s": [1.0]}, day=day)
    with pytest.warns(ResultsWarning, match=f"1 measured commit.*{aside[:8]}"):
        frame = load(directory.root, repo)
    order = dict(zip(frame["commit"], frame["order"], strict=True))
    assert order == {first: 0, second: 1, third: 2, merge: 3, aside: -1}
    assert only(frame, commit=merge)["parent"] == third
    assert only(frame, commit=third)["subject"] == "third"
    # Standing on an old commit changes nothing, nor does finding the repository around the results.
    git(repo, "checkout", "-q", first)
    directory.root.rename(repo / "results")
    with pytest.warns(ResultsWarning):
        again = load(repo / "results")
    assert dict(zip(again["commit"], again["order"], strict=True)) == order


def test_a_shallow_clone_keeps_the_older_results_in_front(tmp_path: Path, directory: AsvDirectory) -> None:
    hashes = git_repository(tmp_path / "repo", [f"c{at}" for at in range(4)])
    git(tmp_path, "clone", "-q", "--depth", "2", (tmp_path / "repo").as_uri(), "shallow")
    for day, commit in enumerate(hashes):
        directory.add(commit, {"suite.track_tok_s": [1.0]}, day=day)
    frame = load(directory.root, tmp_path / "shallow")
    assert list(frame.sort_values("order")["commit"]) == hashes
    assert (frame["order"] >= 0).all()


def test_a_repository_that_knows_nothing_is_said_and_not_fatal(tmp_path: Path, directory: AsvDirectory) -> None:
    directory.add(A, {"suite.track_tok_s": [1.0]})
    with pytest.warns(ResultsWarning, match="ordered by date"):
        assert list(load(directory.root, tmp_path)["order"]) == [0]


def test_version_1_files_read_as_asv_converts_them(directory: AsvDirectory) -> None:
    path = directory.add(A, {"suite.track_tok_s": [1.0]})
    stats = {"ci_99": [1.9e-6, 2.1e-6], "q_25": 1.95e-6, "q_75": 2.05e-6, "number": 1, "repeat": 10}
    cells = {"result": [2e-6, None], "params": [["'a'", "'b'"]], "stats": [stats, None], "samples": [[2e-6] * 10, None]}
    old = {
        "version": 1, "commit_hash": B, "date": 1_750_000_000_000, "python": "3.11", "requirements": {}, "env_vars": {},
        "params": {"machine": "box"}, "results": {"suite.time_old": cells, "suite.track_plain": 7.0},
    }  # fmt: skip
    (path.parent / f"{B[:8]}-old.json").write_text(json.dumps(old), encoding="utf-8")
    frame = load(directory.root)
    row = only(frame, name="suite.time_old", params='{"param1": "a"}')
    assert (row["value"], row["ci_low"], row["ci_high"]) == (2e-6, 1.9e-6, 2.1e-6)
    assert only(frame, name="suite.time_old", params='{"param1": "b"}')["status"] == "failed"
    assert only(frame, name="suite.track_plain")["value"] == 7.0
    converted = Results.update_to_2(dict(old))
    assert only(frame, name="suite.track_plain")["env"] == converted["env_name"]


BROKEN = {
    "half": '{"commit_hash": "',
    "empty": "",
    "list": "[1, 2]",
    "number": "3",
    "other": '{"hello": 1}',
    "no_commit": '{"results": {}, "env_name": "e", "params": {}, "result_columns": [], "version": 2}',
    "null_commit": '{"results": {}, "commit_hash": null, "env_name": "e", "params": {}, "result_columns": []}',
    "params_list": '{"results": {}, "commit_hash": "x", "env_name": "e", "params": [], "result_columns": []}',
    "future": '{"version": 3, "results": {}}',
    "old_and_broken": '{"version": 1, "results": {"a": 1}}',
    "binary": "\ufffd",
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_costs_a_warning_that_names_it(directory: AsvDirectory, name: str) -> None:
    good = directory.add(A, {"suite.track_tok_s": [1.0]})
    path = good.parent / f"{name}.json"
    path.write_bytes(b"\xff\xfe\x00" if name == "binary" else BROKEN[name].encode())
    with pytest.warns(ResultsWarning) as caught:
        frame = load(directory.root)
    assert [str(warning.message) for warning in caught if str(path) in str(warning.message)]
    assert list(frame["commit"]) == [A]


BROKEN_ROWS: dict[str, Any] = {
    "too_few_values": [[1.0], [["1", "2"]]],
    "no_list": [5.0, [["1", "2"]]],
    "params_no_lists": [[1.0], 7],
    "row_no_list": 3,
}


@pytest.mark.parametrize("name", BROKEN_ROWS)
def test_a_broken_benchmark_costs_only_itself(directory: AsvDirectory, name: str) -> None:
    path = directory.add(A, {"suite.track_tok_s": [1.0]})
    data = json.loads(path.read_text())
    data["results"]["suite.bad"] = BROKEN_ROWS[name]
    path.write_text(json.dumps(data))
    with pytest.warns(ResultsWarning, match="suite.bad in .*json"):
        frame = load(directory.root)
    assert list(frame["name"]) == ["suite.track_tok_s"]


@pytest.mark.parametrize(
    ("value", "status", "reason"),
    [
        (math.inf, "failed", "infinite"),
        (-math.inf, "failed", "infinite"),
        ("12", "failed", "str"),
        ({"a": 1}, "failed", "dict"),
        (True, "failed", "bool"),
        (math.nan, "skipped", "skipped"),
        (None, "failed", "failed"),
        (0, "ok", ""),
    ],
)
def test_odd_values_are_no_numbers(directory: AsvDirectory, value: Any, status: str, reason: str) -> None:
    path = directory.add(A, {"suite.track_tok_s": [1.0]})
    data = json.loads(path.read_text())
    data["results"]["suite.track_tok_s"][0] = [value]
    path.write_text(json.dumps(data))
    row = only(load(directory.root))
    assert row["status"] == status
    assert reason in row["reason"]
    assert math.isfinite(row["value"]) == (status == "ok")


def test_broken_benchmarks_json_and_machine_json_do_not_hide_results(directory: AsvDirectory) -> None:
    path = directory.add(A, {"suite.track_tok_s": [1.0]})
    (directory.root / "benchmarks.json").write_text("{")
    (path.parent / "machine.json").write_text('{"mach')
    with pytest.warns(ResultsWarning, match="benchmarks.json"):
        row = only(load(directory.root))
    assert (row["machine"], row["unit"], row["direction"]) == ("box", "unit", "lower")
    with pytest.warns(ResultsWarning, match="machine.json"):
        assert machine_facts(directory.root) == {}


def test_a_build_that_failed_is_failed_with_its_recorded_reason(directory: AsvDirectory) -> None:
    path = directory.add(A, {"suite.Kern.kern_hot": [None] * 4, "suite.track_tok_s": [math.nan]})
    build = {
        "schema": "kdbench/failure/1", "kind": "build", "commit": A, "env_name": "virtualenv-py3.11",
        "log": "/somewhere/.asv/logs/a.log", "output_tail": "[1/2] tree_build.cpp\ntree_build.cpp:3: error: no\nstop\n",
    }  # fmt: skip
    skip = {
        "schema": "kdbench/skip/1", "commit": A, "env_name": "virtualenv-py3.11", "benchmark": "suite.track_tok_s",
        "params": {}, "reason": "no usable GPU",
    }  # fmt: skip
    lines = [json.dumps(build), json.dumps(skip), '{"schema": "kdbench/skip/1", "comm', "not json"]
    (path.parent / "records.jsonl").write_text("\n".join(lines))
    frame = load(directory.root)
    failed = frame[frame["status"] == "failed"]
    assert len(failed) == 4
    assert set(failed["reason"]) == {"the commit does not build: tree_build.cpp:3: error: no (log a.log)"}
    assert only(frame, status="skipped")["reason"] == "skipped: no usable GPU"


def failure(kind: str, tail: str, **extra: str) -> str:
    """A line of failures.jsonl about commit A."""
    place = {"commit": A, "env_name": "virtualenv-py3.11"}
    return json.dumps({"schema": "kdbench/failure/1", "kind": kind, **place, "output_tail": tail, **extra})


KERN = {"benchmark": "suite.Kern.kern_hot"}
TRACEBACK = """For parameters: 'small', 64
Traceback (most recent call last):
  File "bench.py", line 3, in kern_hot
    raise DigestMismatch(error)
kdbench.golden.DigestMismatch: token_ids differ
warning: pages are small"""
RAISED = "the benchmark failed: kdbench.golden.DigestMismatch: token_ids differ"
UNKNOWN = "the benchmark or its build failed; asv keeps no reason in this file"
BUILD = "the commit does not build: error: no"


@pytest.mark.parametrize(
    ("lines", "kern", "other"),
    [
        ([failure("benchmark", TRACEBACK, **KERN)], RAISED, UNKNOWN),
        ([failure("benchmark", "Killed", **KERN)], "the benchmark failed: Killed", UNKNOWN),
        ([failure("build", "error: no"), failure("benchmark", TRACEBACK, **KERN)], RAISED, BUILD),
        ([failure("benchmark", TRACEBACK, **KERN), failure("build", "error: no")], BUILD, BUILD),
        ([failure("weather", "error: rain", **KERN)], UNKNOWN, UNKNOWN),
        ([failure("benchmark", TRACEBACK)], UNKNOWN, UNKNOWN),
    ],
    ids=["raised", "killed", "built_since", "no_longer_builds", "unknown_kind", "no_benchmark"],
)
def test_a_benchmark_s_failure_is_its_own(directory: AsvDirectory, lines: list[str], kern: str, other: str) -> None:
    path = directory.add(A, {"suite.Kern.kern_hot": [None] * 4, "suite.track_tok_s": [None]})
    (path.parent / "failures.jsonl").write_text("\n".join(lines))
    frame = load(directory.root)
    assert set(frame.loc[frame["name"] == KERN["benchmark"], "reason"]) == {kern}
    assert only(frame, name="suite.track_tok_s")["reason"] == other


def test_samples_are_cut_by_what_a_process_gave() -> None:
    samples = [1.0, 1.1, 1.2, 2.0, 2.1, 2.2]
    assert process_medians(samples, 2) == [1.1, 2.1]
    assert process_medians(samples, 3, samples_per_process=3) == [1.1, 2.1]
    assert process_medians(samples, 3, samples_per_process=4) == pytest.approx([1.05, 1.6, 2.15])
    assert process_medians(samples, 4) == []
    assert process_medians(samples, None) == []
    assert process_medians([], 5) == []
    assert process_medians([1.0, math.inf], 2) == []


def test_results_without_samples_have_no_processes(directory: AsvDirectory) -> None:
    cell = processes(np.random.default_rng(2), 1e-3)
    directory.add(A, {"suite.Kern.kern_hot": [cell, cell, cell, cell]}, record_samples=False)
    frame = load(directory.root)
    assert all(row == [] for row in [*frame["samples"], *frame["process_medians"]])
    assert (frame["ci_low"] < frame["value"]).all()


def test_an_empty_directory_is_an_empty_frame_and_none_is_an_error(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frame = load(tmp_path)
    assert frame.empty
    assert list(frame.columns) == COLUMNS
    with pytest.raises(KdbenchError, match=r"no results directory at .*nowhere"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'fp16'", "fp16"), ("64", 64), ("1.5", 1.5), ("None", None), ("True", True), ("nan", "nan"),
        ("1e999", "1e999"), ("(1, 2)", "(1, 2)"), ("<class 'int'>", "<class 'int'>"), ("'", "'"),
        ("'\\ud800'", "\ufffd"), ("'a\\x00'", "a\ufffd"),
    ],
)  # fmt: skip
def test_parameters_become_plain_values(text: str, value: Any) -> None:
    assert value_of(text) == value
    assert type(value_of(text)) is type(value)
    json.dumps(value_of(text), allow_nan=False).encode("utf-8")


def test_combinations_follow_asv_and_survive_odd_names() -> None:
    assert combinations([], None) == [{}]
    assert combinations([["1", "2"], ["'a'"]], ["n", "m"]) == [{"n": 1, "m": "a"}, {"n": 2, "m": "a"}]
    assert combinations([["1"], ["2"]], ["n", "n"]) == [{"n": 1, "n#2": 2}]
    assert combinations([["1"], ["2"]], ["n"]) == [{"param1": 1, "param2": 2}]


def test_plain_text_keeps_people_s_writing() -> None:
    assert plain_text("µs, 日本語, é\n\t<b>") == "µs, 日本語, é\n\t<b>"
    assert plain_text("\x1b[31m\u0085\ud83d") == "\ufffd[31m\ufffd\ufffd"
