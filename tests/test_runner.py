# SPDX-License-Identifier: Apache-2.0
"""What kdbench run asks of asv, and how it answers; real runs are in tests/asv."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kdbench import asv_process, machine, provenance, runner
from kdbench.errors import InvalidArgument


@pytest.fixture
def repo(tmp_path: Path) -> Callable[..., str]:
    """A repository with four commits, two of which change the engine; the function runs git in it."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q", "-b", "main")
    (tmp_path / "native" / "src").mkdir(parents=True)
    (tmp_path / "native" / "tests").mkdir()
    (tmp_path / "asv.conf.json").write_text('{"version": 1, "repo": ".", "results_dir": "results"} // asv allows this')
    for title, path in [
        ("one", "native/src/a"),
        ("two", "README"),
        ("three", "native/src/a"),
        ("four", "native/tests/a"),
    ]:
        (tmp_path / path).write_text(title)
        git("add", "-A")
        git("commit", "-q", "-m", title)
    return git


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Command lines and environments that would have been run; HASHFILEs are replaced by what is in them."""
    calls: list[Any] = []

    def record(command: list[str], folder: Path, environment: dict[str, str], output: Any) -> int:
        words = [
            Path(word.removeprefix("HASHFILE:")).read_text().split() if word.startswith("HASHFILE:") else word
            for word in command
        ]
        calls.append((words, environment))
        return 2

    monkeypatch.setattr(runner, "drive", record)
    monkeypatch.setattr(runner, "usable_backends", lambda: {"cpu": None, "cuda": "no NVIDIA GPU answers"})
    return calls


def test_quick_asks_for_primary_modes_of_what_can_run(repo: Any, asked: list[Any], tmp_path: Path) -> None:
    assert runner.run(tmp_path, commits=1, tag="quick") == 2
    ((words, environment),) = asked
    patterns = [words[i + 1] for i, word in enumerate(words) if word == "-b"]
    assert 8 <= len(patterns) <= 15
    assert all("cpu" in pattern and "cuda" not in pattern for pattern in patterns)
    assert sum("VerifyAttn.kern_cold" in pattern.replace("\\", "") for pattern in patterns) == 2
    assert not any("VerifyAttn.kern_hot" in pattern.replace("\\", "") for pattern in patterns)
    assert "--record-samples" in words
    assert "--interleave-rounds" in words
    assert "--skip-existing" in words
    assert environment["KDBENCH_RESUME_ROUNDS"] == "5"
    assert words[words.index("-E") + 1] == "overlay"


def test_numbers_count_commits_that_changed_the_engine(repo: Any, asked: list[Any], tmp_path: Path) -> None:
    runner.run(tmp_path, commits=5, tag="quick")
    assert asked[0][0][-1] == [repo("rev-parse", "HEAD~1"), repo("rev-parse", "HEAD~3")]


def test_new_starts_at_the_newest_one_measured_here(repo: Any, asked: list[Any], tmp_path: Path) -> None:
    engine = [repo("rev-parse", "HEAD~3"), repo("rev-parse", "HEAD~1")]
    for box, commit in (("box", engine[0]), ("another", engine[1])):
        folder = tmp_path / "results" / box
        folder.mkdir(parents=True)
        (folder / f"{commit[:8]}-overlay-py3.11.json").write_text("{}")
    runner.run(tmp_path, commits="NEW", tag="quick", machine_name="box")
    assert asked[0][0][-1] == engine
    runner.run(tmp_path, commits="NEW", tag="quick", machine_name="another")
    assert asked[1][0][-1] == engine[1:]


def test_ranges_and_options_are_passed_on(repo: Any, asked: list[Any], tmp_path: Path) -> None:
    runner.run(tmp_path, commits="main~2..main", rounds=3, resume=False, bench="b64-d7-n1-full", env="virtualenv")
    words, environment = asked[0]
    assert words[-1] == "main~2..main"
    assert words[words.index("-a") + 1] == "rounds=3"
    assert "--skip-existing" not in words
    assert "KDBENCH_RESUME_ROUNDS" not in environment
    assert sum(word == "-b" for word in words) == 2  # hot and cold, on the CPU


@pytest.mark.parametrize("commits", ["nonsense..x", "--upload-pack=x", "no-such-tag"])
def test_a_range_that_git_does_not_know_is_one_sentence(
    repo: Any, asked: list[Any], tmp_path: Path, commits: str
) -> None:
    with pytest.raises(InvalidArgument, match="no commits to measure"):
        runner.run(tmp_path, commits=commits, tag="quick")
    assert asked == []


def test_existing_environments_are_saved_under_head(repo: Any, asked: list[Any], tmp_path: Path) -> None:
    runner.run(tmp_path, env="existing:/usr/bin/python3", tag="quick")
    words = asked[0][0]
    assert words[-2:] == ["--set-commit-hash", repo("rev-parse", "HEAD")]
    assert "--interleave-rounds" not in words


def test_every_run_leaves_a_record(repo: Any, asked: list[Any], tmp_path: Path) -> None:
    runner.run(tmp_path, tag="quick", machine_name="box-7")
    assert asked[0][1]["KDBENCH_MACHINE"] == "box-7"
    record = json.loads((tmp_path / "results" / "box-7" / "runs.jsonl").read_text())
    assert record["schema"] == provenance.RUN
    assert record["exit_code"] == 2
    assert record["excluded_backends"] == {"cuda": "no NVIDIA GPU answers"}
    assert record["commits"] == [repo("rev-parse", "HEAD~1")]
    assert record["machine"]["machine"] == "box-7"
    runner.run(tmp_path, tag="quick", machine_name="box-8", dry_run=True)
    # asv refuses both at once.
    assert "--dry-run" in asked[1][0]
    assert "--interleave-rounds" not in asked[1][0]
    assert "--dry-run" in asked[1][0]
    assert not (tmp_path / "results" / "box-8").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backends": ("cuda",)}, "no benchmark fits the selection .*no NVIDIA GPU answers"),
        ({"bench": "no such"}, "no benchmark fits the selection"),
        ({"commits": 0}, "commits is 0"),
    ],
)
def test_user_errors_are_one_clear_sentence(
    repo: Any, asked: list[Any], tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        runner.run(tmp_path, **options)
    assert asked == []


def test_a_folder_without_configuration_or_commits(asked: list[Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"asv\.conf\.json is not there"):
        runner.run(tmp_path)
    (tmp_path / "asv.conf.json").write_text('{"version": 1, "repo": "."}')
    with pytest.raises(InvalidArgument, match="no commits to measure"):
        runner.run(tmp_path)


@pytest.mark.parametrize(("script", "code"), [("0", 0), ("1", 1), ("2", 2), ("7", 2), ("-9", 2)])
def test_exit_codes(script: str, code: int, tmp_path: Path) -> None:
    text = f"import os, sys\nos.kill(os.getpid(), 9) if {script} == -9 else sys.exit({script})"
    assert asv_process.drive([sys.executable, "-c", text], tmp_path, {}, None) == code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_is_passed_on_once_and_waited_for(tmp_path: Path, number: signal.Signals) -> None:
    child = (
        "import signal, sys, time, pathlib\n"
        "def stop(*_):\n"
        "    pathlib.Path('saved').open('a').write('yes'); time.sleep(0.3); sys.exit(1)\n"
        "signal.signal(signal.SIGINT, stop)\n"
        "print('ready', flush=True)\n"
        "time.sleep(30)\n"
    )
    parent = (
        "import sys, pathlib\nfrom kdbench import asv_process\n"
        f"sys.exit(asv_process.drive([sys.executable, '-c', {child!r}], pathlib.Path('.'), {{}}, None))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent], cwd=tmp_path, stdout=subprocess.PIPE, text=True, process_group=0
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, number)  # as a terminal does it
    assert process.wait(timeout=20) == runner.INTERRUPTED
    assert (tmp_path / "saved").read_text() == "yes"


def test_why_cuda_is_not_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpu_answers", lambda: False)
    assert runner.usable_backends() == {"cpu": None, "cuda": "no NVIDIA GPU answers"}
    monkeypatch.setattr(machine, "gpu_answers", lambda: True)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    assert "no nvcc" in str(runner.usable_backends()["cuda"])
