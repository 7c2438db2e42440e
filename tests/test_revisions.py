# SPDX-License-Identifier: Apache-2.0
"""Names, ranges and lines of commits in real repositories."""

from __future__ import annotations

from pathlib import Path

import pytest
from scratch_repo import ScratchRepo

from kdbench import revisions
from kdbench.errors import InvalidArgument


@pytest.fixture
def repo(tmp_path: Path) -> ScratchRepo:
    return ScratchRepo(tmp_path / "repo")


def test_ranges(repo: ScratchRepo) -> None:
    one = repo.commit("one")
    repo.git("checkout", "-q", "-b", "side")
    side = repo.commit("side", path="native/src/other")
    repo.git("checkout", "-q", "main")
    two = repo.commit("two")
    repo.git("tag", "-a", "v1", "-m", "v1", one)
    assert revisions.ends(repo.folder, "v1..main") == (one, two)  # a tag object is no commit
    assert revisions.ends(repo.folder, f"{one[:8]}..") == (one, two)
    assert revisions.ends(repo.folder, "side...main") == (one, two)
    assert revisions.ends(repo.folder, "main...side") == (one, side)
    assert revisions.ends(repo.folder, "side..main") == (side, two)
    assert revisions.ends(repo.folder, "HEAD") == (one, two)
    with pytest.raises(InvalidArgument, match="has no parent here"):
        revisions.ends(repo.folder, one)


@pytest.mark.parametrize(
    "text",
    ["nonsense", "nonsense..main", "main..nonsense", "--help", "main..--help", "a...b", "", "main:a", "HEAD^{tree}"],
)
def test_unknown_revisions_are_one_sentence(repo: ScratchRepo, text: str) -> None:
    repo.commit("one")
    with pytest.raises(InvalidArgument, match="has no commit"):
        revisions.ends(repo.folder, text)


def test_a_folder_that_is_no_repository(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="is no git repository"):
        revisions.resolve(tmp_path, "main")


def test_the_engine_s_line_leaves_out_what_changes_nothing_and_what_a_merge_brought(repo: ScratchRepo) -> None:
    one = repo.commit("one")
    repo.commit("docs", path="README.md")
    repo.commit("a test", path="native/tests/a.cpp")
    two = repo.commit("two")
    repo.git("checkout", "-q", "-b", "side")
    repo.commit("on the side", path="native/src/side")
    repo.commit("on the side again", "x", path="native/src/side")
    repo.git("checkout", "-q", "main")
    repo.git("merge", "-q", "--no-ff", "-m", "merge", "side")
    merged = repo.git("rev-parse", "HEAD")
    line = revisions.engine_line(repo.folder, one, merged)
    assert [(revision.sha, revision.subject) for revision in line] == [(two, "two"), (merged, "merge")]
    assert line[0].author == "Ada"
    # In whichever folder of the repository.
    assert revisions.engine_line(repo.folder / "native", one, merged) == line
    assert revisions.same_engine(repo.folder, repo.git("rev-parse", "HEAD~3"), one)
    assert not revisions.same_engine(repo.folder, one, two)
    stat = revisions.native_changes(repo.folder, two, merged, stat=True)
    assert "native/src/side" in stat
    assert "+x" in revisions.native_changes(repo.folder, two, merged, stat=False)


def test_a_good_end_that_the_bad_one_does_not_hold(repo: ScratchRepo) -> None:
    base = repo.commit("one")
    repo.git("checkout", "-q", "-b", "side")
    side = repo.commit("side")
    repo.git("checkout", "-q", "main")
    main = repo.commit("main")
    with pytest.raises(InvalidArgument, match=f"is no ancestor of .*{base[:10]} is the newest commit that both have"):
        revisions.engine_line(repo.folder, side, main)
    repo.git("checkout", "-q", "--orphan", "alone")
    with pytest.raises(InvalidArgument, match="have no commit in common"):
        revisions.engine_line(repo.folder, repo.commit("alone"), main)


def test_which_commits_a_range_holds(repo: ScratchRepo) -> None:
    one, two, three, four = (repo.commit(title) for title in ("one", "two", "three", "four"))
    holds = revisions.holds
    assert holds(repo.folder, one, four, two[:8])
    assert holds(repo.folder, one, four, four)
    assert not holds(repo.folder, one, four, one)
    assert not holds(repo.folder, two, three, four)
    assert holds(repo.folder, two, four, f"{one}..{three}")
    assert not holds(repo.folder, three, four, f"{one}..{three}")
    # Commits that this clone does not know were not in the range either.
    assert not holds(repo.folder, one, four, "0123456")
    assert not holds(repo.folder, one, four, f"{one}..0123456")


def test_a_hook_s_git_dir_does_not_win(repo: ScratchRepo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = repo.commit("one")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert revisions.resolve(repo.folder, "main") == one
