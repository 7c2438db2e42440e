# SPDX-License-Identifier: Apache-2.0
"""kdbench doctor's probes of the machine itself."""

from __future__ import annotations

import os
import platform
import tempfile
from pathlib import Path

from kdbench.doctor import Finding

_CPUFREQ = Path("/sys/devices/system/cpu/cpu0/cpufreq")
# Above this share of the cores, somebody else's work shows in the numbers.
_BUSY = 0.25


def gpu() -> Finding:
    """GPUs and driver, through NVML."""
    try:
        import pynvml
    except ImportError:
        return Finding("missing", "no nvidia-ml-py", "pip install 'kdbench[cuda]' on a machine with an NVIDIA GPU")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Finding("missing", f"no NVIDIA driver answers: {error}", "none needed to measure on the CPU")
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(at) for at in range(pynvml.nvmlDeviceGetCount())]
        names = [_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
        busy = sum(len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle)) for handle in handles)
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()
    if not names:
        return Finding("missing", f"driver {driver} lists no GPU", "none needed to measure on the CPU")
    found = f"{', '.join(names)}; driver {driver}"
    if busy:
        return Finding("warn", f"{found}; {busy} other compute process(es)", "measure when the GPU is free")
    return Finding("ok", found)


def cpu() -> Finding:
    """Model, and the cores that this process may use."""
    from kdbench.machine import cpu_model

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Finding("ok", f"{cpu_model()}, {usable} of {os.cpu_count()} core(s) usable, {platform.machine()}")


def governor() -> Finding:
    """How the CPU's clock is governed."""
    path = _CPUFREQ / "scaling_governor"
    if not path.is_file():
        return Finding("ok", "not visible, as usual in a container or virtual machine")
    name = path.read_text(encoding="utf-8").strip()
    if name == "performance":
        return Finding("ok", name)
    return Finding("warn", name, "for steadier numbers: sudo cpupower frequency-set -g performance")


def load() -> Finding:
    """Whether the machine is busy with something else."""
    average = os.getloadavg()[0]
    cores = os.cpu_count() or 1
    found = f"{average:.2f} over the last minute on {cores} core(s)"
    if average > _BUSY * cores:
        return Finding("warn", found, "wait until the machine is quiet: other work shows in the numbers")
    return Finding("ok", found)


def machine_name() -> Finding:
    """The name under which asv will file this machine's results."""
    from kdbench.machine import identity

    return Finding("ok", ", ".join(f"{key} {value}" for key, value in identity().items() if value))


def floors(results_dir: Path) -> Finding:
    """Whether the report can hold GPU results of this machine against what it gives."""
    from kdbench import ceilings, machine

    name = machine.identity()["machine"]
    if not machine.gpu_answers():
        return Finding("ok", "none, as on every machine without a GPU")
    rates = ceilings.read(results_dir).get(name)
    if rates is None:
        return Finding("missing", f"no ceilings of {name}", "kdbench calibrate takes a few seconds of the GPU")
    return Finding("ok", f"{rates.bytes_per_s / 1e12:.4g} TB/s, {rates.flops_per_s / 1e12:.4g} TFLOP/s, {rates.source}")


def writable(folder: Path) -> Finding:
    """Whether results can be written to ``folder``, or the folder made."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        return Finding("broken", f"{folder}: {error.strerror}", "choose another --results, or change its permissions")
    found = str(folder) if folder.is_dir() else f"{folder} (will be made)"
    return Finding("ok", found)


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name
