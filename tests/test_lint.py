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
from kdbench.errors import KdbenchError
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


def test_the_decode_loop_needs_records_and_samples_too(folder: Folder) -> None:
    entry = folder.benchmarks[NAME]
    entry.update(type="decode", workloads={"w": {"batch": 4, "backends": ["cpu"]}})
    assert folder.lint() == []
    folder.record["workload"]["digest_ok"] = False
    folder.row[11] = [None, None]
    (folder.path / "box" / f"{folder.stem}.jsonl").unlink()
    problems = [finding.problem for finding in folder.lint()]
    assert any("no record of a passing digest" in problem for problem in problems)
    assert any("--record-samples" in problem for problem in problems)


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
        (_set("row/11", [[0] * 40, None]), "not all finite numbers above 0", False),
        (_set("row/11", [[-1e-6] + [1e-6] * 39, None]), "not all finite numbers above 0", False),
        (_set("row/11", [[True] * 40, None]), "not all finite numbers above 0", False),
        (_set("row/11", [[10**400] * 40, None]), "not all finite numbers above 0", False),
        (_set("row/11", [[], None]), "its samples are []", False),
        (_set("row/11", [[2e-6] * 40, None]), "lies outside its samples", False),
        (_set("row/11", [[5e-7] * 40, None]), "lies outside its samples", False),
        (_set("result/results", {NAME: []}), "its row is empty", False),
        (_set("row/5", [-math.inf, None]), "its interval is -inf", False),
        (_set("row/6", [math.inf, None]), "inf, and finite numbers are expected", False),
        (_set("row/2", None), "its version is null", False),
        (_set("row/9", [True, None]), "stats_number is True", False),
        (_set("row/0", [10**400, math.nan]), "a finite number above 0", True),
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


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_set("result/results", []), "its results is []"),
        (_set("result/result_columns", 7), "result_columns are not a list of texts"),
        (_set("result/result_columns", [["result"]]), "result_columns are not a list of texts"),
        (_set("result/result_columns", ["result", "odd"]), "which asv does not know"),
        (_set("result/params", []), "its params is []"),
        (_set("result/params", {"machine": ["box"]}), "give machine as ['box']"),
        (_set("result/env_vars", [1]), "its env_vars is [1]"),
        (_set("result/commit_hash", ["a"]), "its commit_hash is ['a']"),
        (_set("result/env_name", None), "its env_name is None"),
        (_set("result/date", "today"), "its date is 'today'"),
        (_set("result/version", "2"), "its version is '2'"),
        (_set("row/2", ["1"]), "its version is ['1']"),
        (_set("row/1", "'w'"), "params are not lists"),
        (_set("row/1", [[["w"]], ["'cpu'", "'cuda'"]]), "params are not lists of texts"),
        (_set("row/1", None), "its params are missing"),
        (_set("row/11", 7), "its samples is 7"),
        (_set("row/11", [None]), "2 entries of samples are expected"),
        (_set("row/7", 7), "its stats_q_25 is 7"),
        (_set("row/5", ["x", None]), "stats_ci_99_a holds 'x'"),
        (_set("row/6", [None] * 3), "2 entries of stats_ci_99_b are expected"),
        (_set(f"benchmarks/{NAME}", 7), "its entry is 7"),
        (_set(f"benchmarks/{NAME}", {}), "its entry has no name"),
        (_set(f"benchmarks/{NAME}/params", "w"), "params are not lists"),
        (_set(f"benchmarks/{NAME}/param_names", 7), "param_names are not a list of texts"),
        (_set(f"benchmarks/{NAME}/version", ["1"]), "its version is ['1']"),
        (_set(f"benchmarks/{NAME}/samples_per_process", [20]), "its samples_per_process is [20]"),
        (_set(f"benchmarks/{NAME}/rounds", math.inf), "its rounds is inf"),
        (_set(f"benchmarks/{NAME}/workloads", []), "its workloads are []"),
        (_set(f"benchmarks/{NAME}/workloads/w", {"bytes_moved": 1}), "no number of flops"),
        (_set("benchmarks/version", [2]), "its version is [2]"),
        (_set("machine/machine", ["box"]), "its machine is ['box']"),
        (_set("machine/version", "1"), "its version is '1'"),
    ],
)
def test_a_wrong_shape_is_one_fatal_sentence(folder: Folder, change: Callable[[Folder], None], problem: str) -> None:
    change(folder)
    fatal = [finding for finding in folder.lint() if finding.fatal]
    assert [problem in finding.problem for finding in fatal] == [True], fatal


@pytest.mark.parametrize("name", ["benchmarks.json", "box/machine.json", "box/89abcdef-x.json", "box/notes.json"])
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[" * 200_000, "nested too deeply"),
        (b"\xff\xfe\x00", "cannot be read: 'utf-8' codec"),
        (b"[1]", "not a JSON object"),
        (b"7", "not a JSON object"),
        (b'{"results": ', "cannot be read: Expecting value"),
        (None, "a directory, and a file is expected"),
    ],
)
def test_an_unreadable_file_is_one_fatal_sentence(
    folder: Folder, name: str, content: bytes | None, problem: str
) -> None:
    folder.lint()
    path = folder.path / name
    path.unlink(missing_ok=True)
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    found = [finding for finding in lint(folder.path) if finding.fatal and problem in finding.problem]
    # A directory is no machine.json that asv would look beside.
    assert [finding.path for finding in found] == [name]


