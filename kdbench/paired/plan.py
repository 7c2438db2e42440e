# SPDX-License-Identifier: Apache-2.0
"""What one process of a paired comparison is told, and what it answers, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# Base and head, in the order in which letters are written: A is base, B is head.
SIDES = ("base", "head")
DONE = "done"


def order(block: int, process: int) -> tuple[int, int, int, int]:
    """The sides of a block's four letters, 0 for base: A B B A and B A A B take turns, processes begin differently."""
    return (1, 0, 0, 1) if (block + process) % 2 else (0, 1, 1, 0)


@dataclass(frozen=True)
class Item:
    """One series to measure.

    Attributes:
        series: asv's name, or another that is unique within a plan.
        kernel, workload, backend, mode: what it is; see ``kdbench.paired.types.PairedResult``.
        pair: which pair of libraries, of those in the plan.
    """

    series: str
    kernel: str
    workload: str
    backend: str
    mode: str
    pair: int = 0


@dataclass(frozen=True)
class Plan:
    """One process.

    Attributes:
        index: of the process, from 0; it decides which side goes first.
        libraries: per pair side -> backend -> file.
        items: in the order of measuring.
        shared: folder that the processes of one session share inputs and checksums in.
    """

    index: int
    libraries: tuple[Mapping[str, Mapping[str, str]], ...]
    items: tuple[Item, ...]
    shared: str

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self)), "utf-8")

    @staticmethod
    def read(path: Path) -> Plan:
        """What ``write`` wrote."""
        found = json.loads(path.read_text("utf-8"))
        items = tuple(Item(**item) for item in found["items"])
        return Plan(found["index"], tuple(found["libraries"]), items, found["shared"])


@dataclass(frozen=True)
class Answer:
    """What one process found of one series.

    Attributes:
        series: as in the item.
        letters: per block four (seconds, clock) of A B B A or B A A B; the clock in a unit of its own, or None.
        first: per block the side that went first, 0 for base.
        calls: launches behind one letter.
        mark: what disturbed the machine meanwhile, or "".
        error: why there are no letters, or "".
        seconds: wall time of the series, preparation included.
    """

    series: str
    letters: tuple[tuple[tuple[float, float | None], ...], ...] = ()
    first: tuple[int, ...] = ()
    calls: int = 0
    mark: str = ""
    error: str = ""
    seconds: float = 0.0

    def line(self) -> str:
        """As one line of JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def of(found: Mapping[str, Any]) -> Answer:
        """From what ``line`` wrote."""
        letters = tuple(tuple((pair[0], pair[1]) for pair in block) for block in found["letters"])
        return Answer(**{**found, "letters": letters, "first": tuple(found["first"])})
