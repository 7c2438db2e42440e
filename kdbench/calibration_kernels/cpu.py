# SPDX-License-Identifier: Apache-2.0
"""The CPU's calibration kernels: integer (core clock), wide (a core that is shared) and copy (memory)."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from kdbench.calibration_kernels import store

KERNELS = ("integer", "wide", "copy")
_SOURCE = Path(__file__).with_name("kernels.c")
_FLAGS = ("-std=c11", "-O2", "-fPIC", "-shared")
_TIMEOUT_S = 60
_ROUNDS = {"integer": 200_000, "wide": 100_000}
_WORDS = (16 << 20) // 8
_SAMPLES = {"integer": 15, "wide": 15, "copy": 9}


class CpuKernels:
    """The kernels, loaded.

    Raises:
        BuildError: there is no kept code, and no C compiler to make it with.
        OSError: the code cannot be loaded.
    """

    def __init__(self) -> None:
        self.code = store.keep("kernels.so", _SOURCE.read_bytes(), platform.machine(), _compile)
        library = ctypes.CDLL(str(self.code.path))
        self._integer, self._wide, self._copy = library.kdb_integer, library.kdb_wide, library.kdb_copy
        for chain in (self._integer, self._wide):
            chain.argtypes, chain.restype = (ctypes.c_uint64, ctypes.c_uint64), ctypes.c_uint64
        self._copy.argtypes, self._copy.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64), None
        self._source: np.ndarray[Any, Any] = np.arange(_WORDS, dtype=np.uint64)
        self._target: np.ndarray[Any, Any] = np.ones(_WORDS, np.uint64)  # ones: zeros need not be in memory yet

    def probes(self) -> dict[str, Callable[[], list[float]]]:
        """Seconds a call of each kernel, one value a sample."""
        return {"integer": self._integer_times, "wide": self._wide_times, "copy": self._copy_times}

    def clock_mhz(self) -> float | None:
        """Not to be had without privileges: the integer chain tells whether the clock moved."""
        return None

    def _integer_times(self) -> list[float]:
        return _timed(lambda: self._integer(1, _ROUNDS["integer"]), _SAMPLES["integer"])

    def _wide_times(self) -> list[float]:
        return _timed(lambda: self._wide(1, _ROUNDS["wide"]), _SAMPLES["wide"])

    def _copy_times(self) -> list[float]:
        target, source = self._target.ctypes.data, self._source.ctypes.data
        times = _timed(lambda: self._copy(target, source, _WORDS), _SAMPLES["copy"])
        if self._target[-1] != self._source[-1]:
            raise RuntimeError("the copy is not what was copied")
        return times


def _timed(call: Callable[[], Any], samples: int) -> list[float]:
    call()
    times = []
    for _ in range(samples):
        start = perf_counter_ns()
        call()
        times.append((perf_counter_ns() - start) * 1e-9)
    return times


def _compile() -> tuple[bytes, str]:
    compiler = next(
        (path for name in (os.environ.get("CC"), "cc", "gcc", "clang") if name and (path := shutil.which(name))), None
    )
    if compiler is None:
        raise RuntimeError("no C compiler to make the calibration kernels with")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "kernels.so")
        _run([compiler, *_FLAGS, "-o", str(made), str(_SOURCE)])
        version = _run([compiler, "--version"]).splitlines()[0].strip()
        return made.read_bytes(), f"{version} {' '.join(_FLAGS)}"


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        raise RuntimeError(f"{command[0]} fails: {(done.stderr.strip().splitlines() or ['no reason given'])[0]}")
    return done.stdout
