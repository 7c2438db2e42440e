# SPDX-License-Identifier: Apache-2.0
"""Histories of whole results directories: the frames, the labels, and kdbench history as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from asv_writer import AsvDirectory, benchmark, git, git_commit, git_repository

from kdbench import cli
from kdbench.analysis import history, standing_regressions
from kdbench.errors import InvalidArgument
from kdbench.results import load

COMMITS = 40
SLOW_AT = 20
CALM = (0.0, 0.004)


def write(
    root: Path, series: dict[str, np.ndarray[Any, Any]], commits: list[str], entries: list[dict[str, Any]]
) -> AsvDirectory:
    """One number a commit and benchmark, as a project without samples has them."""
    directory = AsvDirectory(root, entries)
    for at, commit in enumerate(commits):
        directory.add(commit, {name: [float(values[at])] for name, values in series.items()}, day=at)
    return directory


@pytest.fixture
def project(tmp_path: Path) -> tuple[Path, list[str]]:
    """A foreign project: a slowdown that stands, one that was undone, a faster one, tokens a second that fall."""
    rng = np.random.default_rng(11)
    commits = git_repository(tmp_path / "repo", [f"change {at}" for at in range(COMMITS)])
    flat = {name: np.exp(rng.normal(*CALM, COMMITS)) for name in ("still", "slower", "undone", "faster", "tok_s")}
    flat["slower"][SLOW_AT:] *= 1.06
    flat["undone"][12:26] *= 1.06
    flat["faster"][SLOW_AT:] /= 1.06
    flat["tok_s"] *= 1000.0
    flat["tok_s"][SLOW_AT:] /= 1.06
    entries = [benchmark(f"bench.time_{name}", type="time") for name in ("still", "slower", "undone", "faster")]
    entries.append(benchmark("bench.track_tok_s", type="track", unit="tok/s", direction="higher"))
    named = {entry["name"]: flat[entry["name"].split("_", 1)[1]] for entry in entries}
    write(tmp_path / "results", named, commits, entries)
    return tmp_path, commits


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.run_command(["history", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def of(changes: pd.DataFrame, name: str) -> list[dict[str, Any]]:
    return changes[changes["name"] == name].to_dict("records")  # type: ignore[return-value]


def test_each_change_names_its_commit(project: tuple[Path, list[str]]) -> None:
    root, commits = project
    found = history(load(root / "results", root / "repo"))
    (slower,) = of(found.changes, "bench.time_slower")
    assert (slower["commit"], slower["previous_commit"]) == (commits[SLOW_AT], commits[SLOW_AT - 1])
    assert slower["subject"] == f"change {SLOW_AT}"
    assert (slower["verdict"], slower["status"], slower["undone_by"]) == ("slower", "confirmed", None)
    assert slower["change"] == pytest.approx(0.06, abs=0.01)
    up, down = of(found.changes, "bench.time_undone")
    assert (up["commit"], up["undone_by"]) == (commits[12], commits[26])
    assert (down["commit"], down["verdict"]) == (commits[26], "faster")
    (faster,) = of(found.changes, "bench.time_faster")
    assert faster["verdict"] == "faster"
    (tokens,) = of(found.changes, "bench.track_tok_s")
    assert (tokens["verdict"], tokens["change"] < 0) == ("slower", True)
    assert not of(found.changes, "bench.time_still")
    assert set(standing_regressions(found.changes)["name"]) == {"bench.time_slower", "bench.track_tok_s"}
    assert (found.series["state"] == "judged").all()
    assert found.series["mde"].between(0.001, 0.05).all()


def test_a_pool_says_the_same(project: tuple[Path, list[str]]) -> None:
    frame = load(project[0] / "results", project[0] / "repo")
    calls: list[int] = []
    alone, shared = history(frame), history(frame, workers=2, on_series=lambda: calls.append(1))
    pd.testing.assert_frame_equal(alone.changes, shared.changes)
    pd.testing.assert_frame_equal(alone.series, shared.series)
    assert len(calls) == len(alone.series) == 5


def test_missing_points_and_nonsense_are_stepped_over(project: tuple[Path, list[str]]) -> None:
    root, commits = project
    frame = load(root / "results", root / "repo")
    spoilt = frame["commit"].isin([commits[3], commits[SLOW_AT]])
    frame.loc[spoilt, ["value", "status"]] = [float("inf"), "ok"]
    frame.loc[frame["commit"] == commits[5], "status"] = "failed"
    frame.loc[frame["commit"] == commits[6], "value"] = -1.0
    (slower,) = of(history(frame).changes, "bench.time_slower")
    assert (slower["commit"], slower["previous_commit"]) == (commits[SLOW_AT + 1], commits[SLOW_AT - 1])


def test_another_version_is_another_series(project: tuple[Path, list[str]]) -> None:
    root = project[0]
    frame = load(root / "results", root / "repo")
    frame.loc[frame["order"] >= SLOW_AT, "version"] = "2"
    found = history(frame)
    assert not of(found.changes, "bench.time_slower")
    assert len(found.series) == 10


def test_short_series_say_so(project: tuple[Path, list[str]]) -> None:
    frame = load(project[0] / "results", project[0] / "repo")
    found = history(frame[frame["order"] < 12])
    assert (found.series["state"] == "too short").all()
    assert found.changes.empty
    assert history(frame[:0]).series.empty


def label(commit: str, **more: Any) -> pd.DataFrame:
    return pd.DataFrame([{"machine": "box", "commit": commit, "what": "driver", "detail": "driver 1 to 2", **more}])


def test_a_step_that_coincides_with_the_machine_is_not_the_code_s(project: tuple[Path, list[str]]) -> None:
    root, commits = project
    frame = load(root / "results", root / "repo")

    def verdict(labels: pd.DataFrame) -> tuple[str, str]:
        (row,) = of(history(frame, labels).changes, "bench.time_slower")
        return row["verdict"], row["reason"]

    assert verdict(label(commits[SLOW_AT])) == ("machine changed", "driver 1 to 2")
    assert verdict(label(commits[SLOW_AT + 2]))[0] == "machine changed"
    assert verdict(label(commits[SLOW_AT + 8]))[0] == "slower"
    assert verdict(label(commits[SLOW_AT], machine="other"))[0] == "slower"
    assert verdict(label(commits[SLOW_AT], kind="note"))[0] == "slower"
    assert verdict(label(commits[SLOW_AT], backend="cuda"))[0] == "slower"
    moved = {"kind": "calibration", "what": "calibration copy", "backend": ""}
    assert verdict(label(commits[SLOW_AT], ratio=1.07, **moved))[0] == "machine changed"
    assert verdict(label(commits[SLOW_AT], ratio=1.02, **moved))[0] == "ambiguous"
    assert verdict(label(commits[SLOW_AT], ratio=0.95, **moved))[0] == "ambiguous"
    found = history(frame, label(commits[SLOW_AT]))
    assert standing_regressions(found.changes).empty
    with pytest.raises(InvalidArgument, match="'detail'"):
        history(frame, pd.DataFrame({"machine": [], "commit": [], "what": []}))


def test_many_series_that_move_alike_point_at_the_machine(tmp_path: Path) -> None:
    rng = np.random.default_rng(12)
    commits = git_repository(tmp_path / "repo", [f"change {at}" for at in range(COMMITS)])
    entries = [benchmark(f"bench.time_{at}", type="time") for at in range(8)]
    series = {entry["name"]: np.exp(rng.normal(*CALM, COMMITS)) for entry in entries}
    for values in list(series.values())[:6]:
        values[SLOW_AT:] *= 1.1
    write(tmp_path / "results", series, commits, entries)
    found = history(load(tmp_path / "results", tmp_path / "repo")).changes
    assert list(found["together"]) == [6] * 6
    assert found["reason"].str.contains("6 of 8 series moved alike").all()


def test_a_benchmark_s_own_least_effect_counts(project: tuple[Path, list[str]]) -> None:
    frame = load(project[0] / "results", project[0] / "repo").assign(min_effect=0.2)
    assert history(frame).changes.empty


def test_drift_is_listed_against_the_best_level_and_the_release(tmp_path: Path) -> None:
    rng = np.random.default_rng(13)
    commits = git_repository(tmp_path / "repo", [f"change {at}" for at in range(100)])
    git(tmp_path / "repo", "tag", "-a", "v1", "-m", "one", commits[40])
    git(tmp_path / "repo", "tag", "v0", commits[5])
    creeping = np.exp(rng.normal(*CALM, 100)) * np.concatenate([np.ones(40), np.linspace(1.0, 1.09, 60)])
    write(tmp_path / "results", {"bench.time_x": creeping}, commits, [benchmark("bench.time_x", type="time")])
    from kdbench.commits import read_releases

    releases = read_releases(tmp_path / "repo")
    assert releases == {commits[40]: "v1", commits[5]: "v0"}
    found = history(load(tmp_path / "results", tmp_path / "repo"), releases=releases).changes
    drifts = found[found["kind"] == "drift"]
    assert list(drifts["against"]) == ["best level", "v1"]
    assert (drifts["verdict"] == "slower").all()
    assert list(drifts["commit"]) == [commits[99]] * 2
    assert drifts["previous_commit"].iloc[1] == commits[40]


def test_the_command_s_json_is_strict_and_whole(
    project: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    root, commits = project
    code, out, err = run(capsys, "--results", str(root / "results"), "--repo", str(root / "repo"), "--json")

    def refuse(word: str) -> None:
        raise AssertionError(word)

    content = json.loads(out, parse_constant=refuse)
    assert code == 0
    assert content["schema"] == "kdbench/history/1"
    wanted = {
        "series", "params", "machine", "commit", "previous_commit", "before", "after", "change_percent", "verdict",
        "p_value", "undone_by",
    }  # fmt: skip
    assert len(content["changes"]) == 5
    assert all(wanted <= change.keys() for change in content["changes"])
    slower = next(change for change in content["changes"] if change["series"] == "bench.time_slower")
    assert slower["params"] == {}
    assert slower["change_percent"] == pytest.approx(6.0, abs=1.0)
    assert content["summary"] == {
        "series": 5,
        "too_short": 0,
        "changes": {"slower (confirmed)": 3, "faster (confirmed)": 2},
    }
    assert "bench.time_slower" in err
    assert commits[SLOW_AT][:10] in err


def test_fail_is_for_slowdowns_that_stand(project: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    here = ("--results", str(project[0] / "results"), "--repo", str(project[0] / "repo"))
    assert run(capsys, *here, "--fail")[0] == 1
    assert run(capsys, *here)[0] == 0
    assert run(capsys, *here, "--fail", "--bench", "undone|faster|still")[0] == 0
    code, out, err = run(capsys, "--results", str(project[0] / "nowhere"), "--fail")
    assert (code, out) == (2, "")
    assert err.startswith("kdbench: no results directory")
    assert run(capsys, "--results", str(project[0] / "nowhere"))[0] == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--bench", "("), "no regular expression"),
        (("--bench", "nothing_fits"), "no series has a name that fits 'nothing_fits'"),
        (("--machine", "other"), "--machine other: choose from box"),
        (("--repo", "/nowhere"), "no repository at /nowhere"),
    ],
)
def test_bad_input_is_one_sentence(
    project: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    code, out, err = run(capsys, "--results", str(project[0] / "results"), *arguments)
    assert (code, out) == (1, "")
    assert sentence in err.splitlines()[-1]


def test_an_empty_directory_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "--results", str(tmp_path))
    assert (code, err) == (1, f"kdbench: no results in {tmp_path}\n")


@pytest.mark.parametrize("said", [None, "sideways"])
def test_our_own_benchmarks_must_say_their_direction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: str | None
) -> None:
    commits = [git_commit(repo, f"change {at}", at) for repo in [_new(tmp_path)] for at in range(3)]
    more = {} if said is None else {"direction": said}
    write(tmp_path / "results", {"bench.kern_hot": np.ones(3)}, commits, [benchmark("bench.kern_hot", **more)])
    code, _, err = run(capsys, "--results", str(tmp_path / "results"))
    assert code == 1
    assert "bench.kern_hot must say its direction" in err


def _new(root: Path) -> Path:
    git(root / "repo", "init", "-q", "-b", "main")
    return root / "repo"


def test_results_without_a_repository_go_by_date(
    project: tuple[Path, list[str]], tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = tmp_path_factory.mktemp("alone") / "results"
    (project[0] / "results").rename(alone)
    code, out, _ = run(capsys, "--results", str(alone), "--bench", "slower")
    assert code == 0
    assert project[1][SLOW_AT][:10] in out
