# SPDX-License-Identifier: Apache-2.0
"""kdbench gate over real repositories, with a comparison that believes what their commits say."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scratch_repo import ACCEPT, BUILD, Believing, ScratchRepo, paired_result

import kdbench.paired
from kdbench import atomic
from kdbench.cli import run_command
from kdbench.errors import KdbenchError
from kdbench.paired import BuildError

Gate = Callable[..., int]


@pytest.fixture
def repo(tmp_path: Path) -> ScratchRepo:
    made = ScratchRepo(tmp_path / "repo")
    made.commit("start", "1.0")
    made.commit("one", "1.000")
    return made


@pytest.fixture
def compare(repo: ScratchRepo, monkeypatch: pytest.MonkeyPatch) -> Believing:
    believing = Believing(repo)
    monkeypatch.setattr(kdbench.paired, "compare", believing)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    return believing


@pytest.fixture
def gate(repo: ScratchRepo, compare: Believing) -> Gate:
    return lambda *arguments: run_command(["gate", *arguments, "--repo", str(repo.folder)])


def rules(repo: ScratchRepo, text: str) -> None:
    (repo.folder / "benchmarks").mkdir(exist_ok=True)
    (repo.folder / "benchmarks" / "gate.toml").write_text(text)


@pytest.mark.parametrize(("speed", "code"), [("1.0001", 0), ("0.8", 0), ("1.015", 0), ("1.05", 1)])
def test_the_exit_code_says_it(repo: ScratchRepo, gate: Gate, speed: str, code: int) -> None:
    repo.commit("two", speed)
    assert gate("HEAD~1..HEAD") == code
    assert gate("HEAD") == code


def test_the_limit_of_the_command_line_is_what_the_comparison_is_asked_at(
    repo: ScratchRepo, gate: Gate, compare: Believing
) -> None:
    repo.commit("two", "1.04")
    assert gate("HEAD", "--max-regression", "5%") == 0
    assert gate("HEAD", "--max-regression", "3%") == 1
    limits = [options["min_effect"] for *_, options in compare.asked]
    assert limits[0][ACCEPT] == limits[0][BUILD] == 0.05
    rules(repo, '[[threshold]]\nseries = "TreeAccept"\nmax_regression = "6%"\nreason = "r"\nexpires = 2099-01-01\n')
    assert gate("HEAD", "--max-regression", "3%") == 0
    assert compare.asked[-1][3]["min_effect"][ACCEPT] == 0.06
    assert compare.asked[-1][3]["min_effect"][BUILD] == 0.03


def test_without_any_limit_each_series_keeps_its_own(repo: ScratchRepo, gate: Gate, compare: Believing) -> None:
    repo.commit("two", "1.0")
    repo.commit("three", "1.001")
    assert gate("HEAD") == 0
    assert compare.asked[0][3]["min_effect"] is None


@pytest.mark.parametrize("verdict", ["AMBIGUOUS", "FAILED"])
def test_what_is_not_known_is_2(repo: ScratchRepo, gate: Gate, compare: Believing, verdict: str) -> None:
    repo.commit("two", "1.001")
    compare.verdicts[BUILD] = paired_result(BUILD, verdict, None, reasons=("the machine was busy",))
    assert gate("HEAD") == 2


def test_a_backend_that_was_asked_for_and_is_not_here_is_2(repo: ScratchRepo, gate: Gate, compare: Believing) -> None:
    repo.commit("two", "1.001")
    assert gate("HEAD", "-b", "b64-d7-n1-full") == 0
    # The comparison leaves out what it cannot use: its series are missed.
    assert gate("HEAD", "-b", "b64-d7-n1-full", "--backend", "cpu", "--backend", "cuda") == 2


def test_the_decode_loop_is_missed_only_where_it_is_asked_for(
    repo: ScratchRepo, gate: Gate, compare: Believing, capsys: pytest.CaptureFixture[str]
) -> None:
    repo.commit("two", "1.001")
    gate("HEAD", "--backend", "cpu", "--json")
    missed = [line["series"] for line in json.loads(capsys.readouterr().out)["series"] if line["verdict"] == "MISSING"]
    assert missed
    assert not any("decode" in series.lower() for series in missed)


def test_an_accepted_slowdown_passes_while_its_commit_is_in_the_range(
    repo: ScratchRepo, gate: Gate, compare: Believing, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = repo.commit("slow", "1.05")
    entry = f'[[accepted]]\nseries = "TreeAccept"\ncommits = "{slow[:10]}"\nmax_ratio = 1.06\n'
    rules(repo, f'{entry}reason = "worth it"\nexpires = 2099-01-01\n')
    assert gate("HEAD~1..HEAD") == 0
    assert "accepted until 2099-01-01: worth it" in " ".join(capsys.readouterr().out.split())
    repo.commit("slow again", "1.10")
    assert gate("HEAD~1..HEAD") == 1
    # Together they are more than what was accepted.
    assert gate("HEAD~2..HEAD") == 1


def test_an_expired_entry_stops_the_gate_before_it_measures(
    repo: ScratchRepo, gate: Gate, compare: Believing, capsys: pytest.CaptureFixture[str]
) -> None:
    repo.commit("two", "1.001")
    rules(repo, '[[accepted]]\nseries = "x"\nmax_ratio = 1.1\nreason = "r"\nexpires = 2020-01-01\n')
    assert gate("HEAD") == 2
    assert "expired on 2020-01-01" in capsys.readouterr().err
    assert compare.asked == []


def test_nothing_is_measured_where_nothing_of_the_engine_changed(
    repo: ScratchRepo, gate: Gate, compare: Believing, capsys: pytest.CaptureFixture[str]
) -> None:
    repo.commit("docs", path="README.md")
    assert gate("HEAD") == 0
    assert "the engine is the same" in capsys.readouterr().out
    assert compare.asked == []


def test_ctrl_c_is_never_green(repo: ScratchRepo, gate: Gate, compare: Believing) -> None:
    repo.commit("two", "1.001")
    compare.interrupt_after = 0
    assert gate("HEAD") == 130
    repo.commit("three", "1.1")
    assert gate("HEAD") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "has no commit 'nonsense'"),
        (["HEAD~1..nonsense"], "has no commit 'nonsense'"),
        (["HEAD..HEAD"], "nothing between them to judge"),
        (["HEAD~1"], "has no parent here"),
        (["HEAD", "--max-regression", "2"], "a fraction between 0 and 1"),
        (["HEAD", "--bench", "("], "no regular expression"),
        (["HEAD", "--kernel", "nope"], "--kernel nope: choose from"),
        (["HEAD", "--backend", "nope"], "--backend nope: choose from"),
        (["HEAD", "--rules", "no-such.toml"], "cannot be read"),
        (["HEAD", "--no-such-option"], "No such option"),
        ([], "Missing argument"),
        (["HEAD", "--processes", "2"], "Invalid value for '--processes'"),
    ],
)
def test_bad_input_is_2_since_1_is_slower(
    gate: Gate, compare: Believing, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert gate(*arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert compare.asked == []


def test_a_build_that_fails_is_2(
    repo: ScratchRepo, gate: Gate, compare: Believing, capsys: pytest.CaptureFixture[str]
) -> None:
    repo.commit("two", "1.001")
    compare.error = BuildError("no space left")
    assert gate("HEAD", "--annotate") == 2
    said = capsys.readouterr()
    assert "no space left" in said.err
    assert "::error title=kdbench gate::no space left" in said.out


def test_every_format_of_one_run(
    repo: ScratchRepo, gate: Gate, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    head = repo.commit("two", "1.05")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    junit, markdown = tmp_path / "out" / "junit.xml", tmp_path / "out" / "comment.md"
    assert gate("HEAD", "--junit", str(junit), "--markdown", str(markdown), "--json") == 1
    said = capsys.readouterr()
    document: dict[str, Any] = json.loads(said.out)  # annotations are elsewhere
    assert document["schema"] == "kdbench/gate/1"
    assert document["head"] == head
    assert document["exit_code"] == 1
    assert document["counts"] == {"slower": 1, "unknown": 0, "accepted": 0, "passed": 1}
    assert [line["series"] for line in document["series"]] == [ACCEPT, BUILD]
    assert document["series"][0]["ratio"] == pytest.approx(1.05)
    assert "::error title=bench_tree_accept" in said.err
    assert ET.fromstring(junit.read_text()).attrib["failures"] == "1"
    assert "1.050× slower" in markdown.read_text()
    assert sorted(os.listdir(tmp_path / "out")) == ["comment.md", "junit.xml"]


def test_a_file_that_cannot_be_written_is_2_and_nothing_half_written_stays(
    repo: ScratchRepo, gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.commit("two", "1.001")
    kept = tmp_path / "junit.xml"
    kept.write_text("the one before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "replace", full)
    assert gate("HEAD", "--junit", str(kept)) == 2
    assert kept.read_text() == "the one before"
    assert [path.name for path in tmp_path.iterdir() if "junit" in path.name] == ["junit.xml"]
    with pytest.raises(KdbenchError, match="cannot be written: No space left on device"):
        atomic.write_text(kept, "x")
