# SPDX-License-Identifier: Apache-2.0
"""What decoding one request, or several, amounts to: tokens, acceptance and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kdbench.abi import RequestStatus
from kdbench.engine_types import Progress

_NO_FLAGS = RequestStatus(0)
FINISH_REASONS = ("stop", "length", "refused")


@dataclass(frozen=True)
class Decoded:
    """One request from its prompt to its end.

    Attributes:
        mode: "ar", "chain" or "ddtree".
        prompt_tokens: how many the prompt has.
        tokens: emitted ids, the stop token included.
        text: of these, without special tokens; "" where there is no tokenizer.
        finish_reason: "stop", "length" or "refused".
        refusal: why the engine did not take it, else "".
        rounds: target forwards behind the prefill; each emits one token or more.
        accepted: tokens that these rounds came to before cuts at a stop or at max_new_tokens.
        histogram: [i] rounds that came to i tokens.
        ttft_s: seconds from the call to the first token, waiting for a slot included; None without one.
        tpot_s: seconds a token behind those of the first sight; None where all were seen at once.
        output_tok_s: tokens over the time from the call to the last one.
        status: flags of the kernels.
        stage_seconds: seconds a round in each stage, from a run of its own that times stages; {} where none was made.
        idle_fraction: share of the time in which the device waited between two rounds, likewise; None without.
        simulated: the drafts were golden tokens spoilt at random: times are real, acceptance is not.
    """

    mode: str
    prompt_tokens: int
    tokens: tuple[int, ...] = ()
    text: str = ""
    finish_reason: str = "refused"
    refusal: str = ""
    rounds: int = 0
    accepted: int = 0
    histogram: tuple[int, ...] = ()
    ttft_s: float | None = None
    tpot_s: float | None = None
    output_tok_s: float | None = None
    status: RequestStatus = _NO_FLAGS
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    idle_fraction: float | None = None
    simulated: bool = False

    @property
    def acceptance_length(self) -> float | None:
        """Tokens a round came to, before cuts, so that a stop in the last round does not bias it; None without rounds.

        The average over rounds, not over requests.
        """
        return self.accepted / self.rounds if self.rounds else None

    @property
    def target_forwards(self) -> int:
        """Forwards of the target behind the prefill: the rounds."""
        return self.rounds

    def document(self) -> dict[str, Any]:
        """Everything as one JSON object."""
        return {
            "mode": self.mode,
            "simulated_acceptance": self.simulated,
            "prompt_tokens": self.prompt_tokens,
            "tokens": list(self.tokens),
            "text": self.text,
            "finish_reason": self.finish_reason,
            "refusal": self.refusal or None,
            "target_forwards": self.rounds,
            "acceptance_length": self.acceptance_length,
            "histogram": list(self.histogram),
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
            "output_tok_s": self.output_tok_s,
            "stage_seconds": dict(self.stage_seconds),
            "idle_fraction": self.idle_fraction,
            "status": [flag.name for flag in self.status],
        }


@dataclass
class Clocked:
    """When the tokens of a request were seen; ``perf_counter`` seconds.

    Attributes:
        asked: when the caller asked for it.
        first: when its first tokens were seen, and ``first_tokens`` how many these were.
        last: when its last ones were.
    """

    asked: float
    first: float | None = None
    first_tokens: int = 0
    last: float | None = None

    def saw(self, count: int, now: float) -> None:
        """``count`` more tokens were seen at ``now``."""
        if self.first is None:
            self.first, self.first_tokens = now, count
        self.last = now

    def times(self, tokens: int) -> tuple[float | None, float | None, float | None]:
        """ttft_s, tpot_s and output_tok_s of ``tokens`` tokens."""
        if self.first is None or self.last is None:
            return None, None, None
        later, whole = tokens - self.first_tokens, self.last - self.asked
        return (
            self.first - self.asked,
            (self.last - self.first) / later if later > 0 else None,
            tokens / whole if whole > 0 else None,
        )


def decoded(
    mode: str,
    prompt_tokens: int,
    tokens: Sequence[int],
    text: str,
    stop_tokens: Sequence[int],
    progress: Progress,
    clock: Clocked,
    simulated: bool = False,
) -> Decoded:
    """The record of a request that came to its end."""
    stopped = bool(tokens) and tokens[-1] in set(stop_tokens)
    ttft, tpot, rate = clock.times(len(tokens))
    last = max((i for i, count in enumerate(progress.histogram) if count), default=0)
    return Decoded(
        mode=mode,
        prompt_tokens=prompt_tokens,
        tokens=tuple(tokens),
        text=text,
        finish_reason="stop" if stopped else "length",
        rounds=progress.rounds,
        accepted=progress.accepted,
        histogram=progress.histogram[: last + 1],
        ttft_s=ttft,
        tpot_s=tpot,
        output_tok_s=rate,
        status=progress.status,
        simulated=simulated,
    )


@dataclass(frozen=True)
class Summary:
    """Several requests together.

    Attributes:
        requests, refused: how many, and how many of them were refused.
        tokens, rounds: of all.
        acceptance_length: over all rounds of all requests; None without rounds.
        histogram: of all.
        output_tok_s: tokens of all over the seconds from the call to the last one; None where unknown.
    """

    requests: int
    refused: int
    tokens: int
    rounds: int
    acceptance_length: float | None
    histogram: tuple[int, ...]
    output_tok_s: float | None


def summary(results: Sequence[Decoded]) -> Summary:
    """What ``results`` of one call amount to."""
    rounds = sum(result.rounds for result in results)
    accepted = sum(result.accepted for result in results)
    length = max((len(result.histogram) for result in results), default=0)
    padded = [(*result.histogram, *(0,) * (length - len(result.histogram))) for result in results]
    whole = [len(result.tokens) / result.output_tok_s for result in results if result.output_tok_s]
    tokens = sum(len(result.tokens) for result in results)
    return Summary(
        requests=len(results),
        refused=sum(result.finish_reason == "refused" for result in results),
        tokens=tokens,
        rounds=rounds,
        acceptance_length=accepted / rounds if rounds else None,
        histogram=tuple(map(sum, zip(*padded, strict=True))) if padded else (),
        output_tok_s=tokens / max(whole) if whole else None,
    )
