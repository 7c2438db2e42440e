# SPDX-License-Identifier: Apache-2.0
"""Each kind of damage that a results folder can have is found, and a sound one is left alone."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kdbench import provenance
from kdbench.lint import Finding, lint

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "bench_tree_build.TreeBuild.kern_hot"
COLUMNS = ["result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b", "stats_q_25"]
COLUMNS += ["stats_q_75", "stats_number", "stats_repeat", "samples", "profile"]
MACHINE = {"machine": "box", "os": "Linux", "arch": "x86_64", "cpu": "c", "num_cpu": "2", "ram": "24GB", "gpu": ""}


class Folder:
    """A sound results folder: one series of one commit, measured in two processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.benchmarks: dict[str, Any] = {
            "version": 2,
            NAME: {
                "name": NAME,
                "type": "kernel",
                "version": "1",
                "direction": "lower",
                "rounds": 5,
                "samples_per_process": 20,
                "timing_mode": "cold",
                "params": [["'w'"], ["'cpu'", "'cuda'"]],
                "param_names": ["workload", "backend"],
                "workloads": {"w": {"bytes_moved": 4_800_000, "flops": 0}},
            },
        }
        self.machine: dict[str, Any] = {**MACHINE, "version": 1}
        nothing = [None, None]
        self.row: list[Any] = [
            *([[1e-6, math.nan], [["'w'"], ["'cpu'", "'cuda'"]], "1", 1, 2.0, [9e-7, None], [2e-6, None]]),
            *([[9e-7, None], [2e-6, None], [1, None], [40, None], [[1e-6] * 40, None], nothing]),
        ]
        self.result: dict[str, Any] = {
            "version": 2,
            "commit_hash": COMMIT,
            "env_name": "overlay-py3.11",
            "date": 1,
            "params": {**MACHINE, "python": "3.11"},
            "python": "3.11",
            "requirements": {},
            "env_vars": {},
            "result_columns": COLUMNS,
            "results": {NAME: self.row},
            "durations": {},
        }
        self.record: dict[str, Any] = {
            "schema": provenance.MEASUREMENT,
            "commit": COMMIT,
            "env_name": "overlay-py3.11",
            "benchmark": NAME,
            "params": {"workload": "w", "backend": "cpu"},
            "workload": {"digest_ok": True},
        }
        self.stem = "01234567-overlay-py3.11"

    def lint(self, **options: Any) -> list[Finding]:
        box = self.path / "box"
        box.mkdir(exist_ok=True)
        (self.path / "benchmarks.json").write_text(json.dumps(self.benchmarks))
        (box / "machine.json").write_text(json.dumps(self.machine))
        (box / f"{self.stem}.json").write_text(json.dumps(self.result))
        provenance.append(box / f"{self.stem}.jsonl", self.record)
        return lint(self.path, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_a_sound_folder_has_no_findings(folder: Folder) -> None:
    assert folder.lint() == []


@pytest.mark.parametrize(
    "value", [math.inf, -math.inf, 0, -1e-6, True, "1e-6", [1e-6], {"a": 1}], ids=lambda value: repr(value)
)
def test_values_that_publish_dies_on_are_fatal(folder: Folder, value: Any) -> None:
    folder.row[0][0] = value
    (finding,) = folder.lint()
    assert finding.fatal
    assert finding.series == f"{NAME}('w', 'cpu')"
    assert finding.path == "box/01234567-overlay-py3.11.json"
    assert "a finite number above 0" in finding.problem
    assert NAME in str(finding)


@pytest.mark.parametrize("value", [None, math.nan])
def test_failed_and_skipped_are_sound(folder: Folder, value: float | None) -> None:
    folder.row[0][0] = value
    assert folder.lint() == []


def _set(path: str, value: Any) -> Callable[[Folder], None]:
    def change(folder: Folder) -> None:
        *way, last = path.split("/")
        target: Any = vars(folder)
        for step in way:
            target = target[int(step)] if isinstance(target, list) else target[step]
        target[int(last) if isinstance(target, list) else last] = value

    return change


@pytest.mark.parametrize(
    ("change", "problem", "fatal"),
    [
        (_set("row/0", [1e-6]), "2 results are expected", True),
        (_set("row/0", 1e-6), "2 results are expected", True),
        (_set("row/1", "'w'"), "params are not lists", True),
        (_set("result/results", {NAME: 7}), "not a list of result_columns", True),
        (_set("row/11", [None, None]), "--record-samples", False),
        (_set("row/11", [[1e-6] * 39, None]), "39 samples do not come from whole processes of 20", False),
        (_set("row/11", [[math.inf] * 40, None]), "not all finite", False),
        (_set("row/9", [None, None]), "stats_number is null", False),
        (_set("row/2", "2"), "version '2', and benchmarks.json has '1'", False),
        (_set("result/results", {"gone.kern_hot": [[1.0], []]}), "not in benchmarks.json", False),
        (_set(f"benchmarks/{NAME}/direction", "up"), "direction is 'up'", False),
        (_set("machine/kernel", "6.1"), "unknown key 'kernel'", False),
        (_set("machine/machine", "other"), "in a folder of another name", False),
        (_set("record/workload", {"digest_ok": False}), "no record of a passing digest", False),
        (_set("result/env_name", "existing-py_usr_bin_python3"), "no record", False),
    ],
)
def test_damage_is_named(folder: Folder, change: Callable[[Folder], None], problem: str, fatal: bool) -> None:
    change(folder)
    findings = folder.lint()
    assert any(problem in finding.problem and finding.fatal == fatal for finding in findings), findings


def test_a_hashed_version_is_found(folder: Folder) -> None:
    folder.benchmarks[NAME]["version"] = folder.row[2] = "f" * 64
    assert [finding.problem for finding in folder.lint()] == [
        "its version is a hash of its source: a comment would orphan its history"
    ]


def test_an_existing_environment_names_its_interpreter(folder: Folder) -> None:
    folder.result["env_name"] = folder.record["env_name"] = "existing-py_usr_bin_python3"
    folder.result["params"]["python"] = ""
    assert ["without the interpreter" in finding.problem for finding in folder.lint()] == [True]


def test_faster_than_the_datasheet_is_found(folder: Folder) -> None:
    folder.result["params"]["gpu"] = "NVIDIA H200"
    folder.row[0], folder.row[11] = [math.nan, 0.9e-6], [None, [0.9e-6] * 40]
    folder.record["params"]["backend"] = "cuda"
    assert ["faster than the 1.000 us" in finding.problem for finding in folder.lint()] == [True]
    folder.row[0], folder.row[11] = [math.nan, 1.1e-6], [None, [1.1e-6] * 40]
    assert folder.lint() == []


def test_two_environments_of_one_commit_are_found(folder: Folder) -> None:
    assert folder.lint() == []
    folder.result["env_name"] = folder.record["env_name"] = "virtualenv-py3.11"
    folder.stem = "01234567-virtualenv-py3.11"
    assert ["averages the two" in finding.problem for finding in folder.lint()] == [True]


@pytest.mark.parametrize("name", ["notes.json", "box/export.json"])
def test_foreign_json_is_found(folder: Folder, name: str) -> None:
    folder.lint()
    (folder.path / name).write_text("{}")
    assert [(finding.path, finding.fatal) for finding in folder.lint()] == [(name, False)]


def test_broken_json_is_found(folder: Folder) -> None:
    folder.lint()
    (folder.path / "box" / "89abcdef-overlay-py3.11.json").write_text('{"results": ')
    assert ["cannot be read" in finding.problem for finding in folder.lint()] == [True]


def test_no_benchmarks_json_is_fatal(tmp_path: Path) -> None:
    assert [(finding.path, finding.fatal) for finding in lint(tmp_path)] == [("benchmarks.json", True)]


def test_commits_off_the_published_branches_are_found(folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> None:
    repo = tmp_path_factory.mktemp("repo")

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
        done = subprocess.run(
            ["git", "-C", str(repo), *identity, *arguments], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "one")
    on_main = git("rev-parse", "HEAD")
    git("checkout", "-q", "-b", "topic")
    git("commit", "-q", "--allow-empty", "-m", "two")
    on_topic = git("rev-parse", "HEAD")
    for commit, branches, count in [(on_main, ["main"], 0), (on_topic, ["main"], 1), (on_topic, None, 0)]:
        folder.result["commit_hash"] = folder.record["commit"] = commit
        findings = folder.lint(repo=repo, branches=branches)
        assert ["not on a published branch" in finding.problem for finding in findings] == [True] * count
