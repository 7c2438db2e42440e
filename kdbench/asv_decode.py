# SPDX-License-Identifier: Apache-2.0
"""asv benchmark types of the decode loop, and the class that its suites derive from.

``decode_*`` are timed and keep their samples, as ``kern_*`` do. ``track_*`` are asv's own, one value a commit, with the
direction in which they are better: acceptance_length is a fact of model and engine that no second process changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from asv_runner.benchmarks._base import _get_first_attr
from asv_runner.benchmarks.track import TrackBenchmark

from kdbench import decode_workloads, native, provenance
from kdbench.asv_benchmark import MIN_EFFECT, ROUNDS, SkippingBenchmark
from kdbench.calibration_kernels import Calibration
from kdbench.decode_clock import DecodeMeasurement
from kdbench.decode_subject import DecodeSubject
from kdbench.errors import BackendUnavailable


class DecodeBenchmark(SkippingBenchmark):
    """A method ``decode_*`` of a ``DecodeSuite``, which returns a function from a number of samples to a measurement.

    Attributes:
        type, unit, direction: "decode", "seconds" and "lower".
        rounds: processes a commit; rounds of decoding are in ``workloads``.
        samples_per_process, min_effect: as of ``KernelBenchmark``.
        workloads: what each is, ``DecodeWorkload.metadata``.
    """

    name_regex = re.compile(r"^(Decode[A-Z_].+|decode_.+)$")

    def __init__(self, name: str, func: Any, attr_sources: list[Any]) -> None:
        super().__init__(name, func, attr_sources)
        self.type = "decode"
        self.unit = "seconds"
        self.direction = "lower"
        self.rounds = int(_get_first_attr(attr_sources, "rounds", ROUNDS))
        self.samples_per_process = decode_workloads.SAMPLES
        self.min_effect = MIN_EFFECT
        self.workloads = _metadata()

    def run(self, *params: str) -> dict[str, Any]:
        """Time; asv's ``-a repeat=N`` and ``--quick`` set the number of samples."""
        samples = int(_get_first_attr(self._attr_sources, "repeat", decode_workloads.SAMPLES))
        subject = self.func.__self__.subject
        calibration = Calibration(subject.backend)
        before = calibration.read()
        measurement: DecodeMeasurement = self.func(*params)(samples)
        readings = calibration.record(before, calibration.read())
        _record(self, subject, {"samples_s": list(measurement.samples), **_timing(measurement)}, readings)
        return {"samples": list(measurement.samples), "number": 1}


class DirectedTrack(SkippingBenchmark, TrackBenchmark):
    """asv's track type, with the direction that the suite gives, and for a ``DecodeSuite`` a record.

    It takes every ``track_*`` there is, also those that have nothing to do with decoding, and leaves these as they are.

    Attributes:
        direction: "higher" or "lower": what is better; absent where the suite does not say.
        min_effect, workloads: of a ``DecodeSuite``, as of ``DecodeBenchmark``.
    """

    name_regex = TrackBenchmark.name_regex

    def __init__(self, name: str, func: Any, attr_sources: list[Any]) -> None:
        super().__init__(name, func, attr_sources)
        direction = _get_first_attr(attr_sources, "direction", None)
        if direction is not None:
            self.direction = str(direction)
        suite = getattr(func, "__self__", None)
        self._suite = suite if isinstance(suite, DecodeSuite) else None
        if self._suite is not None:
            self.min_effect = MIN_EFFECT
            self.workloads = _metadata()

    def run(self, *params: str) -> Any:
        """The value; a ``DecodeSuite`` leaves what should be recorded beside it in ``facts``."""
        if self._suite is None:
            return super().run(*params)
        subject = self._suite.subject
        calibration = Calibration(subject.backend)
        before = calibration.read()
        value = float(super().run(*params))
        readings = calibration.record(before, calibration.read())
        _record(self, subject, {"value": value, **self._suite.facts}, readings)
        return value


class DecodeSuite:
    """Base of the suites: parameters, and a setup that loads and verifies one workload on one backend.

    A suite sets ``params``. ``version`` is explicit: asv would otherwise hash the source.
    """

    version = "1"
    param_names = ("workload", "backend")
    params: tuple[list[str], list[str]] = ([], list(native.BACKENDS))
    # A model is loaded, its answers are checked, and a slow round is taken a hundred times.
    timeout = 600
    subject: DecodeSubject

    def setup(self, workload: str, backend: str) -> None:
        """Load the model and check what it says before anything is timed.

        Raises:
            NotImplementedError: n/a: this workload is not for this backend, the backend or the shipped model is not
                here, or the library is from before the engine.
            DigestMismatch: it says something else than the golden tokens.
        """
        self.facts: Mapping[str, Any] = {}
        chosen = decode_workloads.get(workload)
        if backend not in chosen.backends:
            raise NotImplementedError(f"{workload} is not measured on {backend}")
        try:
            self.subject = DecodeSubject(chosen, backend)
        except BackendUnavailable as error:
            raise NotImplementedError(str(error)) from error
        self.subject.verify()


def _timing(measurement: DecodeMeasurement) -> dict[str, Any]:
    return {
        "mode": "decode",
        "round_s": list(measurement.round_s),
        "decode_rounds": measurement.rounds,
        "acceptance_length": measurement.acceptance_length,
        "histogram": list(measurement.histogram),
        "divergences": measurement.divergences,
        "stage_seconds": dict(measurement.stage_seconds),
        "gpu_before": dict(measurement.gpu_before),
        "gpu_after": dict(measurement.gpu_after),
    }


def _metadata() -> dict[str, Any]:
    return {name: workload.metadata() for name, workload in decode_workloads.REGISTRY.items()}


def _record(
    benchmark: SkippingBenchmark,
    subject: DecodeSubject,
    timing: Mapping[str, Any],
    calibration: Mapping[str, Any],
) -> None:
    workload = subject.workload
    provenance.record_series(
        benchmark.name,
        benchmark.version,
        benchmark.named_params(),
        workload={
            "name": workload.name,
            **workload.metadata(),
            "golden": subject.golden_sha256 or None,
            "model_sha256": subject.model_sha256 or None,
            "dtype": subject.engine.dtype,
            "blas": subject.engine.info().get("blas"),
        },
        library=subject.library,
        timing=timing,
        calibration=calibration,
    )
