# SPDX-License-Identifier: Apache-2.0
"""The decode loop's clock: wall time of a fixed number of rounds of a full batch, from enqueueing to the last one done.

A sample is tpot: seconds a round over the acceptance_length of all samples, which is the same in every process. So a
sample's spread is that of a round's time, and tokens a second of the batch are batch / tpot.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from kdbench.decode_subject import DecodeSubject, Pass
from kdbench.decode_workloads import ROUNDS, SAMPLES
from kdbench.engine_types import Profile, RoundClock
from kdbench.machine import gpu_state
from kdbench.scheduler import ROUNDS_IN_FLIGHT
from kdbench.timing import MeasuringError

_WARM_UP_S = {"cpu": 0.0, "cuda": 0.4}
# A sample this slow would hold up a whole run.
_LONGEST_SAMPLE_S = 20.0


@dataclass(frozen=True)
class DecodeMeasurement:
    """What one process measured.

    Attributes:
        samples: tpot, seconds.
        round_s: seconds a round, one value a sample.
        acceptance_length: of all samples.
        histogram: [i] rounds with acceptance_length i.
        rounds: rounds a sample.
        divergences: texts that left the golden ones at a near-tie.
        stage_seconds: of a run of its own; {} where none was made.
        gpu_before, gpu_after: as of ``kdbench.timing.Measurement``.
    """

    samples: tuple[float, ...]
    round_s: tuple[float, ...]
    acceptance_length: float
    histogram: tuple[int, ...]
    divergences: int
    rounds: int = ROUNDS
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    gpu_before: Mapping[str, Any] = field(default_factory=dict)
    gpu_after: Mapping[str, Any] = field(default_factory=dict)


def measure(subject: DecodeSubject, samples: int = SAMPLES) -> DecodeMeasurement:
    """Time ``subject``, and check what each timed sample said.

    Args:
        subject: verified, so that graphs are captured and memory is touched.
        samples: how many; each process takes the same number.

    Raises:
        DigestMismatch: a timed sample said something else than the golden tokens.
        MeasuringError: a sample takes too long.
    """
    if samples < 1:
        raise MeasuringError(f"{samples} samples are wanted, and at least 1 is expected")
    _warm_up(subject)
    on_gpu = subject.backend == "cuda"
    before = gpu_state() if on_gpu else {}
    seconds: list[float] = []
    passes: list[Pass] = []
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for sample in range(samples):
            taken, found = sample_rounds(subject, sample, subject.run)
            seconds.append(taken / ROUNDS)
            passes.append(found)
    finally:
        if enabled:
            gc.enable()
    length = acceptance_length(passes)
    return DecodeMeasurement(
        samples=tuple(value / length for value in seconds),
        round_s=tuple(seconds),
        acceptance_length=length,
        histogram=tuple(map(sum, zip(*(found.histogram for found in passes), strict=True))),
        divergences=sum(found.divergences for found in passes),
        gpu_before=before,
        gpu_after=gpu_state() if on_gpu else {},
    )


def output_tok_s(subject: DecodeSubject, samples: int = SAMPLES) -> float:
    """Tokens a second of the whole batch, by the median sample."""
    return subject.workload.batch / median(measure(subject, samples).samples)


def loop_ratio(subject: DecodeSubject, samples: int = SAMPLES) -> float:
    """Seconds of rounds enqueued one by one with a look at the outputs between them, as the loop does it, over those
    of the same rounds enqueued at once: 1 means that the host costs nothing.

    Samples of both kinds take turns; the answer is the ratio of their medians.
    """
    _warm_up(subject)
    pairs = [
        (sample_rounds(subject, sample, subject.run)[0], sample_rounds(subject, sample, lambda: _watched(subject))[0])
        for sample in range(samples)
    ]
    return median(watched_s for _, watched_s in pairs) / median(at_once_s for at_once_s, _ in pairs)


def round_clock(subject: DecodeSubject, samples: int = SAMPLES) -> RoundClock:
    """How long the device is busy in a round and idle behind it, where rounds are enqueued as the loop does it.

    Raises:
        BackendUnavailable: a library from before the engine's clock.
    """
    _warm_up(subject)
    subject.engine.round_clock()  # what was there before
    for sample in range(samples):
        sample_rounds(subject, sample, lambda: _watched(subject, Profile.GAPS))
    return subject.engine.round_clock()


def _watched(subject: DecodeSubject, profile: Profile = Profile.NONE) -> None:
    """A sample's rounds as the loop enqueues them: some in flight, and a look at the outputs between."""
    depth, left = ROUNDS_IN_FLIGHT[subject.backend], ROUNDS
    while left:
        for _ in range(min(left, depth - subject.engine.in_flight)):
            subject.run(1, profile=profile)
            left -= 1
        for slot in range(subject.workload.batch):
            subject.engine.progress(slot)


def acceptance_length(passes: list[Pass]) -> float:
    """Tokens a round, over all of them."""
    return sum(found.accepted for found in passes) / sum(found.rounds for found in passes)


def sample_rounds(subject: DecodeSubject, sample: int, work: Callable[[], None]) -> tuple[float, Pass]:
    """Seconds that ``work``, ``ROUNDS`` rounds of one sample's prompts, takes, and what they came to, checked."""
    slots = subject.admit(sample)
    start = time.perf_counter()
    work()
    subject.engine.progress(slots[0], wait=True)
    seconds = time.perf_counter() - start
    found = subject.finish(sample, slots)
    if seconds > _LONGEST_SAMPLE_S:
        raise MeasuringError(
            f"{ROUNDS} rounds of {subject.workload.name} take {seconds:.0f} s: more than {_LONGEST_SAMPLE_S:.0f} s are "
            "not sampled"
        )
    return seconds, found


def _warm_up(subject: DecodeSubject) -> None:
    """Samples that are thrown away, until clocks have risen; a CPU has warmed up on what was verified."""
    start = time.perf_counter()
    while time.perf_counter() - start < _WARM_UP_S[subject.backend]:
        sample_rounds(subject, 0, subject.run)
