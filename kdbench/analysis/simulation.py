# SPDX-License-Identifier: Apache-2.0
"""Histories with a known step, or none: what a detector of changes is held against.

Noise models around a level of 1, 100 points unless said otherwise; the step multiplies every point from k on. The
constants were chosen on ``TABLE``, ``WEAK`` and, of ``OTHER``, walk and sine, all with ``salt`` 0. ``FURTHER`` were run
only when the constants stood.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kdbench.analysis.segments import Array

TABLE = ("clean", "ar1", "drift", "outlier")
WEAK = ("ar8", "bimodal")
OTHER = ("t3", "walk", "sine", "growing")
FURTHER = ("ar65", "ar9", "bimodal35", "bimodal_down", "ar1_outlier")
NEAR = 3

DESCRIPTIONS = {
    "clean": "normal, independent",
    "ar1": "AR(1), phi = 0.5",
    "drift": "normal, + 2 % over the whole history",
    "outlier": "normal; 5 % of points 5 to 25 % up",
    "t3": "Student t with 3 degrees of freedom, scaled to the noise",
    "ar8": "AR(1), phi = 0.8",
    "walk": "random walk of 0.2 % a point + 0.5 %",
    "sine": "sine of ± 1 %, period 30, + 0.5 %",
    "bimodal": "20 % of points 12 % up, + 0.3 %",
    "growing": "noise that grows from 0.5 to 2 %",
    "ar65": "AR(1), phi = 0.65",
    "ar9": "AR(1), phi = 0.9",
    "bimodal35": "35 % of points 6 % up, + 0.3 %",
    "bimodal_down": "15 % of points 10 % down, + 0.5 %",
    "ar1_outlier": "AR(1), phi = 0.5; 5 % of points 5 to 25 % up",
}
_PHI = {"ar1": 0.5, "ar8": 0.8, "ar65": 0.65, "ar9": 0.9, "ar1_outlier": 0.5}
_MODES = {"bimodal": (0.2, 1.12, 0.003), "bimodal35": (0.35, 1.06, 0.003), "bimodal_down": (0.15, 0.9, 0.005)}

Detector = Callable[[Array], Sequence[tuple[int, float]]]


@dataclass(frozen=True)
class Rates:
    """Parts of the simulated histories, 0 to 1.

    Attributes:
        hit: with a rise found within NEAR points of the true step; NaN without a true step.
        spurious: with a rise found elsewhere.
    """

    hit: float
    spurious: float


def seed_of(model: str, sigma: float, step: float, salt: int = 0) -> int:
    """Seed of a cell; ``salt`` other than 0 gives histories that no constant was chosen on."""
    return round(1e4 * sigma) * 1000 + round(1e3 * step) + sum(map(ord, model)) + salt * 10**8


def noise(rng: np.random.Generator, model: str, sigma: float, size: int = 100) -> Array:
    """Relative deviations of ``size`` points from their level, without outliers and modes."""
    if model in _PHI:
        return autoregressive(rng.normal(0.0, sigma, size), _PHI[model])
    if model in _MODES:
        return rng.normal(0.0, _MODES[model][2], size)
    if model == "t3":
        return np.asarray(sigma / math.sqrt(3.0) * rng.standard_t(3, size), dtype=float)
    if model == "walk":
        walked = np.cumsum(rng.normal(0.0, 0.002, size))
        return np.asarray(walked + rng.normal(0.0, 0.005, size), dtype=float)
    if model == "sine":
        wave = 0.01 * np.sin(2.0 * np.pi * np.arange(size) / 30.0)
        return np.asarray(wave + rng.normal(0.0, 0.005, size), dtype=float)
    if model == "growing":
        return rng.normal(0.0, 1.0, size) * np.linspace(0.005, 0.02, size)
    plain = rng.normal(0.0, sigma, size)
    return plain + np.linspace(0.0, 0.02, size) if model == "drift" else plain


def autoregressive(e: Array, phi: float) -> Array:
    """AR(1) with the standard deviation of ``e``: z[i] = phi z[i - 1] + e[i] sqrt(1 - phi²), z[0] = e[0]."""
    z, scale = e.copy(), math.sqrt(1.0 - phi * phi)
    for i in range(1, len(e)):
        z[i] = phi * z[i - 1] + e[i] * scale
    return z


def spoilt(rng: np.random.Generator, model: str, values: Array) -> Array:
    """The values with the model's outliers, or with its second mode."""
    if model in ("outlier", "ar1_outlier"):
        hit = rng.random(len(values)) < 0.05
        values[hit] *= 1.0 + rng.uniform(0.05, 0.25, int(hit.sum()))
    elif model in _MODES:
        part, factor, _ = _MODES[model]
        values[rng.random(len(values)) < part] *= factor
    return values


