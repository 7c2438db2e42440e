# SPDX-License-Identifier: Apache-2.0
"""What this machine has for building and measuring, what it lacks, and what to do about it.

Every probe is guarded: one that breaks is a line of the report and never its end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SCHEMA = "kdbench/doctor/1"


@dataclass(frozen=True)
class Finding:
    """What a probe saw.

    Attributes:
        state: "ok", "warn" (works, but numbers suffer), "missing" (something that one can do without is not there) or
            "broken" (does not work, or is needed and not there).
        found: what is there.
        advice: what to do, "" when nothing.
    """

    state: str
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Probe:
    """One line of the report: a name and what was found.

    Attributes:
        needed: ``kdbench run`` cannot measure on the CPU while this is "broken".
    """

    name: str
    finding: Finding
    needed: bool = False


@dataclass(frozen=True)
class Report:
    """All probes, in reading order."""

    probes: tuple[Probe, ...]

    @property
    def can_measure(self) -> bool:
        """Whether ``kdbench run`` has all that it cannot do without."""
        return not any(probe.needed and probe.finding.state == "broken" for probe in self.probes)

    def document(self) -> dict[str, Any]:
        """The report as ``kdbench/doctor/1``."""
        lines = [{"name": p.name, **asdict(p.finding), "needed": p.needed} for p in self.probes]
        return {"schema": SCHEMA, "can_measure": self.can_measure, "probes": lines}


def examine(results_dir: str | os.PathLike[str] = "results") -> Report:
    """Run every probe; never raises.

    Args:
        results_dir: where results would be written.
    """
    from kdbench import doctor_decode as decoding
    from kdbench import doctor_hardware as hardware
    from kdbench import doctor_software as software

    probes: Sequence[tuple[str, Callable[[], Finding], bool]] = [
        ("python", software.python, False),
        ("git", software.git, True),
        ("C++ compiler", software.compiler, True),
        ("cmake", lambda: software.build_tool("cmake"), False),
        ("ninja", lambda: software.build_tool("ninja"), False),
        ("nvcc", software.nvcc, False),
        ("asv", software.asv, True),
        ("report packages", software.report_packages, False),
        ("CPU library", software.cpu_library, True),
        ("CUDA library", software.cuda_library, False),
        ("cupy", software.cupy, False),
        ("BLAS", lambda: decoding.gemm_library("cpu"), False),
        ("cuBLAS", lambda: decoding.gemm_library("cuda"), False),
        ("model files", decoding.readers, False),
        ("shipped model", decoding.model, False),
        ("GPU", hardware.gpu, False),
        ("CPU", hardware.cpu, False),
        ("clock governor", hardware.governor, False),
        ("load", hardware.load, False),
        ("machine name", hardware.machine_name, False),
        ("ceilings", lambda: hardware.floors(Path(results_dir)), False),
        ("results directory", lambda: hardware.writable(Path(results_dir)), False),
    ]
    return Report(tuple(Probe(name, guarded(probe), needed) for name, probe, needed in probes))


def guarded(probe: Callable[[], Finding]) -> Finding:
    """The probe's finding, or what broke it."""
    try:
        return probe()
    except Exception as error:
        # A doctor that dies of what it should diagnose is no use: drivers and packages fail in every way there is.
        return Finding("broken", f"the probe failed with {type(error).__name__}: {error}", "see the message")
