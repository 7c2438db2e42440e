# SPDX-License-Identifier: Apache-2.0
"""What the processes of a comparison have answered so far, and the verdicts that follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from kdbench import decode_workloads, workloads
from kdbench.analysis.paired import Judgement, Series, judge, next_look
from kdbench.analysis.paired_blocks import ProcessValue, process_value
from kdbench.paired.plan import Answer, Item
from kdbench.paired.types import FAILED, PairedResult

_DIRECTION = "lower"  # every series of a comparison is a time


class Verdicts:
    """Values by series, judged at each look.

    Attributes:
        values: per series, one a process.
        calls: launches behind a letter, of the last process.
        marks: per series, what disturbed each process.
    """

    def __init__(self, items: Sequence[Item], effects: Mapping[str, float], most: int) -> None:
        self._items = {item.series: item for item in items}
        self._effects = effects
        self._most = most
        self.values: dict[str, list[ProcessValue]] = {item.series: [] for item in items}
        self.marks: dict[str, list[str]] = {item.series: [] for item in items}
        self.calls: dict[str, int] = {}
        self._errors: dict[str, str] = {}
        self._results: dict[str, PairedResult] = {item.series: self._result(item) for item in items}

    def add(self, answer: Answer) -> None:
        """Take one process's answer."""
        if answer.error:
            self._errors.setdefault(answer.series, answer.error)
        else:
            self.values[answer.series].append(process_value(answer.letters, answer.first))
            self.marks[answer.series].append(answer.mark)
            self.calls[answer.series] = answer.calls
        self._results[answer.series] = self._result(self._items[answer.series], looking=False)

    def look(self, processes: int) -> None:
        """Judge what has this many processes."""
        for series, values in self.values.items():
            if len(values) == processes:
                self._results[series] = self._result(self._items[series])

    def unsettled(self) -> list[Item]:
        """Series that another process may still decide."""
        return [self._items[series] for series, result in self._results.items() if not result.settled]

    def next_stop(self, done: int) -> int:
        """Processes at the next look; ``done`` when nothing is left."""
        return next_look(done, self._most) if self.unsettled() else done

    def results(self) -> tuple[PairedResult, ...]:
        """As they stand."""
        return tuple(self._results.values())

    def _result(self, item: Item, looking: bool = True) -> PairedResult:
        series, effect = item.series, self._effects[item.series]
        values = self.values[series]
        place = {
            "series": series,
            "kernel": item.kernel,
            "workload": item.workload,
            "backend": item.backend,
            "mode": item.mode,
            "unit": "seconds",
            "direction": _DIRECTION,
            "min_effect": effect,
        }
        if series in self._errors:
            return PairedResult(**place, verdict=FAILED, processes=len(values), reasons=(self._errors[series],))  # type: ignore[arg-type]
        found = judge(_series(item, values, self.marks[series]), effect, most=self._most)
        shown = found if looking else _on_the_way(found)
        return PairedResult(
            **place,  # type: ignore[arg-type]
            verdict=shown.verdict,
            ratio=found.ratio,
            low=found.low,
            high=found.high,
            cycles_ratio=found.cycles_ratio,
            cycles_low=found.cycles_low,
            cycles_high=found.cycles_high,
            base_value=median(value.base_s for value in values) if values else None,
            head_value=median(value.head_s for value in values) if values else None,
            processes=len(values),
            mde=found.mde,
            reasons=shown.reasons,
            settled=shown.settled,
            confidence=found.confidence,
        )


def _series(item: Item, values: Sequence[ProcessValue], marks: Sequence[str]) -> Series:
    memory_bound = item.kernel != decode_workloads.KERNEL and workloads.get(item.workload).roofline == "memory"
    cycles = [value.cycles for value in values if value.cycles is not None]
    clock = [value.clock for value in values if value.clock is not None]
    return Series(
        time=[value.time for value in values],
        # The fixed code's rate on a CPU says that a clock moved, and is no count of cycles.
        cycles=cycles if item.backend == "cuda" and len(cycles) == len(values) else (),
        clock=clock if item.backend == "cpu" and len(clock) == len(values) else (),
        curvature=[value.curvature for value in values if value.curvature is not None],
        marks=marks,
        by_clock=not memory_bound,
    )


def _on_the_way(found: Judgement) -> Judgement:
    return Judgement("AMBIGUOUS", False, reasons=("between two looks",))
