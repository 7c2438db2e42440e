# SPDX-License-Identifier: Apache-2.0
"""Side records: one line of strict JSON a process, beside asv's result files.

asv keeps the samples and nothing about how they came to be. These lines keep the rest. They end in ``.jsonl``, since
asv reads every ``.json`` below ``results/`` as its own, and a line is appended in one write, so that parallel
processes do not mix.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from kdbench import __version__, ceilings, gpu_probe, machine
from kdbench.native import Library
from kdbench.timing import Measurement, Subject, stopwatch_digest

MEASUREMENT = "kdbench/measurement/1"
SKIP = "kdbench/skip/1"
FAILURE = "kdbench/failure/1"
RUN = "kdbench/run/1"
PEER = "kdbench/peer/1"
# Folder of a results directory that comparisons with other people's kernels are kept in.
PEERS_FOLDER = "peers"
# What the commands about the decode loop leave, and its folder.
SWEEP = "kdbench/decode-sweep/1"
PROFILE = "kdbench/decode-profile/1"
LONG = "kdbench/decode-long/1"
DECODE_FOLDER = "decode"
# Where benchmark processes put their records; kdbench.asv_plugin sets it, and without it nothing is written.
DIRECTORY_VARIABLE = "KDBENCH_RECORDS_DIR"
# What the plugin tells about the harness's own commit, so that no benchmark process has to run git.
HARNESS_VARIABLE = "KDBENCH_HARNESS"

_STARTED = time.time()


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Append ``record`` as one line; numbers that JSON lacks (NaN, infinities) become null."""
    line = json.dumps(_strict(record), allow_nan=False, separators=(",", ":"), sort_keys=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def record_measurement(
    subject: Subject,
    benchmark: str,
    version: str,
    params: Mapping[str, str],
    measurement: Measurement,
    calibration: Mapping[str, Any] | None = None,
) -> None:
    """Write what one benchmark process measured, when somebody asked for records.

    Args:
        calibration: as from ``kdbench.calibration_kernels.Calibration.record``.
    """
    workload, library = subject.workload, subject.library
    _record(
        {
            "schema": MEASUREMENT,
            **_where(benchmark, version, params),
            "workload": {
                "name": workload.name,
                "seed": workload.seed,
                "golden": workload.golden_entry["outputs"].get("sha256"),
                "inputs": workload.golden_entry["inputs"],
                "digest_ok": True,  # measure() raises when it is not
                "bytes_moved": workload.bytes_moved,
                "flops": workload.flops,
                "roofline": workload.roofline,
            },
            "library": library_facts(library),
            "timing": {
                "mode": measurement.mode,
                "samples_s": list(measurement.samples),
                "calls_per_sample": list(measurement.calls),
                "copies": measurement.copies,
                "touched_bytes": measurement.touched_bytes,
                "cache_bytes": measurement.cache_bytes,
                "flushed": measurement.flushed,
                "empty_call_s": measurement.empty_call_s,
                "empty_launch_s": measurement.empty_launch_s,
                "launches": list(measurement.launches),
                "gpu_before": dict(measurement.gpu_before),
                "gpu_after": dict(measurement.gpu_after),
                "notes": list(measurement.notes),
            },
            "roofline": _roofline(subject, measurement),
            "calibration": calibration,
            "machine": machine.covariates(),
        }
    )


def _roofline(subject: Subject, measurement: Measurement) -> dict[str, Any] | None:
    """Least times by datasheet and by the ceilings measured on this machine, null where they are not known."""
    if subject.backend != "cuda":
        return None
    workload, mode = subject.workload, measurement.mode
    rates = ceilings.read(os.environ.get(DIRECTORY_VARIABLE, os.devnull)).values()
    floors = [ceilings.floor_seconds(each, workload.bytes_moved, workload.flops, mode) for each in rates]
    floor = floors[0] if floors else None
    return {
        "datasheet_floor_s": ceilings.datasheet_floor(gpu_probe.model(), workload.bytes_moved, workload.flops, mode),
        "floor_s": floor,
        "of_floor": floor / median(measurement.samples) if floor else None,
        "ceilings": next((each.source for each in rates), None),
    }


def record_series(
    benchmark: str,
    version: str,
    params: Mapping[str, str],
    *,
    workload: Mapping[str, Any],
    library: Library,
    timing: Mapping[str, Any],
    calibration: Mapping[str, Any] | None = None,
) -> None:
    """Write what one process measured of something that is no kernel call, when somebody asked for records.

    Args:
        workload: with "name" and what its answer was checked against; that it passed is what the record says.
        library: the one that was measured.
        timing: samples, and whatever else tells how they came to be.
        calibration: as of ``record_measurement``.
    """
    _record(
        {
            "schema": MEASUREMENT,
            **_where(benchmark, version, params),
            "workload": {**workload, "digest_ok": True},
            "library": library_facts(library),
            "timing": dict(timing),
            "roofline": None,
            "calibration": calibration,
            "machine": machine.covariates(),
        }
    )


def library_facts(library: Library) -> dict[str, Any]:
    """Which build was measured."""
    return {
        "backend": library.backend,
        "path": str(library.path),
        "sha256": library.digest,
        "abi_version": library.abi_version,
        "build_info": library.build_info,
    }


def record_skip(benchmark: str, version: str, params: Mapping[str, str], reason: str) -> None:
    """Write why a combination is n/a, when somebody asked for records."""
    _record({"schema": SKIP, **_where(benchmark, version, params), "reason": reason})


def _where(benchmark: str, version: str, params: Mapping[str, str]) -> dict[str, Any]:
    return {
        "commit": os.environ.get("ASV_COMMIT"),
        "env_name": os.environ.get("ASV_ENV_NAME"),
        "benchmark": benchmark,
        "version": version,
        "params": dict(params),
        "harness": {
            "version": __version__,
            "stopwatch_sha256": stopwatch_digest(),
            "commit": os.environ.get(HARNESS_VARIABLE),
        },
        "pid": os.getpid(),
        "started": datetime.fromtimestamp(_STARTED, UTC).isoformat(timespec="milliseconds"),
        "ended": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }


def _record(record: Mapping[str, Any]) -> None:
    folder = os.environ.get(DIRECTORY_VARIABLE)
    if folder:
        # The stem of asv's own file for this commit and environment.
        stem = f"{(record['commit'] or 'unknown')[:8]}-{record['env_name'] or 'unknown'}"
        append(Path(folder) / f"{stem}.jsonl", record)


def _strict(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_strict(item) for item in value]
    if value is None or isinstance(value, str | int):
        return value
    if hasattr(value, "item"):  # a NumPy scalar
        return _strict(value.item())
    return str(value)
