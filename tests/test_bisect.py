# SPDX-License-Identifier: Apache-2.0
"""kdbench bisect over real repositories, with a comparison that believes what their commits say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from scratch_repo import ACCEPT, Believing, ScratchRepo, paired_result

import kdbench.paired
from kdbench import revisions
from kdbench.bisect.scratch import Scratch
from kdbench.cli import run_command
from kdbench.paired import BuildError

ROOT = Path(__file__).parents[1]
Bisect = Callable[..., int]
BROKEN = (7, 15, 16, 18, 25)
CULPRIT = 20


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[ScratchRepo, list[str]]:
    """A good commit and 32 behind it, some of which do not build; the 20th is 3 % slower. Docs lie between."""
    repo = ScratchRepo(tmp_path_factory.mktemp("history") / "repo")
    commits = [repo.commit("good", "1.0")]
    for at in range(1, 33):
        repo.commit(f"docs {at}", path="README.md")
        # A digit more each time, so that every commit changes the file.
        speed = f"{1.03 if at >= CULPRIT else 1.0}{'0' * at}"
        commits.append(repo.commit(f"commit {at}", f"broken {at}" if at in BROKEN else speed))
    return repo, commits


@pytest.fixture
def repo(history: tuple[ScratchRepo, list[str]]) -> ScratchRepo:
    return history[0]


@pytest.fixture
def commits(history: tuple[ScratchRepo, list[str]]) -> list[str]:
    return history[1]


@pytest.fixture
def compare(repo: ScratchRepo, monkeypatch: pytest.MonkeyPatch) -> Believing:
    believing = Believing(repo)
    monkeypatch.setattr(kdbench.paired, "compare", believing)
    return believing


@pytest.fixture
def bisect(repo: ScratchRepo, compare: Believing) -> Bisect:
    return lambda *arguments: run_command(["bisect", *arguments, "--repo", str(repo.folder)])


def test_the_commit_is_named_with_its_ratio_its_confidence_and_its_files(
    bisect: Bisect, commits: list[str], compare: Believing, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bisect(f"{commits[0]}..{commits[-1]}", "-b", "TreeAccept.*b64-d7-n1-full", "--json", "--diff") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "kdbench/bisect/1"
    assert document["outcome"] == "commit"
    assert document["series"] == ACCEPT
    assert document["commits"] == 32
    assert document["commit"]["sha"] == commits[CULPRIT]
    assert document["commit"]["subject"] == "commit 20"
    assert document["confidence"] == pytest.approx(1 - 1 / 256)
    assert document["pair"]["ratio"] == pytest.approx(1.03)
    assert document["pair"]["low"] == pytest.approx(1.028)
    assert document["share"] == pytest.approx(1.0)
    assert "native/src/speed" in document["native_stat"]
    assert "+1.03" in document["native_diff"]
    assert "README" not in document["native_diff"]
    # Commits that do not build were met and passed over, each asked once.
    assert set(document["skipped"]) <= {commits[at] for at in BROKEN}
    assert commits[16] in document["skipped"]
    assert len(document["steps"]) <= 12
    # The last answer is of the commit itself against the one before it.
    assert document["steps"][-1]["base"] == commits[19]
    assert document["steps"][-1]["head"] == commits[CULPRIT]


def test_what_people_read(bisect: Bisect, commits: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bisect(f"{commits[0]}..{commits[-1]}", "-b", "TreeAccept.*b64-d7-n1-full") == 0
    said = capsys.readouterr().out
    assert f"{commits[20][:10]} commit 20 (Ada, " in said
    assert "made it 1.030× slower" in said
    assert "confidence 99.6 %" in said
    assert "100 % of what lies between the ends" in said
    assert f"skipped {commits[16][:10]}: the commit does not compile" in said
    assert "native/src/speed" in said


def test_of_several_series_the_one_that_got_slower_is_searched(
    bisect: Bisect, commits: list[str], compare: Believing, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bisect(f"{commits[0]}..{commits[-1]}", "-b", "b64-d7", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["series"] == ACCEPT
    assert document["commit"]["sha"] == commits[CULPRIT]
    # The ends were asked once, for all series; everything else for one.
    assert [pattern for *_, pattern, _ in compare.asked].count("b64-d7") == 1
    assert compare.asked[0][:2] == (commits[0], commits[-1])
    assert compare.asked[1][:2] != (commits[0], commits[-1])


def test_neighbours_that_do_not_build_make_a_range(
    bisect: Bisect, commits: list[str], capsys: pytest.CaptureFixture[str], compare: Believing
) -> None:
    read = compare.repo.read
    compare.repo.read = lambda commit: "broken" if commit in (commits[19], commits[20]) else read(commit)  # type: ignore[method-assign]
    try:
        assert bisect(f"{commits[0]}..{commits[-1]}", "-b", "b64-d7-n1-full") == 2
    finally:
        del compare.repo.read
    said = capsys.readouterr().out
    assert "it is one of 4 commits:" in said  # 18 does not build either
    assert all(f"{commits[at][:10]} commit {at}" in said for at in (18, 19, 20, 21))


def test_nothing_slower(bisect: Bisect, commits: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bisect(f"{commits[0]}..{commits[6]}", "-b", "b64-d7-n1-full", "--json") == 2
    document = json.loads(capsys.readouterr().out)
    assert document["outcome"] == "none"
    assert document["commit"] is None
    assert document["confidence"] is None
    assert len(document["steps"]) == 1


def test_an_end_that_does_not_build(bisect: Bisect, commits: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bisect(f"{commits[0]}..{commits[7]}", "-b", "b64-d7-n1-full") == 2
    assert "the ends could not be compared: the commit does not compile" in capsys.readouterr().out


def test_ambiguous_is_asked_again_in_new_processes(bisect: Bisect, commits: list[str], compare: Believing) -> None:
    compare.verdicts[ACCEPT] = paired_result(ACCEPT, "AMBIGUOUS", 1.01, 0.03)
    assert bisect(f"{commits[0]}..{commits[-1]}", "-b", "b64-d7-n1-full") == 2
    assert [options["processes"] for *_, options in compare.asked] == [24, 24]
    compare.asked.clear()
    assert bisect(f"{commits[0]}..{commits[-1]}", "-b", "b64-d7-n1-full", "--processes", "8") == 2
    assert [options["processes"] for *_, options in compare.asked] == [8, 16]


def test_a_wrong_answer_is_passed_over(
    bisect: Bisect, commits: list[str], compare: Believing, capsys: pytest.CaptureFixture[str]
) -> None:
    compare.verdicts[ACCEPT] = paired_result(ACCEPT, "FAILED", None, reasons=("the digest is wrong",))
    assert bisect(f"{commits[0]}..{commits[-1]}", "-b", "b64-d7-n1-full") == 2
    assert "the ends could not be compared: the digest is wrong" in capsys.readouterr().out


def test_a_machine_that_cannot_build_ends_it_and_skips_nothing(
    bisect: Bisect, commits: list[str], compare: Believing, capsys: pytest.CaptureFixture[str]
) -> None:
    compare.error = BuildError("no space left on the disk")
    assert bisect(f"{commits[0]}..{commits[-1]}", "-b", "b64-d7-n1-full") == 2
    assert "kdbench: no space left on the disk" in capsys.readouterr().err
    assert len(compare.asked) == 1


def test_ctrl_c_says_what_is_known(
    bisect: Bisect, commits: list[str], compare: Believing, capsys: pytest.CaptureFixture[str]
) -> None:
    compare.interrupt_after = 3
    assert bisect(f"{commits[0]}..{commits[-1]}", "-b", "b64-d7-n1-full", "--json") == 130
    document = json.loads(capsys.readouterr().out)
    assert document["outcome"] == "interrupted"
    assert len(document["steps"]) >= 2
    assert document["candidates"], "what is left of the range"


@pytest.mark.parametrize(
    ("range_", "bench", "message"),
    [
        ("HEAD", "x", "is no range GOOD..BAD"),
        ("HEAD~2...HEAD", "x", "is no range GOOD..BAD"),
        ("..HEAD", "x", "is no range GOOD..BAD"),
        ("nonsense..HEAD", "x", "has no commit 'nonsense'"),
        ("HEAD..HEAD~4", "x", "is no ancestor of"),
        ("HEAD..", "x", "changes the engine: there is nothing to search"),
        ("HEAD~4..HEAD", "no-such-series", "-b 'no-such-series' fits no series"),
        ("HEAD~4..HEAD", "(", "no regular expression"),
    ],
)
def test_bad_input_is_1(
    bisect: Bisect,
    compare: Believing,
    capsys: pytest.CaptureFixture[str],
    range_: str,
    bench: str,
    message: str,
) -> None:
    assert bisect(range_, "-b", bench) == 1
    assert message in capsys.readouterr().err
    assert compare.asked == []


def test_a_history_made_for_a_trial_is_what_it_says(tmp_path: Path) -> None:
    made = Scratch(tmp_path / "trial", ROOT, "HEAD")
    commits = made.history(12, culprit=8, slow=0.03, broken={3, 6})
    line = revisions.engine_line(made.folder, commits[0], commits[-1])
    # Each of them changes the engine, and few texts serve all.
    assert [revision.sha for revision in line] == commits[1:]
    texts = [revisions.git(made.folder, "show", f"{sha}:native/src/cpu/tree_build.cpp") for sha in commits]
    assert len(set(texts)) == 4
    assert ["* 0.03;" in text for text in texts] == [at >= 8 for at in range(13)]
    trees = [revisions.git(made.folder, "ls-tree", "-r", "--name-only", sha) for sha in commits]
    assert ["broken.cpp" in tree for tree in trees] == [at in (3, 6) for at in range(13)]
    assert (made.folder / "native" / "CMakeLists.txt").is_file()
    assert not (made.folder / "kdbench").exists()
