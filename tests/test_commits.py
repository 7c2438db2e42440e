# SPDX-License-Identifier: Apache-2.0
"""Which line of first parents results are laid out along, when a repository has several."""

from __future__ import annotations

from pathlib import Path

import pytest
from asv_writer import git, git_commit, git_repository

from kdbench.commits import read_history


@pytest.fixture
def forked(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A-B-C-D on main and B-W-X on branch "side", which is checked out; commits by subject."""
    repo = tmp_path / "repo"
    found = dict(zip("ABCD", git_repository(repo, list("ABCD")), strict=True))
    git(repo, "checkout", "-q", "-b", "side", found["B"])
    for day, subject in enumerate("WX", start=4):
        found[subject] = git_commit(repo, subject, day)
    return repo, found


def line(repo: Path, commits: dict[str, str], measured: str) -> str:
    """Subjects of the chosen line when these commits are measured."""
    history = read_history(repo, [commits[subject] for subject in measured])
    assert history is not None
    return "".join(history.commits[sha].subject for sha in history.line)


@pytest.mark.parametrize("measured", ["ABCDX", "ABCDW", "CDX", "X"])
def test_measured_work_that_only_head_has_decides(forked: tuple[Path, dict[str, str]], measured: str) -> None:
    assert line(*forked, measured) == "ABWX"


@pytest.mark.parametrize("measured", ["ABCD", "C"])
def test_without_it_most_measured_commits_decide(forked: tuple[Path, dict[str, str]], measured: str) -> None:
    assert line(*forked, measured) == "ABCD"


@pytest.mark.parametrize(("branch", "wanted"), [("side", "ABWX"), ("main", "ABCD")])
def test_head_s_line_wins_a_tie(forked: tuple[Path, dict[str, str]], branch: str, wanted: str) -> None:
    repo, commits = forked
    git(repo, "checkout", "-q", branch)
    assert line(repo, commits, "AB") == wanted


def test_an_old_checkout_keeps_what_was_measured_after_it(forked: tuple[Path, dict[str, str]]) -> None:
    repo, commits = forked
    git(repo, "checkout", "-q", commits["C"])
    # D goes on where HEAD stands; that the other branch has more measured commits does not matter.
    assert line(repo, commits, "CDWX") == "ABCD"
    assert line(repo, commits, "ABCWX") == "ABC"
    git(repo, "checkout", "-q", commits["B"])
    assert line(repo, commits, "BDWX") == "ABWX"


def test_head_on_main_outvotes_a_branch_with_more_results(forked: tuple[Path, dict[str, str]]) -> None:
    repo, commits = forked
    git(repo, "checkout", "-q", "main")
    assert line(repo, commits, "DWX") == "ABCD"


def test_another_repository_s_git_dir_is_not_obeyed(
    forked: tuple[Path, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As inside one of the other repository's hooks.
    git_repository(tmp_path / "other", ["elsewhere"])
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert line(*forked, "ABX") == "ABWX"


def test_nothing_measured_and_no_repository_are_no_history(forked: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    assert read_history(forked[0], ["f" * 40]) is None
    assert read_history(tmp_path, [forked[1]["A"]]) is None
