# SPDX-License-Identifier: Apache-2.0
"""One process of a paired comparison: ``python -m kdbench.paired.worker PLAN``; answers are lines of JSON on stdout.

It loads both libraries from files of their own, and measures one series after the other: outputs of both sides checked,
one block thrown away, whose outputs are checked again, then ABBA blocks.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from kdbench import decode_workloads, machine, native, workloads
from kdbench.errors import KdbenchError
from kdbench.golden import DigestMismatch
from kdbench.native import Library
from kdbench.paired.plan import DONE, SIDES, Answer, Item, Plan, order
from kdbench.paired.twin import TwinSubject, checksum
from kdbench.timing import poison

# Counters whose growth means that the chip was held back by heat or by its board, not by its power limit.
_SLOWDOWNS = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake")


class Letters(Protocol):
    """What times one side."""

    calls: int
    blocks: int

    def letter(self, side: int) -> tuple[float, float | None]:
        """Seconds, and a clock."""


class Worker:
    """Both libraries loaded, ready to measure."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._shared = Path(plan.shared)
        self._libraries: dict[tuple[int, str], tuple[Library, Library]] = {}
        self._subject: TwinSubject | None = None
        self._stream: Any = None

    def answer(self, item: Item) -> Answer:
        """Measure one series; what keeps it from being measured is the answer's error."""
        start = time.perf_counter()
        before = machine.gpu_state() if item.backend == "cuda" else {}
        try:
            letters, check = self._ready(item)
            taken, first = self._blocks(letters, check)
        except (KdbenchError, MemoryError) as error:
            self._subject = None
            return Answer(item.series, error=str(error) or type(error).__name__, seconds=time.perf_counter() - start)
        mark = _mark(before, machine.gpu_state()) if before else ""
        return Answer(item.series, tuple(taken), tuple(first), letters.calls, mark, "", time.perf_counter() - start)

    def _ready(self, item: Item) -> tuple[Letters, Callable[[int | None], None]]:
        libraries = self._pair(item.pair, item.backend)
        if item.kernel == decode_workloads.KERNEL:
            from kdbench.paired.decode_letters import DecodeLetters

            return DecodeLetters(item.workload, item.backend, libraries), lambda side: None
        subject = self._subject
        if subject is not None and (subject.workload.name, subject.backend) == (item.workload, item.backend):
            subject.use(libraries)
        else:
            subject = self._subject = None  # its memory first
            subject = TwinSubject(workloads.get(item.workload), item.backend, libraries, self._shared)
        self._subject = subject
        sums = subject.verify_both()
        letters: Letters
        if item.backend == "cuda":
            from kdbench.paired.gpu_letters import GpuLetters

            letters = GpuLetters(self._gpu_stream(), subject, item.mode)
        else:
            from kdbench.paired.cpu_letters import CpuLetters

            letters = CpuLetters(subject, item.mode)

        def check(side: int | None) -> None:
            call = subject.twins[0][side or 0]
            if side is None:
                for twin in subject.twins:
                    poison(twin[0])  # the buffers are both sides'
                self._wait()
            elif (item.backend == "cuda" or letters.calls >= len(subject.twins)) and checksum(call) != sums[side]:
                subject.check(call)  # says what is wrong, if it is not rounding
                raise DigestMismatch(f"{SIDES[side]} writes other bits when it is timed than when it was checked")

        return letters, check

    def _blocks(
        self, letters: Letters, check: Callable[[int | None], None]
    ) -> tuple[list[tuple[tuple[float, float | None], ...]], list[int]]:
        for side in order(0, self._plan.index)[:2]:
            check(None)
            letters.letter(side)
            check(side)
        taken, first = [], []
        gc.collect()
        gc.disable()
        try:
            for block in range(-1, letters.blocks):  # the first one is thrown away
                sides = order(block, self._plan.index)
                found = tuple(letters.letter(side) for side in sides)
                if block >= 0:
                    taken.append(found)
                    first.append(sides[0])
        finally:
            gc.enable()
        return taken, first

    def _pair(self, pair: int, backend: str) -> tuple[Library, Library]:
        key = (pair, backend)
        if key not in self._libraries:
            files = self._plan.libraries[pair]
            # Loaded in turn: whatever the place in memory does to code, it does to either side.
            sides = (1, 0) if self._plan.index % 2 else (0, 1)
            loaded = {side: native.load_file(files[SIDES[side]][backend], backend) for side in sides}
            if loaded[0]._dll._handle == loaded[1]._dll._handle:
                raise KdbenchError("both sides are one library in memory: their files must be copies, and no links")
            self._libraries[key] = (loaded[0], loaded[1])
        return self._libraries[key]

    def _gpu_stream(self) -> Any:
        if self._stream is None:
            import cupy

            self._stream = cupy.cuda.Stream(non_blocking=True)
        self._wait()
        return self._stream

    def _wait(self) -> None:
        if self._stream is not None:
            import cupy

            cupy.cuda.Device().synchronize()


def _mark(before: dict[str, Any], after: dict[str, Any]) -> str:
    old, new = before.get("throttle_us") or {}, after.get("throttle_us") or {}
    grown = [name for name in _SLOWDOWNS if new.get(name, 0) > old.get(name, 0)]
    return f"{', '.join(grown)} while it ran" if grown else ""


def main(arguments: list[str]) -> int:
    """Entry point."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # Whatever a library prints must not end up between answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker(plan := Plan.read(Path(arguments[0])))
    for item in plan.items:
        answers.write(worker.answer(item).line() + "\n")
        answers.flush()
    answers.write(f'{{"{DONE}": true}}\n')
    answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
