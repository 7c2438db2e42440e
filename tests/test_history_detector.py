# SPDX-License-Identifier: Apache-2.0
"""The change-point detector: its error rates under simulation, and what it says of histories that are plain to see."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from kdbench.analysis import detect, drift, rivals, simulate
from kdbench.analysis.ranks import one_sided_p, upper_binomial
from kdbench.analysis.segments import noise_of, phi_of, pieces_of
from kdbench.analysis.simulation import FURTHER, autoregressive, creep, latency, rates, seed_of, undone
from kdbench.errors import InvalidArgument

# Per cent detected at steps of 3 % and 5 % by the plain form of the method: the solver, one rank test a boundary.
PLAIN = {
    ("clean", 0.01): (100, 100),
    ("ar1", 0.01): (92, 100),
    ("drift", 0.01): (100, 100),
    ("outlier", 0.01): (97, 99),
    ("clean", 0.02): (44, 98),
    ("ar1", 0.02): (31, 85),
    ("drift", 0.02): (84, 98),
    ("outlier", 0.02): (37, 95),
    ("t3", 0.01): (100, 100),
    ("ar8", 0.01): (82, 100),
    ("walk", 0.01): (91, 100),
    ("sine", 0.01): (92, 100),
    ("bimodal", 0.01): (52, 64),
    ("growing", 0.01): (94, 100),
}
WEAK = {"ar8", "bimodal"}


@pytest.mark.parametrize(("model", "sigma"), PLAIN)
def test_false_alarms_are_rare_and_steps_are_found(model: str, sigma: float) -> None:
    none = rates(rivals.ours, model, sigma, 0.0)
    assert none.spurious <= (0.03 if model in WEAK else 0.01)
    for step, plain in zip((0.03, 0.05), PLAIN[model, sigma], strict=True):
        assert 100 * rates(rivals.ours, model, sigma, step).hit >= plain - 3


@pytest.mark.parametrize("model", sorted(WEAK))
def test_weak_spots_stay_mended_on_other_histories(model: str) -> None:
    assert rates(rivals.ours, model, 0.01, 0.0, salt=1).spurious <= 0.03
    assert 100 * rates(rivals.ours, model, 0.01, 0.05, salt=1).hit >= PLAIN[model, 0.01][1] - 5


@pytest.mark.parametrize("model", FURTHER)
def test_models_that_chose_no_constant(model: str) -> None:
    # At phi = 0.9 a hundred points hold no more than five independent ones.
    assert rates(rivals.ours, model, 0.01, 0.0).spurious <= (0.06 if model == "ar9" else 0.03)


@pytest.mark.parametrize(
    ("step", "length", "least"), [(0.05, 3, 15), (0.05, 5, 89), (0.05, 8, 97), (0.03, 8, 44), (0.03, 12, 61)]
)
def test_undone_steps_are_listed(step: float, length: int, least: int) -> None:
    assert 100 * undone(rivals.ours, step, length, 150).hit >= least


def test_latency() -> None:
    found = [100 * latency(rivals.ours, "clean", 0.05, k) for k in (1, 2, 3, 5, 8)]
    assert found[:2] == [0, 0]
    # Three points are the fewest that a rank test can tell from twenty.
    assert found[2] >= 36
    assert found[3] >= 94
    assert found[4] >= 97
    assert latency(rivals.ours, "clean", 0.0, 12) == 0


@pytest.mark.parametrize(("before", "least"), [(5, 45), (8, 74), (12, 83), (20, 90)])
def test_short_histories(before: int, least: int) -> None:
    assert 100 * latency(rivals.ours, "clean", 0.03, 12, before, near=3) >= least


def test_a_creep_is_always_reported() -> None:
    assert creep(rivals.ours_with_drift, count=100) == 1.0
    assert rates(rivals.ours_with_drift, "clean", 0.01, 0.0).spurious <= 0.01
    assert rates(rivals.ours_with_drift, "ar8", 0.01, 0.0).spurious <= 0.03


def test_a_step_is_where_it_is_and_as_large_as_it_is() -> None:
    values = np.concatenate([np.full(30, 2.0), np.full(20, 2.2)]) * np.exp(
        np.random.default_rng(1).normal(0, 0.005, 50)
    )
    found = detect(values.tolist(), "lower")
    (step,) = found.steps
    assert (step.at, step.start, step.kind, step.worse, step.status) == (30, 29, "step", True, "confirmed")
    assert step.change == pytest.approx(0.1, abs=0.01)
    assert step.before == pytest.approx(2.0, rel=0.01)
    assert (step.points_before, step.points_after) == (20, 20)
    assert step.first <= 30 <= step.last
    assert found.noise == pytest.approx(0.005, rel=0.4)
    (mirrored,) = detect(values.tolist(), "higher").steps
    assert (mirrored.at, mirrored.worse, mirrored.p) == (30, False, step.p)


def test_up_and_down_are_judged_alike() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        values = np.exp(rng.normal(0, 0.01, 80))
        values[40:] *= 1.04
        up, down = detect(values.tolist(), "lower"), detect((1.0 / values).tolist(), "higher")
        assert [(s.at, s.worse, s.p, s.status) for s in up.steps] == [
            (s.at, s.worse, s.p, s.status) for s in down.steps
        ]


def test_an_undone_step_names_what_undid_it() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(1.0, 0.005, 90)
    values[30:60] *= 1.05
    up, down = detect(values.tolist(), "lower").steps
    assert (up.at, up.undone_at, down.at, down.undone_at) == (30, 60, 60, None)
    values[60:] *= 1.03
    up, down = detect(values.tolist(), "lower").steps
    assert up.undone_at is None


def test_short_is_said_and_is_not_no_change() -> None:
    found = detect([1.0] * 6 + [2.0] * 6, "lower")
    assert found.too_short
    assert found.unjudged == 12
    assert math.isnan(found.mde)
    assert not detect([1.0] * 7 + [2.0] * 6, "lower").too_short
    assert [step.at for step in detect([1.0] * 7 + [2.0] * 6, "lower").steps] == [7]


@pytest.mark.parametrize(("before", "after"), [(17, 3), (10, 4), (8, 5), (7, 6)])
def test_unjudged_counts_the_points_that_cannot_tell_yet(before: int, after: int) -> None:
    # Thirteen points can be split as 8 and 5 too.
    assert detect([1.0] * (before + after), "lower").unjudged == min(after, 5) - 1
    assert [s.at for s in detect([1.0] * before + [2.0] * after, "lower").steps] == [before]
    assert not detect([1.0] * (before - 1) + [2.0] * after, "lower").steps


def test_drift_is_told_of_creeping_and_not_of_a_step_that_is_named() -> None:
    rng = np.random.default_rng(5)
    noise = np.exp(rng.normal(0, 0.005, 100))
    creeping = (noise * np.linspace(1.0, 1.08, 100)).tolist()
    crept = drift(creeping, "lower", detect(creeping, "lower"))
    assert crept is not None
    assert crept.change == pytest.approx(0.064, abs=0.015)
    assert (crept.kind, crept.at, crept.worse) == ("drift", 99, True)
    stepped = noise.copy()
    stepped[50:] *= 1.08
    found = detect(stepped.tolist(), "lower")
    assert len(found.steps) == 1
    assert drift(stepped.tolist(), "lower", found) is None
    falling = (1.0 / np.array(creeping)).tolist()
    assert drift(falling, "lower", detect(falling, "lower")) is None
    assert drift(falling, "higher", detect(falling, "higher")) is not None


def test_drift_against_a_release() -> None:
    rng = np.random.default_rng(6)
    values = (np.exp(rng.normal(0, 0.005, 120)) * np.concatenate([np.ones(60), np.linspace(1.0, 1.06, 60)])).tolist()
    found = detect(values, "lower")
    since = drift(values, "lower", found, release=59)
    assert since is not None
    assert since.start == 59
    assert drift(values, "lower", found, release=110) is None


def test_wandering_points_know_their_own_correlation() -> None:
    rng = np.random.default_rng(7)
    found = []
    for _ in range(60):
        y = autoregressive(rng.normal(0, 0.01, 200), 0.7)
        found.append(phi_of(y, pieces_of(y).ends, noise_of(y)))
    assert 0.6 <= float(np.median(found)) <= 0.8


def test_tails_are_scipy_s() -> None:
    rng = np.random.default_rng(8)
    for m, n in ((3, 17), (6, 7), (20, 20), (12, 5)):
        a, b = rng.normal(0.5, 1, m), rng.normal(0, 1, n)
        wanted = scipy.stats.mannwhitneyu(a, b, alternative="greater", method="exact").pvalue
        assert one_sided_p(a, b) == pytest.approx(wanted)
    for k, n, p in ((0, 5, 0.3), (3, 20, 0.1), (20, 20, 0.5), (7, 60, 0.02)):
        assert upper_binomial(k, n, p) == pytest.approx(scipy.stats.binom.sf(k - 1, n, p))


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_values_that_the_solver_would_hang_on_are_refused(bad: float) -> None:
    with pytest.raises(InvalidArgument, match="finite numbers > 0"):
        detect([1.0] * 20 + [bad], "lower")


def test_a_direction_is_needed() -> None:
    with pytest.raises(InvalidArgument, match="direction"):
        detect([1.0] * 20, "")


def test_constant_and_quantised_series_are_quiet() -> None:
    assert not detect([3.0] * 50, "lower").steps
    rng = np.random.default_rng(9)
    assert not detect((100.0 + rng.integers(0, 2, 100)).tolist(), "lower").steps


def test_cells_have_seeds_of_their_own() -> None:
    assert seed_of("clean", 0.01, 0.03) == 100 * 1000 + 30 + sum(map(ord, "clean"))
    assert seed_of("clean", 0.01, 0.03, 1) != seed_of("clean", 0.01, 0.03)


def test_the_command_prints_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--only", "weak spots", "--series", "2", "--workers", "1"]) == 0
    said = capsys.readouterr().out
    assert "| kdbench |" in said
    assert "| asv publish, 1 % |" in said