def histories(model: str, sigma: float, step: float, count: int, salt: int = 0) -> list[tuple[Array, int]]:
    """``count`` histories of 100 points and where each one's step is."""
    rng = np.random.default_rng(seed_of(model, sigma, step, salt))
    made = []
    for _ in range(count):
        values = 1.0 + noise(rng, model, sigma)
        k = int(rng.integers(30, 80))
        values[k:] *= 1.0 + step
        made.append((spoilt(rng, model, values), k))
    return made


def rates(detector: Detector, model: str, sigma: float, step: float, count: int = 200, salt: int = 0) -> Rates:
    """How often a detector finds the step, and a rise where there is none."""
    hits = spurious = 0
    for values, k in histories(model, sigma, step, count, salt):
        rises = [at for at, change in detector(values) if change > 0]
        if step:
            hits += any(abs(at - k) <= NEAR for at in rises)
            spurious += any(abs(at - k) > NEAR for at in rises)
        else:
            spurious += bool(rises)
    return Rates(hits / count if step else math.nan, spurious / count)


def undone(detector: Detector, step: float, length: int, count: int = 300) -> Rates:
    """Noise of 1 %, a step at 40 that is undone ``length`` points later: how often the rise is found."""
    rng = np.random.default_rng(seed_of("undone", 0.01, step) + length)
    hits = spurious = 0
    for _ in range(count):
        values = 1.0 + rng.normal(0.0, 0.01, 100)
        values[40 : 40 + length] *= 1.0 + step
        rises = [at for at, change in detector(values) if change > 0]
        hits += any(abs(at - 40) <= NEAR for at in rises)
        spurious += any(abs(at - 40) > NEAR for at in rises)
    return Rates(hits / count, spurious / count)


def latency(
    detector: Detector, model: str, step: float, after: int, before: int = 60, count: int = 200, near: int = 2
) -> float:
    """Noise of 1 %, ``before`` points and ``after`` more at the new level: how often the rise is found.

    Without a step: how often a rise is found in the last 12 points.
    """
    rng = np.random.default_rng(seed_of(model, 0.01, step) + 10_000 * after + before)
    found = 0
    for _ in range(count):
        values = 1.0 + noise(rng, model, 0.01, before + after)
        values[before:] *= 1.0 + step
        rises = [at for at, change in detector(spoilt(rng, model, values)) if change > 0]
        found += any(abs(at - before) <= near if step else at >= before + after - 12 for at in rises)
    return found / count


def creep(detector: Detector, slope: float = 0.002, over: int = 30, count: int = 300) -> float:
    """Noise of 1 %, 0.2 % a point over 30 of 100 points: how often any rise is reported."""
    rng = np.random.default_rng(seed_of("creep", 0.01, slope))
    found = 0
    for _ in range(count):
        k = int(rng.integers(20, 50))
        ramp = np.clip(np.arange(100) - k, 0, over) * slope
        found += any(change > 0 for _, change in detector((1.0 + ramp) * (1.0 + rng.normal(0.0, 0.01, 100))))
    return found / count


def long_histories(series: int, points: int) -> list[list[float]]:
    """Noise of 1 %, three steps of − 4 to + 8 % each: for timing."""
    rng = np.random.default_rng(series + points)
    made = []
    for _ in range(series):
        values = 1.0 + rng.normal(0.0, 0.01, points)
        for k in rng.integers(points // 20, points - points // 20, 3):
            values[k:] *= 1.0 + rng.choice([-0.04, 0.05, 0.08])
        made.append(values.tolist())
    return made
