# SPDX-License-Identifier: Apache-2.0
"""The verdicts: exact statistics against scipy, error rates by simulation, and which commit of a history is named."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from asv_writer import AsvDirectory, benchmark, planted, processes

from kdbench.analysis import changes, coverage, events, judge, newest, readable
from kdbench.analysis.compare import measurement, wander
from kdbench.analysis.ranks import median_interval, rank_p, shift_interval, smallest_p
from kdbench.analysis.verdict import Measurement
from kdbench.results import load


def test_rank_p_is_scipy_s_exact_test() -> None:
    rng = np.random.default_rng(3)
    for m, n in itertools.product((1, 2, 3, 5, 8), (1, 4, 5, 12)):
        a, b = rng.normal(0.5, 1, m), rng.normal(0, 1, n)
        wanted = scipy.stats.mannwhitneyu(a, b, alternative="two-sided", method="exact").pvalue
        assert rank_p(a, b) == pytest.approx(wanted)


def test_ties_never_help_the_claim() -> None:
    rng = np.random.default_rng(4)
    a, b = [1.0, 2.0, 2.0, 3.0, 3.0], [2.0, 3.0, 3.0, 4.0, 4.0]
    broken = [rank_p(a + rng.normal(0, 1e-9, 5), b + rng.normal(0, 1e-9, 5)) for _ in range(200)]
    assert rank_p(a, b) >= max(broken)
    assert rank_p([1.0] * 5, [1.0] * 5) == 1.0


def test_shift_interval_covers_what_it_says_and_no_less_than_it_could() -> None:
    rng = np.random.default_rng(5)
    trials = 3000
    inside = wide = 0
    for _ in range(trials):
        found = shift_interval(rng.normal(0.3, 1, 5), rng.normal(0, 1, 5), 0.90)
        assert found is not None
        inside += found[0] <= 0.3 <= found[1]
        wide += found[1] - found[0] > 4
    assert 0.88 <= inside / trials <= 0.94
    assert wide < 0.05 * trials


def test_too_few_values_have_no_interval() -> None:
    assert smallest_p(5, 5) == pytest.approx(2 / 252)
    assert shift_interval([1.0, 2.0], [1.0, 2.0], 0.90) is None
    assert shift_interval([1.0, 2.0, 3.0], [5.0, 7.0, 9.0], 0.90) == (-8.0, -2.0)
    assert median_interval([1.0], 0.9) is None


@pytest.mark.parametrize(("count", "ranks", "coverage_"), [(2, (0, 1), 0.5), (5, (0, 4), 0.9375), (8, (1, 6), 0.9297)])
def test_median_interval_is_from_order_statistics(count: int, ranks: tuple[int, int], coverage_: float) -> None:
    values = [float(x) for x in range(count)]
    found = median_interval(values[::-1], 0.90)
    assert found == (ranks[0], ranks[1], pytest.approx(coverage_, abs=1e-4))


def one(rng: np.random.Generator, sd: float, count: int = 5, level: float = 1.0) -> Measurement:
    cells = np.array(processes(rng, level, sd, count))
    return Measurement(float(np.median(cells)), process_medians=tuple(np.median(cells, axis=1)))


def share(word: str, sd: float, *, count: int = 5, level: float = 1.0, trials: int = 1500, **extra: Any) -> float:
    """How often a build that is ``level`` times as slow gets this verdict."""
    rng = np.random.default_rng(int(1e4 * sd) + count)
    verdicts = [
        judge(one(rng, sd, count, level), one(rng, sd, count), direction="lower", **extra).verdict
        for _ in range(trials)
    ]
    return verdicts.count(word) / trials


@pytest.mark.parametrize("count", [2, 3, 5, 8])
@pytest.mark.parametrize("sd", [0.002, 0.005, 0.01, 0.02])
def test_identical_builds_are_seldom_called_different(sd: float, count: int) -> None:
    assert share("slower", sd, count=count, trials=800) + share("faster", sd, count=count, trials=800) <= 0.02


def test_a_clear_step_is_found_with_five_processes() -> None:
    assert share("slower", 0.005, level=1.05, trials=300) == 1.0
    assert share("faster", 0.005, level=1 / 1.05, trials=300) == 1.0
    assert share("slower", 0.01, level=1.05) >= 0.95


def test_same_is_shown_and_not_assumed() -> None:
    assert share("same", 0.005) >= 0.95
    # Two one-sided tests at 5 %: a build slower by the whole threshold is seldom called the same.
    for sd in (0.002, 0.005, 0.01, 0.02):
        assert share("same", sd, level=1.0201) <= 0.06
    assert share("ambiguous", 0.05) >= 0.9


def test_identical_builds_with_two_modes_are_not_called_different() -> None:
    rng = np.random.default_rng(6)

    def bimodal() -> Measurement:
        levels = np.where(rng.random(2) < 0.5, 1.12, 1.0) * np.exp(rng.normal(0, 0.002, 2))
        return Measurement(float(np.median(levels)), process_medians=tuple(levels))

    verdicts = [judge(bimodal(), bimodal(), direction="lower").verdict for _ in range(500)]
    assert set(verdicts) == {"ambiguous"}


def by_intervals(rng: np.random.Generator, sd: float) -> Measurement:
    """What asv stores of two processes of ten samples, samples dropped."""
    cells = np.array(processes(rng, 1.0, sd, 2, 10)).ravel()
    low, high = np.sort(cells)[[3, 16]]
    return Measurement(float(np.median(cells)), float(low), float(high))


@pytest.mark.parametrize("sd", [0.005, 0.01, 0.02])
def test_foreign_intervals_of_identical_builds_are_seldom_called_different(sd: float) -> None:
    rng = np.random.default_rng(8)
    verdicts = [judge(by_intervals(rng, sd), by_intervals(rng, sd), direction="lower").verdict for _ in range(2000)]
    assert (verdicts.count("slower") + verdicts.count("faster")) / 2000 <= 0.02


def test_intervals_and_single_numbers_are_judged_by_size_too() -> None:
    def verdict(new: Measurement, old: Measurement, direction: str = "lower") -> str:
        return judge(new, old, direction=direction).verdict

    old = Measurement(1.0, 0.99, 1.01)
    assert verdict(Measurement(1.2, 1.18, 1.22), old) == "slower"
    assert verdict(Measurement(1.2, 1.005, 1.3), old) == "ambiguous"
    assert verdict(Measurement(1.03, 1.025, 1.035), old) == "ambiguous"
    assert verdict(Measurement(1.0, 0.995, 1.005), Measurement(1.0, 0.999, 1.001)) == "same"
    assert verdict(Measurement(0.75), Measurement(1.0), "higher") == "slower"
    assert verdict(Measurement(1.25), Measurement(1.0), "higher") == "faster"
    assert verdict(Measurement(1.03), Measurement(1.0)) == "ambiguous"
    assert verdict(Measurement(1.01), Measurement(1.0)) == "same"
    # One known process a side: 7 % is no finding, 30 % is.
    assert verdict(Measurement(1.07, 1.06, 1.08, (1.07,)), Measurement(1.0, 0.99, 1.01, (1.0,))) == "ambiguous"
    assert verdict(Measurement(1.3, 1.29, 1.31, (1.3,)), Measurement(1.0, 0.99, 1.01, (1.0,))) == "slower"


def test_few_processes_claim_only_what_nobody_could_doubt() -> None:
    old = Measurement(1.0, process_medians=(0.99, 1.0, 1.01))
    doubled = judge(Measurement(2.0, process_medians=(1.99, 2.0, 2.01)), old, direction="lower")
    assert (doubled.verdict, doubled.evidence) == ("slower", "few")
    tenth = judge(Measurement(1.1, process_medians=(1.09, 1.1, 1.11)), old, direction="lower")
    assert tenth.verdict == "ambiguous"
    assert "too few processes" in tenth.reason


def test_direction_turns_the_word_and_not_the_number() -> None:
    rng = np.random.default_rng(9)
    new, old = one(rng, 0.005, level=0.9), one(rng, 0.005)
    drop = judge(new, old, direction="higher")
    assert drop.verdict == "slower"
    assert judge(new, old, direction="lower").verdict == "faster"
    assert -0.12 < drop.change < -0.08
    assert drop.change_low < drop.change < drop.change_high < 0
    assert drop.p == pytest.approx(2 / 252)


def test_the_benchmark_s_own_smallest_effect_counts() -> None:
    rng = np.random.default_rng(10)
    new, old = one(rng, 0.002, level=1.05), one(rng, 0.002)
    assert judge(new, old, direction="lower").verdict == "slower"
    large = judge(new, old, direction="lower", min_effect=0.10)
    assert (large.verdict, large.threshold) == ("same", 0.10)
    assert judge(new, old, direction="lower", min_effect=0.001).threshold == 0.02


def test_processes_and_value_that_disagree_claim_nothing() -> None:
    # Half of the processes are fast and half slow, as with huge pages or without. Nearly every process of the new build
    # is slower than its like of the old one, and still the median over all samples drops by 15 %.
    old = [[1.0, 1.0, 1.19]] * 10 + [[1.2, 1.2, 1.2]] * 10
    new = [[1.01, 1.01, 1.01]] * 10 + [[1.005, 1.21, 1.21]] * 10
    sides = [
        Measurement(float(np.median(cells)), process_medians=tuple(np.median(cells, axis=1)))
        for cells in (np.array(new), np.array(old))
    ]
    found = judge(*sides, direction="lower")
    assert found.p < 0.01
    assert found.change < -0.1
    assert found.verdict == "ambiguous"
    assert found.change_low == found.change < 0 < found.change_high


def test_zero_and_negative_numbers_have_no_ratio() -> None:
    assert judge(Measurement(0.0), Measurement(0.0), direction="lower").verdict == "same"
    for new, old in ((1.0, 0.0), (0.0, 1.0), (-1.0, 1.0)):
        found = judge(Measurement(new), Measurement(old), direction="lower")
        assert found.verdict == "ambiguous"
        assert math.isnan(found.change)


@pytest.mark.parametrize("seed", range(5))
def test_a_planted_slow_commit_is_named_and_no_other(tmp_path: Path, seed: int) -> None:
    hashes = planted(tmp_path / "results", tmp_path / "repo", seed=seed)
    judged = changes(load(tmp_path / "results", tmp_path / "repo"))
    found = events(judged)
    assert set(found["commit"]) == {hashes[7]}
    assert dict(zip(found["name"], found["verdict"], strict=True)) == {
        "bench.Kern.kern_hot": "slower",
        "bench.track_tok_s": "slower",
    }
    assert set(found["params"]) == {'{"backend": "cpu", "workload": "b"}', "{}"}
    assert set(found["before"]) == {hashes[6]}
    assert set(found["direct"]) == {True}
    assert set(found["state"]) == {"standing"}
    throughput = found[found["name"] == "bench.track_tok_s"].iloc[0]
    assert -0.10 < throughput["change"] < -0.05


def sha(day: int) -> str:
    """A hash that differs in its first eight digits: asv names files by these."""
    return f"{day:08x}" * 5


def history(tmp_path: Path, levels: list[Any], **meta: Any) -> pd.DataFrame:
    """Judged history of one series; a level is a time in s, None (failed), NaN (skipped) or "absent"."""
    directory = AsvDirectory(tmp_path / "results", [benchmark("s.kern_x", **meta), benchmark("s.kern_y")])
    rng = np.random.default_rng(11)
    for day, level in enumerate(levels):
        cell = processes(rng, level, 0.003) if isinstance(level, float) and level == level else level
        other = processes(rng, 1.0, 0.003)
        cells = {"s.kern_y": [other]} if level == "absent" else {"s.kern_x": [cell], "s.kern_y": [other]}
        directory.add(sha(day), cells, day=day)
    return changes(load(tmp_path / "results"))


def line(judged: pd.DataFrame, name: str = "s.kern_x") -> pd.DataFrame:
    return judged[judged["name"] == name]


def test_an_undone_slowdown_stays_in_the_history_with_who_undid_it(tmp_path: Path) -> None:
    judged = line(history(tmp_path, [1.0, 1.0, 1.2, 1.2, 1.0, 1.0]))
    assert list(judged["verdict"]) == ["new", "same", "slower", "same", "faster", "same"]
    slow = judged.iloc[2]
    assert (slow["state"], slow["undone_by"]) == ("undone", sha(4))


def test_a_slowdown_that_came_back_stands_since_it_came_back(tmp_path: Path) -> None:
    judged = line(history(tmp_path, [1.0, 1.2, 1.0, 1.2, 1.1, 1.1]))
    assert list(judged["verdict"]) == ["new", "slower", "faster", "slower", "faster", "same"]
    assert list(judged["state"]) == ["", "undone", "", "standing", "", ""]
    assert judged.iloc[1]["undone_by"] == sha(2)


def test_gaps_are_crossed_and_said(tmp_path: Path) -> None:
    judged = line(history(tmp_path, [1.0, None, math.nan, 1.3]))
    assert list(judged["verdict"]) == ["new", "missing", "missing", "slower"]
    assert list(judged["status"]) == ["ok", "failed", "skipped", "ok"]
    last = judged.iloc[3]
    assert last["before"] == sha(0)
    assert last["direct"] is None
    fell = events(judged)
    assert list(fell["commit"]) == [sha(1), sha(3)]


def test_the_predecessor_may_not_be_the_direct_parent(tmp_path: Path) -> None:
    hashes = planted(tmp_path / "results", tmp_path / "repo", commits=4, slow_at=99)
    for path in (tmp_path / "results" / "box").glob(f"{hashes[2][:8]}*"):
        path.unlink()
    latest = newest(changes(load(tmp_path / "results", tmp_path / "repo")))
    measured = latest[latest["status"] == "ok"]
    assert set(measured["before"]) == {hashes[1]}
    assert set(measured["direct"]) == {False}


def test_the_newest_commit_is_the_machine_s_and_not_the_series_s(tmp_path: Path) -> None:
    judged = history(tmp_path, [1.0, 1.0, "absent"])
    latest = newest(judged)
    assert len(latest) == 2
    gone = line(latest).iloc[0]
    assert (gone["verdict"], gone["status"], gone["commit"]) == ("missing", "absent", sha(2))
    assert gone["before"] == sha(1)
    assert gone["before_value"] == pytest.approx(1.0, rel=0.02)
    assert "not part of the newest run" in gone["reason"]


def test_another_benchmark_version_is_another_series(tmp_path: Path) -> None:
    directory = AsvDirectory(tmp_path / "results", [benchmark("s.kern_x")])
    rng = np.random.default_rng(12)
    for day, (version, level) in enumerate((("1", 1.0), ("1", 1.0), ("2", 9.0), ("2", 9.0))):
        directory.add(sha(day), {"s.kern_x": [processes(rng, level, 0.003)]}, day=day, version=version)
    judged = changes(load(tmp_path / "results"))
    assert list(judged["verdict"]) == ["new", "same", "new", "same"]
    assert "version changed" in judged.iloc[2]["reason"]


def test_a_series_that_wanders_is_not_accused(tmp_path: Path) -> None:
    # Each commit's processes agree to 0.3 %, and the machine drifts by 4 % between commits.
    rng = np.random.default_rng(13)
    levels = [float(x) for x in np.exp(rng.normal(0, 0.04, 24))]
    judged = line(history(tmp_path, levels))
    claimed = judged["verdict"].isin(["slower", "faster"]).sum()
    assert claimed <= 2
    assert judged["reason"].str.contains("without cause").sum() >= 10
    quiet = line(history(tmp_path / "quiet", [1.0] * 24))
    assert quiet["verdict"].isin(["same", "new"]).all()


def test_wander_leaves_out_the_step_it_is_asked_about() -> None:
    flat = [1.0, 1.01] * 8
    with_step = [x * (2.0 if at >= 8 else 1.0) for at, x in enumerate(flat)]
    assert wander(with_step)[7] == pytest.approx(wander(flat)[7], rel=0.2)
    assert wander([1.0, 2.0, 1.0]) == [0.0, 0.0]
    assert wander([1.0, 0.0, -1.0] * 8)[0] == 0.0


def test_the_interval_of_a_value_is_that_of_its_processes() -> None:
    medians = [1.0, 1.1, 1.2, 1.3, 1.4]
    row = {"value": 1.21, "ci_low": 1.19, "ci_high": 1.23, "process_medians": medians}
    assert (measurement(row).low, measurement(row).high) == (1.0, 1.4)
    # Two processes cannot narrow what asv says, only widen it.
    two = measurement({**row, "process_medians": [1.1, 1.2]})
    assert (two.low, two.high) == (1.1, 1.23)
    none = measurement({**row, "ci_low": math.nan, "ci_high": math.nan, "process_medians": []})
    assert math.isnan(none.low)


def test_empty_frames_pass_through(tmp_path: Path) -> None:
    judged = changes(load(tmp_path))
    assert judged.empty
    for table in (newest(judged), events(judged), readable(judged), coverage(load(tmp_path))):
        assert table.empty


def test_tables_for_people(tmp_path: Path) -> None:
    planted(tmp_path / "results", tmp_path / "repo", commits=4, slow_at=2, effect=1.3)
    frame = load(tmp_path / "results", tmp_path / "repo")
    cover = coverage(frame).iloc[0]
    assert (cover["commits"], cover["series"], cover["ok"], cover["skipped"]) == (4, 7, 16, 12)
    news = readable(events(changes(frame)))
    assert set(news["subject"]) == {"change 2"}
    assert news.iloc[0]["value"].endswith("µs")
    assert news.iloc[0]["change"].startswith("+")
