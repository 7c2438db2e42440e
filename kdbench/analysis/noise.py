# SPDX-License-Identifier: Apache-2.0
"""How noisy a series is within and between processes, and the smallest change that it lets anybody see.

Samples of one process share its memory layout, clocks and neighbours, so that there are two noises, each a standard
deviation of logarithms, that is a relative one:

- ``sigma_within``: of samples around the median of their process, pooled over processes;
- ``sigma_between``: of what differs between processes beyond what their medians owe to ``sigma_within``.

A process's value is the median of its n samples; its sd is ``s_p = sqrt(sigma_between^2 + (pi/2) sigma_within^2 / n)``.
More samples shrink only the second term: beyond ``enough_samples`` they buy nothing, processes do.

The minimum detectable effect (MDE) is the change that a two-sided test at 1 % finds in 90 % of cases: by Student's t,
``(t_0.995 + t_0.90) s_p sqrt(2/P)`` between two groups of P processes, and ``(t_0.995 + t_0.90) s_r / sqrt(P)`` when P
processes measured both sides, s_r being the sd of their log ratios.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from kdbench.analysis.robust import mad_factor, robust_sd
from kdbench.analysis.student import t_quantile

# Of processes a commit that history has by default; what an MDE is stated for when nobody says otherwise.
PROCESSES = 5
ALPHA = 0.01
POWER = 0.90
# Fewer say nothing of what differs between them.
LEAST_PROCESSES = 3
# Processes whose plain sd exceeds their robust one this many times, and is visible, are of more than one kind.
_KINDS = 3.0
_VISIBLE = 0.005


@dataclass(frozen=True)
class Noise:
    """The noise of one series.

    Attributes:
        processes: how many were looked at.
        samples: of each process; 0 when they took different numbers.
        sigma_within, sigma_between, s_p: as above; fractions.
        spread: what MDEs are made of: ``s_p``, or the plain sd of process values when they are of several kinds.
        several_kinds: process values fall apart, e.g. some of them by 12 %: outliers that are no accidents.
    """

    processes: int
    samples: int
    sigma_within: float
    sigma_between: float
    s_p: float
    spread: float
    several_kinds: bool

    @property
    def enough_samples(self) -> int:
        """Samples a process beyond which more of them buy nothing; 0 when processes do not differ."""
        return math.ceil(16 * (self.sigma_within / self.sigma_between) ** 2) if self.sigma_between else 0

    def mde(self, processes: int = PROCESSES) -> float:
        """Smallest relative change that two groups of ``processes`` show, e.g. 0.012."""
        return mde(self.spread, processes)


def components(samples_by_process: Sequence[Sequence[float]]) -> Noise:
    """The noise of one series from the samples of processes that measured the same build.

    Args:
        samples_by_process: seconds, or any positive unit; one sequence a process.

    Raises:
        ValueError: fewer than ``LEAST_PROCESSES`` processes, an empty one, or a sample that is no positive number.
    """
    return pooled([samples_by_process])


def pooled(groups: Sequence[Sequence[Sequence[float]]]) -> Noise:
    """The same from several builds, each with its own level: e.g. the commits of a history.

    Groups with fewer than two processes say nothing of what differs between them, and are left out.

    Raises:
        ValueError: as of ``components``, of the processes of all groups together.
    """
    usable = [[_logs(samples) for samples in group] for group in groups if len(group) > 1]
    processes = [samples for group in usable for samples in group]
    if len(processes) < LEAST_PROCESSES:
        raise ValueError(
            f"{len(processes)} processes say nothing of noise, and at least {LEAST_PROCESSES} are expected"
        )
    within = _pooled_sd(processes)
    values = [[float(np.median(samples)) for samples in group] for group in usable]
    observed = float(np.mean([robust_sd(group) for group in values]))
    # Each value is a median of n samples, whose variance is pi/2 that of a mean; of one sample, its own.
    counts = [len(samples) for samples in processes]
    own = within**2 * float(np.mean([_median_factor(count) / count for count in counts]))
    between = math.sqrt(max(0.0, observed**2 - own))
    s_p = math.sqrt(between**2 + own)
    freedom = sum(len(group) - 1 for group in values)
    plain = math.sqrt(sum(float(np.var(group)) * len(group) for group in values) / freedom)
    several = plain > max(_KINDS * s_p, _VISIBLE)
    count = counts[0] if len(set(counts)) == 1 else 0
    return Noise(len(processes), count, within, between, s_p, plain if several else s_p, several)


def mde(spread: float, processes: int, *, paired: bool = False) -> float:
    """Minimum detectable effect, as a relative change.

    Args:
        spread: sd of logarithms of process values; with ``paired`` of their ratios.
        processes: a side; with ``paired`` those that measured both sides.

    Raises:
        ValueError: fewer than two processes.
    """
    return math.expm1(mde_factor(processes, paired=paired) * spread)


def mde_factor(processes: int, *, paired: bool = False) -> float:
    """What ``spread`` is multiplied by: 3.01 for 5 processes a side; see ``mde``."""
    if processes < 2:
        raise ValueError(f"{processes} processes have no spread, and at least 2 are expected")
    freedom = processes - 1 if paired else 2 * (processes - 1)
    quantiles = t_quantile(1 - ALPHA / 2, freedom) + t_quantile(POWER, freedom)
    return quantiles * math.sqrt((1 if paired else 2) / processes)


def processes_needed(spread: float, effect: float, most: int = 100) -> int | None:
    """Fewest processes a side that see ``effect``; None when even ``most`` do not."""
    return next((count for count in range(2, most + 1) if mde(spread, count) <= effect), None)


def from_results(frame: pd.DataFrame) -> pd.DataFrame:
    """The noise of each series by its recorded history: processes of one commit measured one build.

    Args:
        frame: as from ``kdbench.results.load``.

    Returns:
        One row a series: machine, env, name, params, ``series`` (asv's name with its parameters), unit, min_effect,
        ``commits`` that had two or more processes, and the fields of ``Noise``. Series with too few are left out.
    """
    rows: list[dict[str, Any]] = []
    good = frame[frame["status"] == "ok"]
    keys = ["machine", "env", "name", "params"]
    for place, group in good.groupby(keys, sort=False):
        newest = group.sort_values("order").iloc[-1]
        same = group[group["version"] == newest["version"]]
        builds = [cut for row in same.to_dict("records") if len(cut := _cut(row)) > 1]
        try:
            found = pooled(builds)
        except ValueError:
            continue
        rows.append(
            {
                **dict(zip(keys, place, strict=True)),
                "series": series_name(str(newest["name"]), str(newest["params"])),
                "unit": newest["unit"],
                "min_effect": float(newest["min_effect"]),
                "commits": len(builds),
                **vars(found),
            }
        )
    columns = [*keys, "series", "unit", "min_effect", "commits", *Noise.__dataclass_fields__]
    return pd.DataFrame(rows, columns=columns)


def mde_for(
    noise: pd.DataFrame, series: str, machine: str, processes: int = PROCESSES, *, paired: bool = False
) -> float | None:
    """What can be seen of a series: "can see >= x %".

    Args:
        noise: rows with ``machine``, ``series``, ``spread``, and with ``paired`` also ``ratio_spread``: as from
            ``from_results`` or ``kdbench.noise_records.read``. The last row of a series counts.
        series: asv's name with its parameters, "suite.Class.kern_hot('workload', 'backend')".
        processes, paired: as of ``mde``.

    Returns:
        A relative change, e.g. 0.012; None where the noise is not known.
    """
    column = "ratio_spread" if paired else "spread"
    if column not in noise.columns:
        return None
    found = noise[(noise["series"] == series) & (noise["machine"] == machine)][column].dropna()
    return mde(float(found.iloc[-1]), processes, paired=paired) if len(found) else None


def series_name(benchmark: str, params: str | Mapping[str, Any]) -> str:
    """asv's name of one combination; ``params`` as a mapping or its JSON text, in the benchmark's order."""
    named = json.loads(params) if isinstance(params, str) else params
    # JSON text is sorted by name; the suites' order is workload, backend.
    ordered = sorted(named.items(), key=lambda item: (item[0] != "workload", item[0]))
    return f"{benchmark}({', '.join(repr(value) for _, value in ordered)})" if named else benchmark


def _cut(row: Mapping[str, Any]) -> list[list[float]]:
    """Samples by process; none when they cannot be cut apart."""
    samples, count = list(row["samples"]), len(row["process_medians"])
    if not count or len(samples) % count:
        return []
    size = len(samples) // count
    return [samples[at : at + size] for at in range(0, len(samples), size)]


def _logs(samples: Sequence[float]) -> list[float]:
    if not len(samples) or not all(math.isfinite(value) and value > 0 for value in samples):
        raise ValueError("samples are not all finite numbers above 0")
    return [math.log(value) for value in samples]


def _median_factor(count: int) -> float:
    """Variance of the median of ``count`` normal values, in variances of their mean."""
    return 1.0 if count < 3 else math.pi / 2


def _pooled_sd(processes: Sequence[Sequence[float]]) -> float:
    """Robust sd of samples around the median of their process."""
    many = [samples for samples in processes if len(samples) > 1]
    if not many:
        return 0.0
    residuals = np.concatenate([np.asarray(samples) - np.median(samples) for samples in many])
    # Samples lie nearer to the median of their own process than to its true one.
    size = round(float(np.mean([len(samples) for samples in many])))
    return mad_factor(size) * float(np.median(np.abs(residuals)))
