# SPDX-License-Identifier: Apache-2.0
"""What goes into the decode engine and comes out of it, as plain records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from kdbench.abi import RequestStatus
from kdbench.errors import KdbenchError

MODES = ("ar", "chain", "ddtree")
DEFAULT_TREE_BUDGET = 64


class EngineFull(KdbenchError):  # noqa: N818 - what is the case, like BackendUnavailable
    """A request does not fit into the engine now; another time it may."""


@dataclass(frozen=True)
class Request:
    """One text to be continued.

    Attributes:
        prompt: token ids, one at least.
        max_new_tokens: most tokens to emit.
        stop_tokens: ids behind which the text ends, eight at most.
        temperature: below 1e-5 greedy.
        seed: of the draws; u64.
        golden_tokens: what the target will say, for rounds of simulated acceptance; else empty.
    """

    prompt: Sequence[int]
    max_new_tokens: int = 128
    stop_tokens: Sequence[int] = ()
    temperature: float = 0.0
    seed: int = 0
    golden_tokens: Sequence[int] = ()


@dataclass(frozen=True)
class Rounds:
    """How the rounds of all slots are run.

    Attributes:
        mode: "ar" (one token a round, no drafter), "chain" (DFlash) or "ddtree".
        tree_budget: nodes of a draft tree, the root excluded; of "ddtree".
        topk: candidates a position; of "ddtree". 0: as many as the best tree can need.
        block_size: tokens that the drafter's block has, the root included; 0 is the drafter's own.
        simulated_accept: probability with which a position of the golden tokens is proposed right; 0: the drafter
            proposes.
    """

    mode: str = "ddtree"
    tree_budget: int = DEFAULT_TREE_BUDGET
    topk: int = 0
    block_size: int = 0
    simulated_accept: float = 0.0


@dataclass(frozen=True)
class Progress:
    """Counts of one slot since its admission.

    Attributes:
        tokens: those emitted since the one that was asked for.
        num_tokens: emitted in all, the first one included.
        finished: a stop token came, or max_new_tokens were reached.
        rounds: that emitted for this slot: target forwards of its decoding.
        rounds_done: of the engine since its creation: how far the device is.
        accepted: sum of acceptance_length over ``rounds``, tokens behind a stop included.
        status: flags of all kernels.
        histogram: [i] rounds with acceptance_length i.
    """

    tokens: tuple[int, ...]
    num_tokens: int
    finished: bool
    rounds: int
    rounds_done: int
    accepted: int
    status: RequestStatus
    histogram: tuple[int, ...]


class Profile(IntEnum):
    """Which time stamps the device takes in a round; nobody waits for them."""

    NONE = 0
    STAGES = 1  # at every stage; kernels on either side of a stamp do not overlap, so a round is a little longer
    GAPS = 2  # at begin and end of a round


@dataclass(frozen=True)
class RoundClock:
    """Where the device's time went, by its own clock.

    Attributes:
        rounds: run with ``Profile.GAPS``.
        gaps: between two of them in a row; one that an admission has interrupted is none.
        busy_seconds: from begin to end, over ``rounds``.
        idle_seconds: from the end of a round to the begin of the next, over ``gaps``.
        stage_rounds: run with ``Profile.STAGES``.
        draft_topk_seconds: of stage draft, over ``stage_rounds``.
        stamp_seconds: of a stage with nothing in it, over ``stage_rounds``: each stage contains as much.
    """

    rounds: int
    gaps: int
    busy_seconds: float
    idle_seconds: float
    stage_rounds: int
    draft_topk_seconds: float
    stamp_seconds: float

    @property
    def idle_fraction(self) -> float | None:
        """Share of a round and the gap behind it in which the device had nothing to do; None without gaps."""
        if not self.gaps or not self.rounds:
            return None
        idle = self.idle_seconds / self.gaps
        return idle / (idle + self.busy_seconds / self.rounds)
