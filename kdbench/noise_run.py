# SPDX-License-Identifier: Apache-2.0
"""A/A runs: one build measured by fresh processes. Series take turns, so that the machine's drift is in it too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kdbench.errors import InvalidArgument, KdbenchError

_TIMEOUT_S = 600


@dataclass(frozen=True)
class Progress:
    """One process has ended.

    Attributes:
        series: that it measured.
        done, total: processes.
        error: why it failed; "" when it did not.
    """

    series: str
    done: int
    total: int
    error: str


@dataclass
class Session:
    """What an A/A run measured.

    Attributes:
        records: of each series, one a process, as ``kdbench.provenance`` writes them.
        failed: why a series was given up.
        interrupted: by Ctrl-C; what was measured before is kept.
    """

    records: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False


def measure(
    series: Sequence[str],
    processes: int,
    samples: int,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Session:
    """Measure each of ``series`` in ``processes`` fresh processes of ``samples`` samples.

    Every round goes through all series, every other one backwards. A series whose process fails is not tried again.

    Raises:
        InvalidArgument: there is nothing to measure, or a count is too small.
    """
    from kdbench.analysis.noise import LEAST_PROCESSES

    if not series:
        raise InvalidArgument("no series fits")
    if processes < LEAST_PROCESSES or samples < 1:
        raise InvalidArgument(
            f"{processes} processes of {samples} samples are too few: noise needs at least {LEAST_PROCESSES} of 1"
        )
    session = Session({name: [] for name in series})
    total = processes * len(series)
    try:
        for done, name in enumerate(_turns(series, processes), start=1):
            if name in session.failed:
                continue
            try:
                session.records[name].append(_process(name, samples))
            except KdbenchError as error:
                session.failed[name] = str(error)
            on_progress(Progress(name, done, total, session.failed.get(name, "")))
    except KeyboardInterrupt:
        session.interrupted = True
    return session


def _turns(series: Sequence[str], processes: int) -> Iterator[str]:
    for turn in range(processes):
        yield from series if turn % 2 == 0 else reversed(series)


def _process(series: str, samples: int) -> Mapping[str, Any]:
    command = [sys.executable, "-m", "kdbench.noise_process", series, str(samples)]
    try:
        # A group of its own: at Ctrl-C it is this process that decides.
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment(), process_group=0
        )
    except OSError as error:
        raise KdbenchError(f"{sys.executable} cannot be started: {error.strerror or error}") from error
    try:
        out, err = child.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise KdbenchError(f"a process took longer than {_TIMEOUT_S} s") from error
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    if child.returncode:
        raise KdbenchError(_reason(err, child.returncode))
    try:
        record: Mapping[str, Any] = json.loads(out.splitlines()[-1])
        _ = record["timing"]["samples_s"]
    except (ValueError, LookupError, TypeError) as error:
        raise KdbenchError(f"a process left no record: {out[-200:]!r}") from error
    return record


def _environment() -> dict[str, str]:
    # What asv says of a commit is not so here.
    return {key: value for key, value in os.environ.items() if key not in ("ASV_COMMIT", "ASV_ENV_NAME")}


def _reason(stderr: str, code: int) -> str:
    if code < 0:
        return f"a process was ended by {signal.Signals(-code).name}"
    lines = [line for line in stderr.splitlines() if line.strip()]
    return (lines[-1] if lines else f"a process ended with code {code}").removeprefix("kdbench: ")
