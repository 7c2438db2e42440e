# SPDX-License-Identifier: Apache-2.0
"""What machine this is: a stable identity for asv, and covariates that records keep beside each measurement.

asv starts a new graph whenever any field of its machine entry moves. So the identity holds only what cannot move
without a screwdriver; driver, kernel, clocks and temperatures are covariates.
"""

from __future__ import annotations

import functools
import math
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from kdbench import gpu_probe

_ENVIRONMENT = re.compile(r"^(CUDA_|OMP_|OPENBLAS_|MKL_|KDTREE_|KDBENCH_|MALLOC_|LD_PRELOAD)")
_DISTRIBUTIONS = ("kdbench", "kdtree-native", "numpy", "cupy", "cupy-cuda13x", "cupy-cuda12x", "asv", "asv_runner")


def identity() -> dict[str, str]:
    """asv's machine entry: machine, os, arch, cpu, num_cpu, ram, gpu, all strings.

    The name is the GPU's model ("h200"), else the CPU's with its count ("amd-epyc-2c"). KDBENCH_MACHINE overrides it.
    """
    gpu = gpu_probe.model() or ""
    cpu = cpu_model()
    count = os.cpu_count() or 1
    name = os.environ.get("KDBENCH_MACHINE") or (gpu_slug(gpu) if gpu else f"{slug(cpu)}-{count}c")
    return {
        "machine": name,
        "os": platform.system(),
        "arch": platform.machine(),
        "cpu": cpu,
        "num_cpu": str(count),
        "ram": _rounded_ram(),
        "gpu": gpu,
    }


def covariates() -> dict[str, Any]:
    """Everything that may explain a number, each probe guarded: null when missing, its reason in ``absent``."""
    probes: Mapping[str, Callable[[], Any]] = {
        "cpu": cpu_model,
        "cpu_governor": lambda: _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "cpu_boost": lambda: _read("/sys/devices/system/cpu/cpufreq/boost"),
        "cpu_affinity": lambda: sorted(os.sched_getaffinity(0)),
        "last_level_cache_bytes": last_level_cache_bytes,
        "load_average": lambda: list(os.getloadavg()),
        "steal_ticks": _steal_ticks,
        "kernel": platform.release,
        "container": _container,
        "gpu": gpu_probe.facts,
        "python": lambda: sys.version.split()[0],
        "versions": _versions,
        "environment": lambda: {key: os.environ[key] for key in sorted(os.environ) if _ENVIRONMENT.match(key)},
    }
    found: dict[str, Any] = {}
    absent: dict[str, str] = {}
    for name, probe in probes.items():
        try:
            found[name] = probe()
        except Exception as error:  # a probe that fails must not cost a measurement
            found[name] = None
            absent[name] = f"{type(error).__name__}: {error}"
    return {**found, "absent": absent}


def gpu_state() -> dict[str, Any]:
    """Clocks, temperature, power and throttle reasons of the GPU right now (microseconds, no maximum-clock query)."""
    return gpu_probe.state()


def gpu_answers() -> bool:
    """True when a driver lists a GPU; nothing is initialised on it."""
    return gpu_probe.model() is not None


def cpu_model() -> str:
    """The CPU's own name, e.g. "AMD EPYC 7763 64-Core Processor"."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        text = ""
    found = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", text, re.MULTILINE)
    return " ".join(found[1].split()) if found else platform.processor() or platform.machine()


@functools.cache
def last_level_cache_bytes() -> int | None:
    """Size of the largest cache that CPU 0 sees; None when the kernel does not tell."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        found = re.fullmatch(r"(\d+)([KM]?)", path.read_text().strip())
        if found:
            sizes.append(int(found[1]) << {"": 0, "K": 10, "M": 20}[found[2]])
    return max(sizes, default=None)


def slug(text: str) -> str:
    """A name for folders: "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz" is "intel-xeon-platinum-8481c"."""
    text = re.sub(r"\((R|TM|C)\)|@.*$|\b(CPU|Processor|\d+-Core)\b", " ", text, flags=re.IGNORECASE)
    return "-".join(re.findall(r"[a-z0-9]+", text.lower())) or "unknown"


def gpu_slug(model: str) -> str:
    """A short name of a GPU: "NVIDIA H200" is "h200", "NVIDIA A100-SXM4-80GB" is "a100-sxm4-80gb"."""
    return slug(re.sub(r"\b(NVIDIA|GeForce|Tesla|Quadro)\b", " ", model))


def _rounded_ram() -> str:
    # MemTotal differs by some megabytes between boots and kernels: eighths of a power of two do not.
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    step = max(0.25, 2.0 ** math.floor(math.log2(max(gib, 1.0))) / 8)
    return f"{math.ceil(gib / step) * step:g}GB"


def _versions() -> dict[str, str]:
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _container() -> str | None:
    if Path("/.dockerenv").exists():
        return "docker"
    return os.environ.get("container")  # noqa: SIM112 - systemd and podman write it in lower case


def _steal_ticks() -> int:
    fields = _read("/proc/stat").splitlines()[0].split()
    return int(fields[8])


def _read(path: str) -> str:
    return Path(path).read_text("utf-8", "replace").strip()
