# SPDX-License-Identifier: Apache-2.0
"""kdbench noise: real A/A runs on the CPU, what is kept of them, and what lint says of a file that was touched."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kdbench import cli, native, noise_process, noise_records, noise_run
from kdbench.analysis import noise
from kdbench.errors import InvalidArgument, KdbenchError
from kdbench.lint_noise import check_file

HOT = "bench_tree_accept.TreeAccept.kern_hot('b64-d7-n1-full', 'cpu')"
OTHER = "bench_tree_build.TreeBuild.kern_hot('b15-d7-k8-n1-sharp', 'cpu')"


def fake(series: str, seed: int, library: str = "ab", sd: float = 0.001) -> dict[str, Any]:
    """A process's record."""
    rng = np.random.default_rng(seed)
    samples = 1e-5 * np.exp(rng.normal(0, sd) + rng.normal(0, 0.001, 20))
    benchmark, workload, backend = noise_process.split(series)
    return {
        "benchmark": benchmark,
        "version": "1",
        "params": {"workload": workload, "backend": backend},
        "harness": {"version": "0"},
        "ended": f"2026-11-30T19:14:{seed % 60:02d}",
        "library": {
            "backend": backend,
            "path": "/home/me/x.so",
            "sha256": library,
            "build_info": {"git_commit": "c0ffee"},
        },
        "timing": {"samples_s": samples.tolist()},
        "calibration": None,
        "machine": {"cpu": "c", "environment": {"OMP_WAIT_POLICY": "passive", "KDTREE_NATIVE_DIR": "/home/me/build"}},
    }


@pytest.fixture
def lines(tmp_path: Path) -> Callable[..., Path]:
    """Writes noise.jsonl of machine "box", after a change to its only record."""

    def write(change: Callable[[dict[str, Any]], None] = lambda record: None, end: str = "\n") -> Path:
        records = [fake(HOT, seed) for seed in range(8)]
        line = noise_records.record(HOT, records, machine="box", min_effect=0.02, run="r")
        change(line)
        path = tmp_path / "box" / noise_records.FILE
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(line) + end)
        return path

    return write


def run(*arguments: str) -> int:
    return cli.run_command(["noise", *arguments])


def test_two_quick_workloads_against_themselves(
    cpu_library: native.Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["--backend", "cpu", "--bench", "b64-d7-n1-full'|b15-d7-k8-n1-sharp", "--mode", "hot"]
    sizes = ["--processes", "3", "--samples", "5", "--results", str(tmp_path), "--machine", "box"]
    assert run(*chosen, *sizes, "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert content["schema"] == "kdbench/noise/1"
    assert {row["series"] for row in content["series"]} == {HOT, OTHER}
    for row in content["series"]:
        assert (row["processes"], row["samples"]) == (3, 5)
        assert row["mde"] == pytest.approx(noise.mde(row["spread"], 5))
        assert (row["series"] in content["too_noisy"]) == (row["mde"] > 0.02)
        assert 1e-8 < row["value"] < 1e-2
    path = tmp_path / "box" / "noise.jsonl"
    assert content["path"] == str(path)
    assert list(check_file(path)) == []
    documents = [json.loads(line) for line in path.read_text().splitlines()]
    for document in documents:
        assert document["library"]["sha256"] == cpu_library.digest
        assert all(each["before"]["seconds"]["integer"] > 0 for each in document["calibration"])
        assert [len(each) for each in document["samples_s"]] == [5, 5, 5]
    frame, written = noise_records.read(tmp_path), {each["series"]: each["mde"] for each in documents}
    assert noise.mde_for(frame, HOT, "box") == pytest.approx(written[HOT])
    assert run("--recorded", "--results", str(Path(__file__).parents[1] / "results"), "--bench", "TreeBuild") == 0
    told = capsys.readouterr().out
    assert "can see" in told
    assert "GPU card c502199e48d708c6 -> bfc3e7ccd01666e9" in told
    assert run("--recorded", "--results", str(tmp_path), "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert {row["source"] for row in content["series"]} == {"A/A"}
    assert [row["kernel"] for row in content["calibration"]] == ["copy", "integer", "wide"]
    assert {row["processes"] for row in content["calibration"]} == {6}


def test_series_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def process(series: str, samples: int) -> Mapping[str, Any]:
        asked.append(series)
        return fake(series, len(asked))

    monkeypatch.setattr(noise_run, "_process", process)
    steps: list[noise_run.Progress] = []
    session = noise_run.measure(["a.B.kern_hot('w', 'cpu')", OTHER, HOT], 3, 20, steps.append)
    assert [name[0] for name in asked] == ["a", "b", "b", "b", "b", "a", "a", "b", "b"]
    assert asked[3:6] == asked[2::-1]
    assert {len(records) for records in session.records.values()} == {3}
    assert [(step.done, step.total) for step in steps] == [(at, 9) for at in range(1, 10)]


def test_one_series_that_fails_is_named_and_the_others_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], cpu_library: native.Library
) -> None:
    def process(series: str, samples: int) -> Mapping[str, Any]:
        if series == HOT:
            raise KdbenchError("the output is wrong")
        return fake(series, samples)

    monkeypatch.setattr(noise_run, "_process", process)
    chosen = ["--backend", "cpu", "--bench", "b64-d7-n1-full'|b15-d7-k8-n1-sharp", "--mode", "hot"]
    assert run(*chosen, "--results", str(tmp_path), "--machine", "box") == 2
    assert f"{HOT} failed: the output is wrong" in capsys.readouterr().out
    assert list(noise_records.read(tmp_path)["series"]) == [OTHER]
    assert run(*chosen, "--results", str(tmp_path / "none"), "--dry-run") == 2
    assert not (tmp_path / "none").exists()


def test_what_was_measured_before_an_interrupt_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], cpu_library: native.Library
) -> None:
    count = 0

    def process(series: str, samples: int) -> Mapping[str, Any]:
        nonlocal count
        count += 1
        if count == 8:
            raise KeyboardInterrupt
        return fake(series, count)

    monkeypatch.setattr(noise_run, "_process", process)
    chosen = ["--backend", "cpu", "--bench", "b64-d7-n1-full'|b15-d7-k8-n1-sharp", "--mode", "hot"]
    assert run(*chosen, "--results", str(tmp_path), "--machine", "box", "--json") == 130
    content = json.loads(capsys.readouterr().out)
    assert content["interrupted"] is True
    assert sorted(row["processes"] for row in content["series"]) == [3, 4]


