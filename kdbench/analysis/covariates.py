# SPDX-License-Identifier: Apache-2.0
"""What changed about a machine between two commits, told by the records of the processes that measured them.

A record is what ``kdbench.result_records.read_records`` gives: a dict of schema ``kdbench/measurement/1``. Of it these
functions read ``machine_name``, ``commit``, ``machine`` (covariates), ``library``, ``timing`` (``gpu_before``,
``gpu_after``) and ``calibration``; what is missing changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import pandas as pd

from kdbench.analysis.calibration_shift import LEAST_PROCESSES, calibrations
from kdbench.analysis.process_records import Label, Record, dig, of_backend, series_of

COLUMNS = ["machine", "commit", "previous_commit", "what", "kind", "backend", "ratio", "detail"]
_CLOCK_MOVE = 0.02
# More marked processes than this and the machine was not itself.
_MARKED = 0.2
_SLOWDOWNS = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake")


def machine_labels(records: Iterable[Record], order: Sequence[str] | Mapping[str, int]) -> pd.DataFrame:
    """What changed of each machine at each commit, against the commit measured before it.

    Args:
        records: of any machines and commits.
        order: the line of commits, oldest first, or each one's place in it; records of others are left out.

    Returns:
        One row a change, columns ``COLUMNS``, by machine and place in the line: ``commit`` is the first one that was
        measured after the change, ``previous_commit`` the last one before it. The others are those of ``Label``.
    """
    place = order if isinstance(order, Mapping) else {commit: at for at, commit in enumerate(order)}
    groups = by_commit(records)
    rows: list[dict[str, Any]] = []
    for machine in sorted({machine for machine, _ in groups}):
        line = sorted((c for m, c in groups if m == machine and c in place), key=lambda c: place[c])
        for before, after in pairwise(line):
            for label in changed(groups[machine, before], groups[machine, after]):
                rows.append({"machine": machine, "commit": after, "previous_commit": before, **asdict(label)})
    return pd.DataFrame(rows, columns=COLUMNS)


def by_commit(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    """Records by (machine, commit), in their order."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((str(record.get("machine_name")), str(record.get("commit"))), []).append(record)
    return groups


def changed(before: Sequence[Record], after: Sequence[Record]) -> tuple[Label, ...]:
    """What differs between two groups of records of one machine; empty when nothing does or nothing is known."""
    # Clocks depend on what was measured: only series that both sides have are compared.
    common = {series_of(record) for record in before} & {series_of(record) for record in after}
    old, new = ([record for record in side if series_of(record) in common] for side in (before, after))
    return tuple([*_facts(before, after), *_states(old, new), *calibrations(old, new)])


# What is the same during a process: name, backend that it bears on ("" all), where it stands, and its text.
_FACTS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("CPU", "", ("machine", "cpu"), "{}"),
    ("kernel", "", ("machine", "kernel"), "{}"),
    ("governor", "", ("machine", "cpu_governor"), "{}"),
    ("boost", "", ("machine", "cpu_boost"), "{}"),
    ("container", "", ("machine", "container"), "{}"),
    ("GPU card", "cuda", ("machine", "gpu", "uuid_sha256"), "{}"),
    ("VBIOS", "cuda", ("machine", "gpu", "vbios"), "{}"),
    ("driver", "cuda", ("machine", "gpu", "driver"), "{}"),
    ("ECC", "cuda", ("machine", "gpu", "ecc"), "{}"),
    ("MIG", "cuda", ("machine", "gpu", "mig"), "{}"),
    ("persistence mode", "cuda", ("machine", "gpu", "persistence"), "{}"),
    ("power limit", "cuda", ("machine", "gpu", "power_limit_w"), "{:g} W"),
    ("maximum SM clock", "cuda", ("machine", "gpu", "max_sm_clock_mhz"), "{:g} MHz"),
    ("maximum memory clock", "cuda", ("machine", "gpu", "max_memory_clock_mhz"), "{:g} MHz"),
)
# What the library was built with; a backend has its own.
_TOOLS = (("compiler", "compiler"), ("CUDA toolkit", "cuda_version"))


