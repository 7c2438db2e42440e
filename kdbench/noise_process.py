# SPDX-License-Identifier: Apache-2.0
"""One measuring process of an A/A run: ``python -m kdbench.noise_process SERIES SAMPLES``, its record on stdout.

It does what a process of ``kdbench run`` does, with the library that KDTREE_NATIVE_DIR or the installed package gives:
inputs, digest, calibration, samples, calibration.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

_SERIES = re.compile(r"(?P<benchmark>[\w.]+)\('(?P<workload>[^']+)', '(?P<backend>\w+)'\)")


def split(series: str) -> tuple[str, str, str]:
    """(benchmark, workload, backend) of asv's name of a series.

    Raises:
        ValueError: it is none that this project measures.
    """
    found = _SERIES.fullmatch(series)
    if found is None:
        raise ValueError(f"{series!r} is no series of the form suite.Class.kern_mode('workload', 'backend')")
    return found["benchmark"], found["workload"], found["backend"]


def measure(series: str, samples: int) -> dict[str, Any]:
    """Measure one series in this process; the record of ``kdbench.provenance``.

    Raises:
        KdbenchError: the output is wrong, the backend is not here, or the call cannot be sampled.
    """
    from kdbench import provenance

    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get(provenance.DIRECTORY_VARIABLE)
        os.environ[provenance.DIRECTORY_VARIABLE] = folder
        try:
            _run(series, samples)
        finally:
            if before is None:
                del os.environ[provenance.DIRECTORY_VARIABLE]
            else:
                os.environ[provenance.DIRECTORY_VARIABLE] = before
        (path,) = Path(folder).glob("*.jsonl")
        record: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return record


def _run(series: str, samples: int) -> None:
    from kdbench import provenance, timing, workloads
    from kdbench.calibration_kernels import Calibration

    benchmark, workload, backend = split(series)
    params = {"workload": workload, "backend": backend}
    if ".kern_" not in benchmark:
        _run_decode(benchmark, params, samples)
        return
    subject = timing.Subject(workloads.get(workload), backend)
    subject.verify()
    calibration = Calibration(backend)
    before = calibration.read()
    measurement = timing.measure(subject, benchmark.rpartition("kern_")[2], samples)
    readings = calibration.record(before, calibration.read())
    provenance.record_measurement(subject, benchmark, "1", params, measurement, readings)


def _run_decode(benchmark: str, params: dict[str, str], samples: int) -> None:
    from kdbench import decode_clock, decode_workloads, provenance
    from kdbench.calibration_kernels import Calibration
    from kdbench.decode_subject import DecodeSubject

    workload = decode_workloads.get(params["workload"])
    subject = DecodeSubject(workload, params["backend"])
    subject.verify()
    calibration = Calibration(subject.backend)
    before = calibration.read()
    measurement = decode_clock.measure(subject, samples)
    provenance.record_series(
        benchmark,
        "1",
        params,
        workload={"name": workload.name, **workload.metadata()},
        library=subject.library,
        timing={"mode": "decode", "samples_s": list(measurement.samples)},
        calibration=calibration.record(before, calibration.read()),
    )


def main() -> int:
    """Entry point; 0, or 2 with one sentence on stderr."""
    from kdbench.errors import KdbenchError

    # As kdbench.asv_benchmark.register has it: threads that spin at barriers lose slices to any neighbour.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        record = measure(sys.argv[1], int(sys.argv[2]))
    except (KdbenchError, ValueError) as error:
        print(f"kdbench: {error}", file=sys.stderr)
        return 2
    sys.stdout.write(json.dumps(record) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