def test_a_noisy_series_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], cpu_library: native.Library
) -> None:
    seeds = iter(range(100))
    monkeypatch.setattr(noise_run, "_process", lambda series, samples: fake(series, next(seeds), sd=0.03))
    chosen = ["--backend", "cpu", "--bench", "TreeAccept.*b64-d7-n1-full'", "--mode", "hot"]
    assert run(*chosen, "--results", str(tmp_path), "--machine", "box") == 0
    assert f"{HOT} (A/A) is too noisy for 2\N{NARROW NO-BREAK SPACE}%" in capsys.readouterr().out


def test_different_libraries_are_no_aa_run() -> None:
    with pytest.raises(ValueError, match="2 different libraries"):
        noise_records.record(
            HOT, [fake(HOT, 1), fake(HOT, 2), fake(HOT, 3, "cd")], machine="box", min_effect=0.02, run="r"
        )


def test_a_line_holds_no_paths(lines: Callable[..., Path]) -> None:
    document = json.loads(lines().read_text())
    assert document["covariates"]["environment"] == {"OMP_WAIT_POLICY": "passive"}
    assert "/home/me" not in json.dumps(document)
    assert document["date"] == "2026-11-30T19:14:07"


def test_the_newest_line_of_a_series_counts_and_torn_ones_do_not(lines: Callable[..., Path], tmp_path: Path) -> None:
    path = lines()
    first = json.loads(path.read_text())
    second = {**first, "run": "s", "samples_s": [[x * (1 + at) for x in first["samples_s"][0]] for at in range(3)]}
    path.write_text("\n".join([json.dumps(first), "[]", json.dumps(second), json.dumps(first)[:400]]))
    (row,) = noise_records.read(tmp_path).to_dict("records")
    assert (row["run"], row["processes"], row["commit"]) == ("s", 3, "c0ffee")


@pytest.mark.parametrize(
    ("change", "end", "problem"),
    [
        (lambda line: None, "", "its last line was not written to its end"),
        (lambda line: line["noise"].update(s_p=1e-9), "\n", "its noise is not that of its samples"),
        (lambda line: line.update(mde=0.5), "\n", "can see 0.5 is written"),
        (lambda line: line.update(min_effect=2), "\n", "min_effect is 2.0"),
        (lambda line: line.update(machine="other"), "\n", "names machine 'other'"),
        (lambda line: line.pop("samples_s"), "\n", "it lacks 'samples_s'"),
        (lambda line: line.update(samples_s=[[1.0], [2.0]]), "\n", "2 processes"),
        (lambda line: line.update(schema="kdbench/x/1"), "\n", "its schema is"),
    ],
)
def test_lint_finds_a_touched_file(
    lines: Callable[..., Path], change: Callable[[dict[str, Any]], Any], end: str, problem: str
) -> None:
    assert list(check_file(lines())) == []
    ((_, found),) = check_file(lines(change, end))
    assert problem in found


def test_kdbench_lint_reads_it(lines: Callable[..., Path], tmp_path: Path) -> None:
    from kdbench.lint import lint

    lines(lambda line: line.update(machine="other"))
    assert any("names machine 'other'" in str(finding) for finding in lint(tmp_path))


def test_the_process_says_what_is_wrong_in_one_sentence(cpu_library: native.Library) -> None:
    for series, problem in [
        ("nonsense", "no series of the form"),
        ("bench_tree_accept.TreeAccept.kern_hot('no-such', 'cpu')", "no-such"),
    ]:
        with pytest.raises(KdbenchError, match=problem):
            noise_run._process(series, 2)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--bench", "("], "no regular expression"),
        (["--bench", "no such series"], "no series fits"),
        (["--backend", "tpu"], "--backend tpu"),
        (["--kernel", "gemm"], "--kernel gemm"),
        (["--mode", "warm"], "--mode warm"),
        (["--min-effect", "2"], "--min-effect 2"),
        (["--recorded", "--results", "/nowhere"], "no results directory"),
        (["--recorded", "--bench", "no such series", "--results", "results"], "fits"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])
    assert run(*arguments) == 1
    assert problem in capsys.readouterr().err


def test_too_few_processes_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="at least 3"):
        noise_run.measure([HOT], 2, 20)
    with pytest.raises(InvalidArgument, match="no series"):
        noise_run.measure([], 3, 20)


def test_asv_s_commit_is_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASV_COMMIT", "f" * 40)
    assert "ASV_COMMIT" not in noise_run._environment()
    assert noise_run._environment()["PATH"] == os.environ["PATH"]


@pytest.mark.gpu
def test_a_gpu_against_itself(tmp_path: Path) -> None:
    chosen = ["--backend", "cuda", "--bench", "TreeBuild.*b64-d7-k16-n1-sharp'", "--mode", "hot", "--processes", "3"]
    assert run(*chosen, "--results", str(tmp_path), "--machine", "box") == 0
    (row,) = noise_records.read(tmp_path).to_dict("records")
    assert row["s_p"] < 0.02
