# SPDX-License-Identifier: Apache-2.0
"""asv's regressions page and feed, for benchmarks where more is better as well.

asv takes every rise for a regression. A benchmark whose metadata says ``direction: higher`` is shown to its detector
as 1/value, and what it finds is turned back before it is written.
"""

from __future__ import annotations

from typing import Any, ClassVar

from asv.plugins.regressions import Regressions

Step = tuple[int, int, float, float, float]


class DirectedRegressions(Regressions):
    """Runs after asv's own publisher of the same order, and overwrites regressions.json and regressions.xml."""

    name = "regressions"
    button_label = Regressions.button_label
    description = Regressions.description
    order = Regressions.order

    _benchmarks: ClassVar[Any] = {}

    @classmethod
    def publish(cls, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: Any) -> None:
        """asv's hook."""
        cls._benchmarks = benchmarks
        super().publish(conf, repo, benchmarks, graphs, revisions)

    @classmethod
    def _process_regression(
        cls, regressions: list[Any], revision_to_hash: Any, repo: Any, all_params: Any, graph_data: Any, graph: Any
    ) -> None:
        index, entry_name, steps, threshold = graph_data
        if not higher_is_better(cls._benchmarks, entry_name):
            super()._process_regression(regressions, revision_to_hash, repo, all_params, graph_data, graph)
            return
        before = len(regressions)
        turned = (index, entry_name, [inverted(step) for step in steps], threshold)
        super()._process_regression(regressions, revision_to_hash, repo, all_params, turned, graph)
        for row in regressions[before:]:
            name, path, params, param_index, last, best, jumps = row
            back = [(left, right, 1 / old, 1 / new) for left, right, old, new in jumps]
            row[:] = [name, path, params, param_index, 1 / last, 1 / best, back]


def higher_is_better(benchmarks: Any, entry_name: str) -> bool:
    """Direction of ``name(param, ...)``: only the metadata says so; without any, asv's "lower" stands."""
    benchmark = benchmarks.get(entry_name.partition("(")[0]) or {}
    return bool(benchmark.get("direction") == "higher")


def inverted(step: Step) -> Step:
    """A step of 1/value: (left, right, value, least value, error), the error to first order."""
    left, right, value, _, error = step
    # The detector does not read the least value, and a step does not tell the greatest.
    return left, right, 1 / value, 1 / value, error / value**2
