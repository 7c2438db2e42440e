# SPDX-License-Identifier: Apache-2.0
"""Planted noise is found again, and the smallest visible change is what it says."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from kdbench.analysis import noise
from kdbench.analysis.robust import robust_sd
from kdbench.analysis.student import t_cdf, t_quantile
from kdbench.results import load

RESULTS = Path(__file__).parents[1] / "results"


def planted(rng: np.random.Generator, within: float, between: float, processes: int, samples: int = 20) -> np.ndarray:
    """Seconds of one build: (processes, samples)."""
    levels = rng.normal(0, between, (processes, 1))
    return 1e-5 * np.exp(levels + rng.normal(0, within, (processes, samples)))


@pytest.mark.parametrize(
    ("within", "between", "processes"),
    [(0.002, 0.005, 5), (0.002, 0.005, 8), (0.01, 0.02, 12), (0.002, 0.002, 24), (0.01, 0.002, 24)],
)
def test_planted_noise_is_found_again(within: float, between: float, processes: int) -> None:
    """On average over runs: sigma_within within 3 %, s_p within 6 %, sigma_between within 10 % where it is as large."""
    rng = np.random.default_rng(processes)
    found = [noise.components(planted(rng, within, between, processes)) for _ in range(300)]
    true = math.sqrt(between**2 + math.pi / 2 * within**2 / 20)
    assert np.mean([each.sigma_within for each in found]) == pytest.approx(within, rel=0.03)
    assert np.mean([each.s_p for each in found]) == pytest.approx(true, rel=0.06)
    if between >= within:
        assert np.mean([each.sigma_between for each in found]) == pytest.approx(between, rel=0.1)
    assert {(each.processes, each.samples) for each in found} == {(processes, 20)}


def test_processes_of_one_kind_have_no_noise_between() -> None:
    rng = np.random.default_rng(1)
    found = [noise.components(planted(rng, 0.005, 0.0, 8)) for _ in range(200)]
    own = math.sqrt(math.pi / 2 / 20) * 0.005
    assert np.median([each.sigma_between for each in found]) <= own
    assert np.mean([each.s_p for each in found]) == pytest.approx(own, rel=0.5)
    assert noise.components([[1.0] * 20] * 8) == noise.Noise(8, 20, 0.0, 0.0, 0.0, 0.0, False)


def test_a_single_outlier_is_robustly_ignored_and_two_kinds_are_not() -> None:
    rng = np.random.default_rng(2)
    samples = planted(rng, 0.002, 0.003, 12)
    samples[3, 5] *= 10
    assert noise.components(samples).sigma_within == pytest.approx(0.002, rel=0.15)
    kinds = planted(rng, 0.002, 0.003, 12)
    kinds[[1, 6, 9]] *= 1.12
    found = noise.components(kinds)
    assert found.several_kinds
    assert found.s_p < 0.01
    assert found.spread > 0.04
    assert found.mde(5) > 0.12  # what the robust sd would have called 1 % is not to be seen


def test_history_pools_commits_of_different_levels() -> None:
    rng = np.random.default_rng(3)
    means = []
    for _ in range(100):
        groups = [planted(rng, 0.002, 0.005, 5) * level for level in (1.0, 1.5, 0.7, 0.7, 3.0)]
        means.append(noise.pooled([*groups, planted(rng, 0.002, 0.005, 1)]))
    assert np.mean([each.s_p for each in means]) == pytest.approx(0.00503, rel=0.06)
    assert means[0].processes == 25


def test_samples_beyond_enough_buy_nothing() -> None:
    found = noise.Noise(8, 20, sigma_within=0.01, sigma_between=0.005, s_p=0.0, spread=0.0, several_kinds=False)
    assert found.enough_samples == 64
    owed = math.pi / 2 * 0.01**2 / 64
    assert math.sqrt(0.005**2 + owed) < 1.05 * 0.005
    assert noise.components([[1.0, 1.01, 0.99]] * 3).enough_samples == 0


def test_mde_factors_are_those_of_the_plan() -> None:
    sizes = (5, 8, 12, 16, 24)
    assert [round(noise.mde_factor(count), 2) for count in sizes] == [3.01, 2.16, 1.69, 1.44, 1.15]
    assert [round(noise.mde_factor(count, paired=True), 2) for count in sizes[1:]] == [1.74, 1.29, 1.07, 0.84]
    assert noise.mde(0.01, 5) == pytest.approx(math.expm1(0.0301), rel=5e-3)
    with pytest.raises(ValueError, match="at least 2"):
        noise.mde(0.01, 1)


@pytest.mark.parametrize("paired", [False, True])
def test_a_change_of_one_mde_is_found_in_nine_of_ten_cases(paired: bool) -> None:
    rng = np.random.default_rng(4)
    processes, spread, runs = 8, 0.01, 4000
    shift = math.log1p(noise.mde(spread, processes, paired=paired))
    if paired:
        p = stats.ttest_1samp(rng.normal(shift, spread, (runs, processes)), 0, axis=1).pvalue
    else:
        sides = rng.normal(0, spread, (runs, processes)), rng.normal(shift, spread, (runs, processes))
        p = stats.ttest_ind(*sides, axis=1).pvalue
    # The sum of two quantiles is a little short of what a noncentral t would ask for.
    assert np.mean(p <= noise.ALPHA) == pytest.approx(noise.POWER, abs=0.035)


def test_how_many_processes_an_effect_needs() -> None:
    assert noise.processes_needed(0.01, 0.02) == 10
    assert noise.mde(0.01, 10) <= 0.02 < noise.mde(0.01, 9)
    assert noise.processes_needed(0.5, 0.02) is None


def test_student_is_student() -> None:
    for freedom in (1, 2, 3, 4, 7, 8, 30, 199):
        for p in (0.01, 0.3, 0.5, 0.9, 0.995, 0.9995):
            assert t_quantile(p, freedom) == pytest.approx(stats.t.ppf(p, freedom), rel=1e-9, abs=1e-12)
            assert t_cdf(t_quantile(p, freedom), freedom) == pytest.approx(p)
    with pytest.raises(ValueError, match="no quantile"):
        t_quantile(1.0, 5)


def test_the_robust_sd_is_right_for_few_values_too() -> None:
    rng = np.random.default_rng(5)
    for count in (2, 3, 5, 8, 9, 10, 20, 50):
        mean = np.mean([robust_sd(row) for row in rng.normal(0, 1, (1500, count))])
        assert mean == pytest.approx(1, rel=0.04)
    assert robust_sd([1.0]) == 0.0


@pytest.mark.parametrize(
    ("samples", "problem"),
    [
        ([[1.0]] * 2, "2 processes"),
        ([], "0 processes"),
        ([[1.0], [2.0], []], "not all finite"),
        ([[1.0], [2.0], [0.0]], "not all finite"),
        ([[1.0], [2.0], [math.nan]], "not all finite"),
    ],
)
def test_what_says_nothing_is_refused(samples: list[list[float]], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        noise.components(samples)


def test_recorded_history_gives_the_noise_of_each_series() -> None:
    frame = noise.from_results(load(RESULTS))
    assert len(frame) > 10
    assert frame["series"].is_unique
    assert (frame["processes"] >= noise.LEAST_PROCESSES).all()
    row = frame.iloc[0]
    assert row["series"] == noise.series_name(row["name"], row["params"])
    found = noise.mde_for(frame, row["series"], row["machine"])
    assert found == pytest.approx(noise.mde(row["spread"], 5))
    assert noise.mde_for(frame, row["series"], row["machine"], 24) < found  # type: ignore[operator]
    assert noise.mde_for(frame, row["series"], "elsewhere") is None
    assert noise.mde_for(frame, row["series"], row["machine"], paired=True) is None


def test_the_last_row_of_a_series_counts() -> None:
    frame = pd.DataFrame({"machine": "box", "series": "s", "spread": [0.1, 0.01], "ratio_spread": [math.nan, 0.002]})
    assert noise.mde_for(frame, "s", "box") == pytest.approx(noise.mde(0.01, 5))
    assert noise.mde_for(frame, "s", "box", 8, paired=True) == pytest.approx(noise.mde(0.002, 8, paired=True))


def test_names_are_asv_s() -> None:
    params = {"backend": "cpu", "workload": "b64"}
    assert noise.series_name("m.C.kern_hot", json.dumps(params)) == "m.C.kern_hot('b64', 'cpu')"
    assert noise.series_name("m.f", {}) == "m.f"
