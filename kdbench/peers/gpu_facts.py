# SPDX-License-Identifier: Apache-2.0
"""What a comparison's records say of the GPU: its name, driver and clock, by NVML or else nvidia-smi."""

from __future__ import annotations

import importlib
import subprocess

from kdbench import gpu_probe

_SMI_TIMEOUT_S = 20


def name(backend: str) -> str | None:
    """The GPU's name as Torch has it; None on a CPU."""
    return None if backend == "cpu" else str(importlib.import_module("torch").cuda.get_device_name())


def sm_clock_mhz() -> float | None:
    """The SM clock now, by NVML or else nvidia-smi; both lag behind the clock of the last tenths of a second."""
    clock = gpu_probe.state().get("sm_clock_mhz") or _asked("clocks.sm") or ""
    try:
        return float(clock)
    except ValueError:
        return None


def driver() -> str | None:
    """The driver's version."""
    known = (gpu_probe.facts() or {}).get("driver")
    return str(known) if known else _asked("driver_version")


def _asked(what: str) -> str | None:
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.split()
    return lines[0] if done.returncode == 0 and lines else None