def test_odd_records_are_passed_over_and_unreadable_ones_told_of(folder: Folder) -> None:
    folder.lint()
    lines = [{**folder.record, "params": ["w"]}, [], 7, {**folder.record, "workload": 7}]
    text = "\n".join([*map(json.dumps, lines), "[" * 200_000, '{"sch'])
    (folder.path / "box" / "odd.jsonl").write_text(text)
    assert folder.lint() == []
    (folder.path / "box" / "n.jsonl").mkdir()
    assert [(finding.path, finding.fatal) for finding in folder.lint()] == [("box/n.jsonl", True)]


def test_an_existing_environment_with_a_list_of_params_is_one_sentence(folder: Folder) -> None:
    folder.result["env_name"], folder.result["params"] = "existing-py", ["python"]
    assert [finding.problem for finding in folder.lint()] == ["its params is ['python'], and an object is expected"]


def test_names_that_no_terminal_can_show_are_replaced(folder: Folder) -> None:
    folder.result["results"] = {"\ud800": [[1.0], []]}
    (finding,) = folder.lint()
    str(finding).encode()


@pytest.mark.parametrize("kind", ["time", "track"])
def test_other_types_may_lack_what_asv_does_not_ask_for(folder: Folder, kind: str) -> None:
    folder.benchmarks[NAME] |= {"type": kind, "samples_per_process": None}
    del folder.benchmarks[NAME]["workloads"]
    for at in (5, 6, 7, 8, 9, 10, 11):
        folder.row[at] = None
    folder.row[2] = None
    assert folder.lint() == []
    folder.row[5], folder.row[6], folder.row[9], folder.row[10] = (
        [-math.inf, None],
        [math.inf, None],
        [1, None],
        [1, None],
    )
    folder.row[11] = [[1e-6] * 5, None]
    assert folder.lint() == []
    folder.row[10] = [40, None]
    assert ["its interval is -inf" in finding.problem for finding in folder.lint()] == [True]


@pytest.mark.parametrize(("column", "problem"), [(9, "stats_number is null"), (11, "--record-samples")])
def test_our_own_type_has_samples_and_a_number(folder: Folder, column: int, problem: str) -> None:
    folder.row[10] = None  # nothing hints at statistics
    assert folder.lint() == []
    folder.row[column] = None
    assert [problem in finding.problem for finding in folder.lint()] == [True]


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
    folder.row[9] = [None, 1]
    folder.row[0], folder.row[11] = [math.nan, 0.9e-6], [None, [0.9e-6] * 40]
    folder.record["params"]["backend"] = "cuda"
    assert ["faster than the 1.000 us" in finding.problem for finding in folder.lint()] == [True]
    folder.row[0], folder.row[11] = [math.nan, 1.1e-6], [None, [1.1e-6] * 40]
    assert folder.lint() == []
    folder.row[11][1][7] = 0.8e-6  # one sample is enough, whatever their median
    assert ["0.800 us is faster than the 1.000 us" in finding.problem for finding in folder.lint()] == [True]


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


def _git(repo: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    done = subprocess.run(["git", "-C", str(repo), *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _two_branches(repo: Path) -> tuple[str, str]:
    """A commit on main, and one on topic, which is checked out."""
    _git(repo, "init", "-q", "-b", "main")
    _git(repo, "commit", "-q", "--allow-empty", "-m", "one")
    on_main = _git(repo, "rev-parse", "HEAD")
    _git(repo, "checkout", "-q", "-b", "topic")
    _git(repo, "commit", "-q", "--allow-empty", "-m", "two")
    return on_main, _git(repo, "rev-parse", "HEAD")


def _off_branch(folder: Folder, commit: str, **options: Any) -> bool:
    folder.result["commit_hash"] = folder.record["commit"] = commit
    findings = folder.lint(**options)
    assert all("not on a published branch" in finding.problem for finding in findings)
    return bool(findings)


def test_commits_off_the_published_branches_are_found(folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> None:
    repo = tmp_path_factory.mktemp("repo")
    on_main, on_topic = _two_branches(repo)
    for commit, branches, off in [(on_main, ["main"], False), (on_topic, ["main"], True), (on_topic, None, False)]:
        assert _off_branch(folder, commit, repo=repo, branches=branches) == off


@pytest.mark.parametrize("branches", [["main"], None])
def test_a_repository_that_does_not_answer_is_an_error(folder: Folder, branches: list[str] | None) -> None:
    with pytest.raises(KdbenchError, match="not a git repository") as caught:
        folder.lint(repo=folder.path, branches=branches)
    assert "\n" not in str(caught.value)


def test_a_branch_that_is_not_there_is_an_error(folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> None:
    repo = tmp_path_factory.mktemp("repo")
    _two_branches(repo)
    with pytest.raises(KdbenchError, match="bad revision 'gone'"):
        folder.lint(repo=repo, branches=["gone"])


def test_no_git_is_an_error(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert folder.lint() == []
    with pytest.raises(KdbenchError, match="git does not answer"):
        folder.lint(repo=folder.path)


def test_the_repository_around_the_results_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_main, on_topic = _two_branches(tmp_path)
    (tmp_path / "results").mkdir()
    folder = Folder(tmp_path / "results")
    assert not _off_branch(folder, COMMIT)  # some other project's results
    assert not _off_branch(folder, on_topic)
    conf = tmp_path / "asv.conf.json"
    conf.write_text('{"version": 1, "repo": ".", "branches": ["main"]}  // as asv reads it')
    assert not _off_branch(folder, on_main)
    assert _off_branch(folder, on_topic)
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as inside a git hook
    assert _off_branch(folder, on_topic)
    conf.write_text('{"version": 1, "repo": ".", "branches": ["gone"]}')
    assert not _off_branch(folder, on_topic)
    conf.write_text('{"version": 1, "repo": ".", "branches": 7}')
    with pytest.raises(KdbenchError, match="names branches 7"):
        folder.lint()
