# SPDX-License-Identifier: Apache-2.0
"""Calibration kernels: fixed machine code whose time changes only when the machine does.

Every measuring process runs them before and after it measures, a tenth of a second each, and keeps what they took in
its record. They label, never divide: dividing by them would add their noise to the figure.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median
from typing import Any, Protocol

# What a reading is made of: sizes, counts and launch shapes. Another number is never compared with this one.
PLAN = 1


class _Kernels(Protocol):
    code: Any

    def probes(self) -> Mapping[str, Any]: ...

    def clock_mhz(self) -> float | None: ...


class Calibration:
    """The calibration kernels of one backend, in this process. Nothing here raises: what is missing has a reason.

    Args:
        backend: "cpu" or "cuda".
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.absent: dict[str, str] = {}
        self._kernels: _Kernels | None = None
        try:
            self._kernels = _load(backend)
        except Exception as error:  # no compiler, no cupy, a full disk: the measurement stands without
            self.absent["all"] = f"{type(error).__name__}: {error}"

    def read(self) -> dict[str, Any] | None:
        """Run each kernel some times; None where there are none.

        Returns:
            ``seconds``: median of each kernel, a launch; ``spread``: its robust relative sd; ``sm_clock_mhz``: as seen
            inside fma, None on a CPU; ``took_s``: the whole reading. A kernel that fails is left out.
        """
        if self._kernels is None:
            return None
        start = time.perf_counter()
        seconds: dict[str, float] = {}
        spread: dict[str, float] = {}
        clock: float | None = None
        for name, probe in self._kernels.probes().items():
            try:
                times = probe()
                middle = median(times)
                if not middle > 0:
                    raise RuntimeError("no time has passed")
                seconds[name] = middle
                spread[name] = 1.4826 * median(abs(value - middle) for value in times) / middle
                clock = self._kernels.clock_mhz() if name == "fma" else clock
            except Exception as error:  # too little memory: the other kernels still tell
                self.absent[name] = f"{type(error).__name__}: {error}"
        return {"seconds": seconds, "spread": spread, "sm_clock_mhz": clock, "took_s": time.perf_counter() - start}

    def record(self, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> dict[str, Any]:
        """Two readings as a part of a process's record, with which code they ran."""
        return {
            "backend": self.backend,
            "plan": PLAN,
            "code": self._kernels.code.record() if self._kernels else None,
            "before": before,
            "after": after,
            "absent": dict(self.absent),
        }


def _load(backend: str) -> _Kernels:
    if backend == "cuda":
        from kdbench.calibration_kernels.cuda import CudaKernels

        return CudaKernels()
    from kdbench.calibration_kernels.cpu import CpuKernels

    return CpuKernels()
