# SPDX-License-Identifier: Apache-2.0
"""A decode workload made ready on one backend: an engine, prompts, and what must be said.

The shipped model is held against golden tokens. Random weights are held against themselves: what the plain mode says is
golden for the others, and is what simulated drafts are made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kdbench import counter_bits, decode_golden, kimi_shapes
from kdbench.decode import shipped_model
from kdbench.decode_workloads import NEW_TOKENS, ROUNDS, SAMPLES, DecodeWorkload
from kdbench.engine import Engine
from kdbench.engine_types import Profile, Progress, Request, Rounds
from kdbench.errors import BackendUnavailable, KdbenchError, ModelError
from kdbench.golden import DigestMismatch
from kdbench.native import Library

_PROMPT_SEED = 9100
# Random weights leave many tokens nearly tied, and a tree's products round otherwise than plain decoding's: what the
# mode itself said becomes golden then, until it says the same twice.
_SETTLING_RUNS = 12


@dataclass(frozen=True)
class Pass:
    """What ``ROUNDS`` rounds of one batch came to.

    Attributes:
        rounds, accepted: summed over the slots.
        divergences: texts whose first difference from the golden one was a near-tie.
        histogram: [i] rounds with acceptance_length i, of all slots.
    """

    rounds: int
    accepted: int
    divergences: int
    histogram: tuple[int, ...]


class DecodeSubject:
    """One workload on one backend.

    Attributes:
        model_sha256: digest of the weights; "" for random ones.
        golden_sha256: digest of the golden tokens; "" where the engine itself gives them.

    Raises:
        BackendUnavailable: the library, the GPU, the BLAS or the shipped model is missing, or the library is from
            before the engine.
        KdbenchError: the shipped model is not the one that the golden tokens are of.
    """

    def __init__(self, workload: DecodeWorkload, backend: str, library: Library | None = None) -> None:
        self.workload = workload
        self.backend = backend
        self.model_sha256 = self.golden_sha256 = ""
        options: dict[str, Any] = {
            "backend": backend,
            "library": library,
            "max_batch": workload.batch,
            "max_tree_budget": max(32, workload.tree_budget),
        }
        if workload.model == "tiny":
            self._use_shipped(options)
        else:
            self._use_random(options)
        self.library = self.engine.library

    def _use_shipped(self, options: dict[str, Any]) -> None:
        try:
            directories = shipped_model()
        except ModelError as error:
            raise BackendUnavailable(str(error)) from error
        golden = decode_golden.load(self.workload.model)
        if golden is None:
            raise BackendUnavailable(
                f"there are no golden tokens of the model {self.workload.model}: run python -m "
                "kdbench.decode_golden_writer, and commit what it writes"
            )
        self.model_sha256 = decode_golden.model_digest(directories)
        if self.model_sha256 != golden.model_sha256:
            raise KdbenchError(
                f"the shipped model is {self.model_sha256[:16]}, and the golden tokens are those of "
                f"{golden.model_sha256[:16]}"
            )
        self.golden_sha256 = golden.sha256
        self._prompts, self._tokens, self._gaps = list(golden.prompts), list(golden.tokens), list(golden.gaps)
        longest = max(map(len, self._prompts))
        target, drafter = directories
        self.engine = Engine.from_directory(
            target, drafter if self.workload.speculative else None, max_seq_len=longest + NEW_TOKENS, **options
        )

    def _use_random(self, options: dict[str, Any]) -> None:
        target = kimi_shapes.target(self.workload.model)
        drafter = kimi_shapes.drafter(self.workload.model) if self.workload.speculative else None
        length = self.workload.prompt_length
        words = counter_bits.words(_PROMPT_SEED, 0, self.workload.batch * length) % target.vocab_size
        self._prompts = [tuple(row) for row in words.reshape(-1, length).tolist()]
        self.engine = Engine(target, drafter, None, max_seq_len=length + NEW_TOKENS, random_seed=1, **options)
        slots = self._admit(0, golden=False)
        self.engine.run(Rounds("ar"), NEW_TOKENS - 1)
        self._tokens = [self.engine.progress(slot, wait=True).tokens for slot in slots]
        self._release(slots)
        # No reference at this size: any difference counts as a near-tie.
        self._gaps = [(0.0,) * NEW_TOKENS for _ in slots]
        for _ in range(_SETTLING_RUNS if self.workload.simulated else 0):
            slots = self.admit(0)
            self.run()
            said = [progress.tokens for progress in self._read(slots)]
            self._release(slots)
            if all(ours == golden[: len(ours)] for ours, golden in zip(said, self._tokens, strict=True)):
                return
            self._tokens = [
                ours if ours != golden[: len(ours)] else golden for ours, golden in zip(said, self._tokens, strict=True)
            ]

    def admit(self, sample: int) -> list[int]:
        """Slots of the prompts of one sample, their prefill done."""
        slots = self._admit(sample, golden=self.workload.simulated)
        self.engine.progress(slots[-1], wait=True)
        return slots

    def _admit(self, sample: int, *, golden: bool) -> list[int]:
        return [
            self.engine.admit(
                Request(self._prompts[at], NEW_TOKENS, golden_tokens=self._tokens[at] if golden else (), seed=at)
            )
            for at in self._places(sample)
        ]

    def run(self, count: int = ROUNDS, *, profile: Profile = Profile.NONE) -> None:
        """``count`` rounds, without waiting for them."""
        self.engine.run(self.workload.rounds, count, profile=profile)

    def finish(self, sample: int, slots: Sequence[int]) -> Pass:
        """Read, check and free the slots after ``ROUNDS`` rounds.

        Raises:
            DigestMismatch: something was said that is not golden.
            KdbenchError: a slot ran another number of rounds.
        """
        found = self._read(slots)
        self._release(slots)
        divergences = 0
        for at, progress in zip(self._places(sample), found, strict=True):
            if progress.status.refused:
                raise DigestMismatch(f"prompt {at} of {self.workload.name}: the kernels' status is {progress.status!r}")
            if progress.rounds != ROUNDS:
                raise KdbenchError(f"prompt {at} ran {progress.rounds} rounds, and {ROUNDS} were asked for")
            where = f"prompt {at} of {self.workload.name}"
            divergences += decode_golden.check(
                where, progress.tokens, self._tokens[at], self._gaps[at], self.engine.dtype
            )
        return Pass(
            rounds=sum(progress.rounds for progress in found),
            accepted=sum(progress.accepted for progress in found),
            divergences=divergences,
            histogram=tuple(map(sum, zip(*(progress.histogram for progress in found), strict=True))),
        )

    def whole(self) -> list[Pass]:
        """All samples' rounds once, untimed."""
        found = []
        for sample in range(SAMPLES):
            slots = self.admit(sample)
            self.run()
            found.append(self.finish(sample, slots))
        return found

    def verify(self) -> None:
        """One sample's rounds, checked; DigestMismatch when something else than the golden tokens comes out."""
        slots = self.admit(0)
        self.run()
        self.finish(0, slots)

    def stage_seconds(self) -> dict[str, float]:
        """Mean seconds a round in each stage, over one sample's rounds run with time stamps between the stages."""
        self.engine.stage_seconds()
        slots = self.admit(0)
        self.run(profile=Profile.STAGES)
        self.finish(0, slots)
        seconds, rounds = self.engine.stage_seconds()
        return {stage: value / rounds for stage, value in seconds.items()}

    def _places(self, sample: int) -> list[int]:
        first = sample * self.workload.batch
        return [(first + slot) % len(self._prompts) for slot in range(self.workload.batch)]

    def _read(self, slots: Sequence[int]) -> list[Progress]:
        return [self.engine.progress(slot, wait=True) for slot in slots]

    def _release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.engine.release(slot)
