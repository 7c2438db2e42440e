# SPDX-License-Identifier: Apache-2.0
"""What NVML and the driver tell about the GPU, read without touching it: no context, no change of any setting."""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_SMI_TIMEOUT_S = 20


@functools.cache
def model() -> str | None:
    """Name of the first usable GPU, e.g. "NVIDIA H200"; None when no driver answers or none is visible."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None
    handle = _handle()
    if handle is not None:
        name = _nvml().nvmlDeviceGetName(handle)
        return name.decode() if isinstance(name, bytes) else str(name)
    return _model_from_proc() or _model_from_smi()


def state() -> dict[str, Any]:
    """Clocks (MHz), temperature (C), power (W), event reasons and throttle times (us) now; {} without NVML."""
    handle, nvml = _handle(), _nvml()
    if handle is None:
        return {}
    return _guarded(
        {
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "event_reasons": lambda: _reason_names(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),
            "throttle_us": lambda: _throttle_times(handle),
        }
    )


def facts() -> dict[str, Any] | None:
    """What stays the same during a process: identity, driver, limits, modes, other processes; None without NVML."""
    handle, nvml = _handle(), _nvml()
    if handle is None:
        return None
    return _guarded(
        {
            "name": model,
            # Hashed: it tells two cards of a model apart without publishing a serial number.
            "uuid_sha256": lambda: hashlib.sha256(str(nvml.nvmlDeviceGetUUID(handle)).encode()).hexdigest()[:16],
            "vbios": lambda: nvml.nvmlDeviceGetVbiosVersion(handle),
            "driver": nvml.nvmlSystemGetDriverVersion,
            "cuda_driver": nvml.nvmlSystemGetCudaDriverVersion_v2,
            "ecc": lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0]),
            "mig": lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]),
            "persistence": lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle)),
            "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
            "max_sm_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
            "max_memory_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "other_processes": lambda: sum(
                process.pid != os.getpid() for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            ),
        }
    )


@functools.cache
def _nvml() -> Any:
    """pynvml, initialised; None when it is not installed or finds no driver."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # NVMLError is a class of the module that may be missing
        return None
    return nvml


@functools.cache
def _handle() -> Any:
    """NVML's handle of the device that CUDA calls 0."""
    nvml = _nvml()
    if nvml is None:
        return None
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() or "0"
    try:
        if first.isdigit():
            return nvml.nvmlDeviceGetHandleByIndex(int(first))
        return nvml.nvmlDeviceGetHandleByUUID(first.encode())
    except Exception:
        return None


def _guarded(probes: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, probe in probes.items():
        try:
            value = probe()
            found[name] = value.decode() if isinstance(value, bytes) else value
        except Exception as error:  # "not supported" on this card, or a newer NVML than the driver's
            found[name] = None
            found[f"{name}_absent"] = f"{type(error).__name__}: {error}"
    return found


_REASONS = {
    "idle": 0x1,
    "applications_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake": 0x80,
    "display_clocks": 0x100,
}


def _reason_names(bits: int) -> list[str]:
    return [name for name, bit in _REASONS.items() if bits & bit]


def _throttle_times(handle: Any) -> dict[str, int]:
    """Accumulated microseconds in each state: flags alone miss what happened between two reads."""
    nvml = _nvml()
    fields = {
        "sw_power_cap": nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP,
        "sw_thermal_slowdown": nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
        "hw_thermal_slowdown": nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
        "hw_power_brake": nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
    }
    values = nvml.nvmlDeviceGetFieldValues(handle, list(fields.values()))
    return {
        name: int(value.value.ullVal) // 1000
        for name, value in zip(fields, values, strict=True)
        if value.nvmlReturn == nvml.NVML_SUCCESS
    }


def _model_from_proc() -> str | None:
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        for line in path.read_text("utf-8", "replace").splitlines():
            key, _, value = line.partition(":")
            if key == "Model" and value.strip():
                return value.strip()
    return None


def _model_from_smi() -> str | None:
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.splitlines()
    return lines[0].strip() if done.returncode == 0 and lines and lines[0].strip() else None
