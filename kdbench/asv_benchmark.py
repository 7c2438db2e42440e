# SPDX-License-Identifier: Apache-2.0
"""The asv benchmark type that times kernels with ``kdbench.timing``, and the class that suites derive from.

asv's own ``time_*`` re-runs setup between calls and calibrates by wall time, both wrong for a kernel of microseconds.
This type is called once a process, takes its own samples, and hands them to asv for storing. It lives apart from
``kdbench.asv_plugin``: benchmark environments hold asv_runner, but not asv.
"""

from __future__ import annotations

import os
import re
from typing import Any

from asv_runner.benchmarks import benchmark_types
from asv_runner.benchmarks._base import Benchmark, _get_first_attr

from kdbench import native, provenance, workloads
from kdbench.calibration_kernels import Calibration
from kdbench.errors import BackendUnavailable
from kdbench.timing import SAMPLES_PER_PROCESS, Subject

# Fresh processes a point of history: the process is the replicate, so that these count, and samples within them do not.
ROUNDS = 5
# The smallest change that a reader is told of.
MIN_EFFECT = 0.02


class SkippingBenchmark(Benchmark):
    """Keeps the reason of a combination that cannot run here."""

    def do_setup(self) -> Any:
        """Run setup; a combination that cannot run here is n/a, and its reason is kept."""
        try:
            for setup in self._setups:
                setup(*self._current_params)
        except NotImplementedError as error:
            print(f"asv: skipped: {error}")
            provenance.record_skip(self.name, self.version, self.named_params(), str(error))
            return True
        return False

    def named_params(self) -> dict[str, str]:
        """The combination, by parameter."""
        return dict(zip(self.param_names, self._current_params, strict=True))


class KernelBenchmark(SkippingBenchmark):
    """A method ``kern_hot`` or ``kern_cold`` of a ``KernelSuite``; the metadata below goes into benchmarks.json.

    Attributes:
        type, unit: "kernel" and "seconds".
        rounds: processes a commit.
        samples_per_process: samples that each process adds, so that stored samples can be cut apart again.
        direction: "lower": less is better.
        min_effect: relative change that matters.
        timing_mode: "hot" or "cold".
        workloads: per workload its bytes_moved, flops, roofline class, backends and seed; of verify_attn also the nodes
            a request.
    """

    name_regex = re.compile(r"^(Kern[A-Z_].+|kern_.+)$")

    def __init__(self, name: str, func: Any, attr_sources: list[Any]) -> None:
        super().__init__(name, func, attr_sources)
        self.type = "kernel"
        self.unit = "seconds"
        self.rounds = int(_get_first_attr(attr_sources, "rounds", ROUNDS))
        self.samples_per_process = SAMPLES_PER_PROCESS
        self.direction = "lower"
        self.min_effect = MIN_EFFECT
        self.timing_mode = name.rpartition("kern_")[2]
        self.kernel = str(_get_first_attr(attr_sources, "kernel", ""))
        self.workloads = {
            workload.name: {
                "bytes_moved": workload.bytes_moved,
                "flops": workload.flops,
                "roofline": workload.roofline,
                "backends": list(workload.backends),
                "seed": workload.seed,
                # Attention on latents spends more FLOPs than plain heads beyond some number of nodes.
                **({"absorbed_nodes": workload.shape["nodes"]} if workload.kernel == "verify_attn" else {}),
            }
            for workload in map(workloads.get, workloads.names(self.kernel))
        }

    def run(self, *params: str) -> dict[str, Any]:
        """Time the prepared call; asv's ``-a repeat=N`` and ``--quick`` set the number of samples."""
        samples = int(_get_first_attr(self._attr_sources, "repeat", SAMPLES_PER_PROCESS))
        subject = self.func.__self__.subject
        calibration = Calibration(subject.backend)
        before = calibration.read()
        measurement = self.func(*params)(samples)
        readings = calibration.record(before, calibration.read())
        provenance.record_measurement(subject, self.name, self.version, self.named_params(), measurement, readings)
        return {"samples": list(measurement.samples), "number": 1}


class KernelSuite:
    """Base of the suites: parameters, and a setup that prepares and verifies one workload on one backend.

    A suite sets ``kernel`` and ``params``, and defines ``kern_hot`` and ``kern_cold``, which return
    ``self.subject.clock(mode)``. ``version`` is explicit: asv would otherwise hash the source, and a comment would
    orphan the history.
    """

    kernel = ""
    version = "1"
    param_names = ("workload", "backend")
    params: tuple[list[str], list[str]] = ([], list(native.BACKENDS))
    subject: Subject

    def setup(self, workload: str, backend: str) -> None:
        """Prepare the call and check its output before anything is timed.

        Raises:
            NotImplementedError: n/a: this workload is not for this backend, or the backend is not here.
            DigestMismatch: the kernel is wrong.
        """
        chosen = workloads.get(workload)
        if backend not in chosen.backends:
            raise NotImplementedError(f"{workload} is not measured on {backend}")
        try:
            self.subject = Subject(chosen, backend)
        except BackendUnavailable as error:
            raise NotImplementedError(str(error)) from error
        self.subject.verify()


def register() -> None:
    """Let asv discover ``kern_*`` methods: first in line, since another installed type may claim the prefix.

    Also lets OpenMP threads sleep at barriers. Spinning ones lose a scheduler's slice to any neighbour: a 0.5 ms
    kernel on two busy cores was measured at 20 ms. OpenMP reads the variable when the library is loaded, which is
    later.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from kdbench import asv_decode  # which derives from what is here

    for kind in (asv_decode.DirectedTrack, asv_decode.DecodeBenchmark, KernelBenchmark):
        if kind not in benchmark_types:
            benchmark_types.insert(0, kind)
