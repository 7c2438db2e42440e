# SPDX-License-Identifier: Apache-2.0
"""The host's side of decoding: requests join free slots, rounds are kept in flight, tokens are read behind the device.

The host never waits for a round. On CUDA a few rounds are always enqueued, and what the device has written meanwhile is
looked at; the device decides alone when a request ends, and rounds that come too late change nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kdbench.decode_stats import Clocked
from kdbench.engine_types import EngineFull, Profile, Progress, Request, Rounds
from kdbench.errors import InvalidArgument, KdbenchError

# A round of a small model takes some hundred microseconds: two keep the device busy, the others cover a host that is
# held up. More would delay those who wait for a slot.
ROUNDS_IN_FLIGHT = {"cpu": 1, "cuda": 4}
_NAP_S = 5e-5


class Slots(Protocol):
    """What the loop needs of an engine (``kdbench.engine.Engine``)."""

    backend: str
    max_batch: int

    @property
    def in_flight(self) -> int:
        """Rounds asked for and not seen done."""

    def admit(self, request: Request) -> int:
        """Slot of an admitted request."""

    def run(self, rounds: Rounds, count: int = 1, *, profile: Profile = Profile.NONE) -> None:
        """Run or enqueue rounds."""

    def progress(self, slot: int, first: int = 0, *, wait: bool = False) -> Progress:
        """What is known of a slot."""

    def release(self, slot: int) -> None:
        """Free a slot."""


@dataclass(frozen=True)
class News:
    """Something happened to a request.

    Attributes:
        index: which of the requests.
        tokens: that were not seen before.
        clock: when its tokens were seen.
        end: its last progress when it has ended, else None.
        refusal: why it was not taken; it has ended then.
    """

    index: int
    tokens: tuple[int, ...]
    clock: Clocked
    end: Progress | None = None
    refusal: str = ""

    @property
    def ended(self) -> bool:
        """True for the last news of a request."""
        return self.end is not None or bool(self.refusal)


@dataclass
class _Live:
    index: int
    clock: Clocked
    left: int
    asked: int = 0
    seen: int = 0
    limit: int = field(init=False)

    def __post_init__(self) -> None:
        self.limit = self.left


def run(
    engine: Slots,
    requests: Sequence[Request],
    rounds: Rounds,
    *,
    in_flight: int | None = None,
    profile: Profile = Profile.NONE,
) -> Iterator[News]:
    """Decode ``requests``, first come first served, and tell what happens as it is seen.

    A request that the engine refuses costs nobody else anything: it ends with a ``refusal``. Closing the iterator frees
    the slots.

    Args:
        engine: nobody else uses it meanwhile.
        requests: more than there are slots wait for one.
        rounds: how all of them are decoded.
        in_flight: rounds to keep enqueued; by default by backend.
        profile: time stamps of the rounds.

    Raises:
        KdbenchError: the engine failed, or runs rounds and emits nothing.
    """
    depth = in_flight or ROUNDS_IN_FLIGHT.get(engine.backend, 1)
    start = time.perf_counter()
    waiting = deque(range(len(requests)))
    live: dict[int, _Live] = {}
    try:
        while waiting or live:
            yield from _admit(engine, requests, waiting, live, start)
            if not live:
                continue
            # No more than could still emit: a round emits one token at least.
            useful = max(1, *(request.left for request in live.values()))
            for _ in range(min(depth, useful) - engine.in_flight):
                engine.run(rounds, profile=profile)
                for request in live.values():
                    request.asked += 1
            found = list(_look(engine, live))
            yield from found
            if not found:
                _check_alive(live, depth)
                if engine.in_flight:
                    time.sleep(_NAP_S)
    finally:
        for slot in live:
            engine.release(slot)


def _admit(
    engine: Slots, requests: Sequence[Request], waiting: deque[int], live: dict[int, _Live], start: float
) -> Iterator[News]:
    while waiting and len(live) < engine.max_batch:
        index = waiting[0]
        refusal = ""
        try:
            slot = engine.admit(requests[index])
        except EngineFull as error:
            if live:
                return
            refusal = str(error)  # nobody will ever leave
        except InvalidArgument as error:
            refusal = str(error)
        waiting.popleft()
        if refusal:
            yield News(index, (), Clocked(start), refusal=refusal)
        else:
            live[slot] = _Live(index, Clocked(start), requests[index].max_new_tokens)


def _look(engine: Slots, live: dict[int, _Live]) -> Iterator[News]:
    for slot, request in list(live.items()):
        now = engine.progress(slot, request.seen)
        if not now.tokens and not now.finished:
            continue
        if now.tokens:
            request.clock.saw(len(now.tokens), time.perf_counter())
        request.seen = now.num_tokens
        request.left = request.limit - now.num_tokens
        if now.finished:
            engine.release(slot)
            del live[slot]
        yield News(request.index, now.tokens, request.clock, now if now.finished else None)


def _check_alive(live: dict[int, _Live], depth: int) -> None:
    for request in live.values():
        if request.asked > request.limit + 2 * depth:
            raise KdbenchError(
                f"the engine was asked for {request.asked} rounds and emitted {request.seen} tokens of request "
                f"{request.index}: a round must emit one at least"
            )
