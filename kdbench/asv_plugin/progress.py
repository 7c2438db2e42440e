# SPDX-License-Identifier: Apache-2.0
"""How far a run has come: what the benchmark in hand has measured, and what a file already holds in full."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asv import util


@dataclass
class Progress:
    """What happened since the last result was added.

    Attributes:
        measured: indices of the parameter combinations that came to an end.
        interrupted: Ctrl-C came.
    """

    measured: list[int] = field(default_factory=list)
    interrupted: bool = False

    def take(self) -> tuple[list[int], bool]:
        """Both, and start afresh."""
        taken = self.measured, self.interrupted
        self.measured, self.interrupted = [], False
        return taken


def is_done(results: Any, benchmark: Mapping[str, Any], index: int, rounds: int) -> bool:
    """Whether ``results`` hold one parameter combination in full: the samples of all rounds.

    n/a is not done: nothing tells a backend that was missing from a combination that was not asked for. Neither is a
    failure, which may have been a passing one: it is tried again, and fails the next run again if it was not.
    """
    name, params = benchmark["name"], benchmark["params"]
    if name not in results.get_result_keys({name: benchmark}):
        return False
    old_params = results.get_result_params(name)
    combination = next(itertools.islice(itertools.product(*params), index, None))
    if combination not in set(itertools.product(*old_params)):
        return False
    value = results.get_result_value(name, params)[index]
    if value is None or util.is_nan(value):
        return False
    if benchmark.get("type") == "track":
        return True  # one value, the same in every process
    stats = results.get_result_stats(name, params)[index] or {}
    wanted = rounds * int(benchmark.get("samples_per_process", 1))
    return int(stats.get("repeat") or 0) >= wanted


class Present:
    """Those benchmarks of a result file that are finished, as the three members that asv's skip rule reads."""

    def __init__(self, results: Any, rounds: int) -> None:
        self.env_name = results.env_name
        self._results = results
        self._rounds = rounds

    def get_result_keys(self, benchmarks: Any) -> set[str]:
        """Names whose selected combinations are all done."""
        return {
            name
            for name, benchmark in benchmarks.items()
            if all(
                is_done(self._results, benchmark, index, self._rounds)
                for index in benchmarks.benchmark_selection.get(name) or [0]
            )
        }

    def get_result_value(self, key: str, params: Any) -> list[float]:
        """Never "failed": what is finished is skipped either way."""
        return [1.0]
