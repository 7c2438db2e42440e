# SPDX-License-Identifier: Apache-2.0
"""A letter of the decode loop: some rounds of a full batch by one side's engine; what it says is checked each time."""

from __future__ import annotations

from kdbench import decode_clock, decode_workloads
from kdbench.decode_subject import DecodeSubject
from kdbench.native import Library

_BUDGET_S = 1.5


class DecodeLetters:
    """Two engines over the same weights, each with memory of its own.

    Attributes:
        calls: rounds behind one letter.
        blocks: how many blocks to take.
    """

    def __init__(self, workload: str, backend: str, libraries: tuple[Library, Library]) -> None:
        chosen = decode_workloads.get(workload)
        self._subjects = [DecodeSubject(chosen, backend, library) for library in libraries]
        for subject in self._subjects:
            subject.verify()
        self.calls = decode_workloads.ROUNDS
        self._sample = [0, 0]
        seconds = max(decode_clock.sample_rounds(subject, 0, subject.run)[0] for subject in self._subjects)
        self.blocks = max(2, min(6, int(_BUDGET_S / (4 * seconds)) // 2 * 2))

    def letter(self, side: int) -> tuple[float, float | None]:
        """Seconds a round of one side. Both sides take the samples' prompts in the same order."""
        sample = self._sample[side] // 2 % decode_workloads.SAMPLES
        self._sample[side] += 1
        subject = self._subjects[side]
        return decode_clock.sample_rounds(subject, sample, subject.run)[0] / self.calls, None
