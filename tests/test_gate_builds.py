# SPDX-License-Identifier: Apache-2.0
"""Gate and bisect over real builds: what a commit, a compiler or a disk can do to them, and what is left behind."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_engine
from scratch_repo import ACCEPT, ScratchRepo
from tiny_engine import TinyEngine

import kdbench.paired
from kdbench.cli import run_command
from kdbench.paired import builds

Run = Callable[..., int]
TESTS = Path(__file__).parent


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv(builds.CACHE_VARIABLE, str(folder))
    monkeypatch.setattr(kdbench.paired, "compare", tiny_engine.compare)
    return folder


@pytest.fixture
def repo(tmp_path: Path, cache: Path) -> TinyEngine:
    made = TinyEngine(tmp_path / "repo")
    made.version("one", "1.0")
    made.version("two", "1.05")
    return made


@pytest.fixture
def run(repo: TinyEngine) -> Run:
    return lambda verb, *arguments: run_command([verb, *arguments, "-b", "b64-d7-n1-full", "--repo", str(repo.folder)])


def entries(cache: Path) -> list[str]:
    """Builds in the cache, finished or not; locks and logs are no builds."""
    names = [path.name for path in cache.iterdir()] if cache.is_dir() else []
    return [name for name in names if not name.endswith(".lock") and name != "logs"]


def test_a_gate_builds_both_ends_once(repo: TinyEngine, run: Run, cache: Path) -> None:
    assert run("gate", "HEAD", "--backend", "cpu") == 1
    assert len(entries(cache)) == 2
    before = {name: (cache / name).stat().st_mtime_ns for name in entries(cache)}
    assert run("gate", "HEAD", "--backend", "cpu", "--max-regression", "9%") == 1  # this comparison knows no limits
    assert {name: (cache / name).stat().st_mtime_ns for name in entries(cache)} == before


def test_bisect_skips_what_does_not_compile(
    repo: TinyEngine, run: Run, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = {4: "this is not C++;", 5: "nor this;", 6: "#error no"}
    commits = [repo.version("good", "1.0", more="// good")]
    for at in range(1, 11):
        commits.append(repo.version(f"commit {at}", "1.03" if at >= 8 else "1.0", more=broken.get(at, f"// {at}")))
    assert run("bisect", f"{commits[0]}..", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["series"] == ACCEPT
    assert document["commit"]["subject"] == "commit 8"
    assert "does not build for cpu" in document["skipped"][commits[5]]
    # Where the culprit is one of those, it is one of several.
    assert run("bisect", f"{commits[0]}..{commits[8]}", "--json") == 0
    capsys.readouterr()
    commits.append(repo.version("broken", "1.03", more="nor that;"))
    commits.append(repo.version("worse", "1.06"))
    assert run("bisect", f"{commits[10]}..", "--json") == 2
    document = json.loads(capsys.readouterr().out)
    assert [candidate["subject"] for candidate in document["candidates"]] == ["broken", "worse"]


@pytest.mark.parametrize("verb", ["gate", "bisect"])
def test_a_library_of_another_abi(
    repo: TinyEngine, run: Run, cache: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    repo.version("another ABI", "1.0", abi=99)
    assert run(verb, "HEAD~1..HEAD") == 2
    said = capsys.readouterr()
    assert "has ABI 99, and this kdbench reads 1 to 1" in said.err + said.out
    assert len(entries(cache)) == 1


@pytest.mark.parametrize("verb", ["gate", "bisect"])
def test_without_a_compiler(
    repo: TinyEngine,
    run: Run,
    cache: Path,
    verb: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    assert run(verb, "HEAD~1..HEAD") == 2
    assert "there is no C++ compiler /nowhere/g++ here" in capsys.readouterr().err
    assert entries(cache) == []


@pytest.mark.parametrize("verb", ["gate", "bisect"])
def test_a_compiler_that_finds_the_disk_full(
    repo: TinyEngine,
    run: Run,
    cache: Path,
    verb: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    full = tmp_path / "g++"
    real = shutil.which("g++")
    # It answers questions about itself, and fails when it has to write the engine.
    said = "fatal error: error writing to /tmp/tiny.s: No space left on device"
    full.write_text(f'#!/bin/sh\ncase "$*" in *tiny.cpp*) echo "{said}" >&2; exit 1;; esac\nexec {real} "$@"\n')
    full.chmod(0o755)
    monkeypatch.setenv("CXX", str(full))
    assert run(verb, "HEAD~1..HEAD") == 2
    assert "the disk is full" in capsys.readouterr().err
    assert entries(cache) == []
    monkeypatch.delenv("CXX")
    assert run(verb, "HEAD~1..HEAD") == (1 if verb == "gate" else 0)


@pytest.mark.parametrize("verb", ["gate", "bisect"])
def test_a_cache_on_a_full_disk_keeps_no_half_of_a_build(
    repo: TinyEngine,
    run: Run,
    cache: Path,
    verb: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(source: object, target: object) -> None:
        Path(str(target)).write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(builds.shutil, "copyfile", full)
    assert run(verb, "HEAD~1..HEAD") == 2
    assert "the disk is full" in capsys.readouterr().err
    assert entries(cache) == []


def test_a_submodule_in_the_engine(
    repo: TinyEngine, run: Run, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = ScratchRepo(tmp_path / "other")
    other.commit("a library", path="lib.h")
    repo.git("submodule", "add", "-q", str(other.folder), "native/src/library")
    repo.git("commit", "-q", "-m", "a submodule")
    (repo.folder / "native" / "src" / "library" / "lib.h").write_text("changed, and not committed")
    assert run("gate", "HEAD") == 2
    assert "is a git submodule, whose files belong to no commit of this repository" in capsys.readouterr().err
    assert run("bisect", "HEAD~2..HEAD") == 2
    assert "is a git submodule" in capsys.readouterr().err


def test_two_runs_at_once_share_one_build(repo: TinyEngine, cache: Path) -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
        "import kdbench.paired, tiny_engine\n"
        "kdbench.paired.compare = tiny_engine.compare\n"
        "from kdbench.cli import run_command\n"
        f"sys.exit(run_command(['gate', 'HEAD', '-b', 'b64-d7-n1-full', '--repo', {str(repo.folder)!r}, '--json']))\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    answers = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [1, 1, 1], answers
    assert len({tuple(json.loads(out)["counts"].items()) for out, _ in answers}) == 1
    assert len(entries(cache)) == 2