def _facts(before: Sequence[Record], after: Sequence[Record]) -> Iterator[Label]:
    for what, backend, keys, text in _FACTS:
        yield from _fact(what, "covariate", backend, text, before, after, partial(_at, keys))
    yield from _fact("CPUs allowed", "covariate", "", "{}", before, after, _cpus)
    for backend in ("cpu", "cuda"):
        for what, key in _TOOLS:
            sides = of_backend(before, backend), of_backend(after, backend)
            yield from _fact(
                what,
                "covariate",
                backend,
                "{}",
                *sides,
                partial(_at, ("library", "build_info", key)),
            )
    digest = ("harness", "stopwatch_sha256")
    yield from _fact("stopwatch", "note", "", "{:.12}", before, after, partial(_at, digest))


def _fact(
    what: str,
    kind: str,
    backend: str,
    text: str,
    before: Sequence[Record],
    after: Sequence[Record],
    value: Callable[[Record], Any],
) -> Iterator[Label]:
    # A value that is missing on one side was not recorded then: nothing says that it was another one.
    old, new = (_distinct(value(record) for record in side) for side in (before, after))
    if old and new and set(old) != set(new):
        shown = [" and ".join(_shown(text, each) for each in side) for side in (old, new)]
        yield Label(what, kind, backend, math.nan, f"{what} {shown[0]} -> {shown[1]}")


def _shown(text: str, value: Hashable) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    try:
        return text.format(value)
    except ValueError:
        return str(value)


def _distinct(values: Iterable[Any]) -> list[Hashable]:
    return sorted({value for value in values if value is not None and isinstance(value, Hashable)}, key=str)


def _at(keys: Sequence[str], record: Record) -> Any:
    return dig(record, *keys)


def _cpus(record: Record) -> int | None:
    allowed = dig(record, "machine", "cpu_affinity")
    return len(allowed) if isinstance(allowed, list) else None


def _states(before: Sequence[Record], after: Sequence[Record]) -> Iterator[Label]:
    """What moves from process to process: clocks, slowdowns, company."""
    old, new = of_backend(before, "cuda"), of_backend(after, "cuda")
    if not old or not new:
        return
    clocks = [[clock for record in side if (clock := sm_clock_mhz(record))] for side in (old, new)]
    if all(len(side) >= LEAST_PROCESSES for side in clocks):
        was, now = (median(side) for side in clocks)
        if abs(now / was - 1) >= _CLOCK_MOVE:
            detail = f"SM clock {was:.0f} -> {now:.0f} MHz"
            yield Label("SM clock", "covariate", "cuda", math.nan, detail)
    for what, marked in (("thermal or hardware slowdown", slowed_down), ("other compute processes", in_company)):
        was, now = (sum(map(marked, side)) / len(side) for side in (old, new))
        if (was > _MARKED) != (now > _MARKED):
            detail = f"{what} in {100 * was:.0f} % -> {100 * now:.0f} % of processes"
            yield Label(what, "covariate", "cuda", math.nan, detail)


def sm_clock_mhz(record: Record) -> float | None:
    """As a calibration kernel saw it after the measurement; what NVML says lags behind and is second best."""
    for clock in (
        dig(record, "calibration", "after", "sm_clock_mhz"),
        dig(record, "timing", "gpu_after", "sm_clock_mhz"),
    ):
        if isinstance(clock, int | float) and clock > 0:
            return float(clock)
    return None


def slowed_down(record: Record) -> bool:
    """True when the GPU's counters of thermal or hardware slowdown grew while the process sampled."""
    before, after = (dig(record, "timing", f"gpu_{when}", "throttle_us") or {} for when in ("before", "after"))
    return any((after.get(name) or 0) > (before.get(name) or 0) for name in _SLOWDOWNS)


def in_company(record: Record) -> bool:
    """True when another process computed on the GPU."""
    return bool(dig(record, "machine", "gpu", "other_processes"))
