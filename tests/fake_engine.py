# SPDX-License-Identifier: Apache-2.0
"""An engine in a few lines: a hash for a model, a queue for a device, the counting of the real one."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kdbench.abi import RequestStatus
from kdbench.engine_types import EngineFull, Profile, Progress, Request, Rounds
from kdbench.errors import InvalidArgument

VOCAB_SIZE = 97


def following(tokens: Sequence[int]) -> int:
    """The one token that the fake model says after ``tokens``."""
    return zlib.crc32(bytes(tokens)) % VOCAB_SIZE


def autoregressive(request: Request) -> list[int]:
    """What any mode must say."""
    tokens = list(request.prompt)
    out: list[int] = []
    while len(out) < request.max_new_tokens and not (out and out[-1] in request.stop_tokens):
        out.append(following([*tokens, *out]))
    return out


@dataclass
class _Slot:
    request: Request
    tokens: list[int] = field(default_factory=list)
    rounds: int = 0
    accepted: int = 0
    finished: bool = False
    histogram: list[int] = field(default_factory=lambda: [0] * 33)

    def emit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self.finished:
                return
            self.tokens.append(token)
            self.finished = token in self.request.stop_tokens or len(self.tokens) == self.request.max_new_tokens


class FakeEngine:
    """``kdbench.engine.Engine`` as far as the loop knows it.

    Args:
        max_batch, pages: slots, and tokens that all of them may hold together.
        lag: device steps behind: 0 runs a round when it is asked for; else each look lets one round come to its end.
        mute: rounds emit nothing, as a broken engine's would.
    """

    def __init__(self, max_batch: int = 1, pages: int = 10_000, lag: int = 0, mute: bool = False) -> None:
        self.backend = "cuda" if lag else "cpu"
        self.target = SimpleNamespace(bos_token_id=0, eos_token_ids=(1,))
        self.max_batch, self.pages, self.lag, self.mute = max_batch, pages, lag, mute
        self.slots: dict[int, _Slot] = {}
        self.queue: deque[Rounds] = deque()
        self.deepest = self.waits = self.looks = 0
        self.profiled = 0
        self.closed = False

    @property
    def in_flight(self) -> int:
        return len(self.queue)

    def admit(self, request: Request) -> int:
        need = len(request.prompt) + request.max_new_tokens
        if need > self.pages:
            raise InvalidArgument(f"the request needs {need} tokens of cache, and there are {self.pages}")
        used = sum(len(s.request.prompt) + s.request.max_new_tokens for s in self.slots.values())
        free = [slot for slot in range(self.max_batch) if slot not in self.slots]
        if not free or used + need > self.pages:
            raise EngineFull("no slot or too few pages are free")
        self.slots[free[0]] = slot = _Slot(request)
        slot.emit([following(request.prompt)])
        return free[0]

    def run(self, rounds: Rounds, count: int = 1, *, profile: Profile = Profile.NONE) -> None:
        self.profiled += count * (profile is Profile.STAGES)
        self.queue.extend([rounds] * count)
        self.deepest = max(self.deepest, len(self.queue))
        if not self.lag:
            self._drain()

    def progress(self, slot: int, first: int = 0, *, wait: bool = False) -> Progress:
        self.looks += 1
        if wait:
            self.waits += 1
            self._drain()
        elif self.queue and self.looks % max(1, self.lag) == 0:
            self._round(self.queue.popleft())
        at = self.slots[slot]
        return Progress(
            tokens=tuple(at.tokens[first:]),
            num_tokens=len(at.tokens),
            finished=at.finished,
            rounds=at.rounds,
            rounds_done=0,
            accepted=at.accepted,
            status=RequestStatus(0),
            histogram=tuple(at.histogram),
        )

    def release(self, slot: int) -> None:
        self._drain()
        del self.slots[slot]

    def stage_seconds(self) -> tuple[dict[str, float], int]:
        rounds, self.profiled = self.profiled, 0
        return {"draft": 2.0 * rounds, "verify": 6.0 * rounds}, rounds

    def close(self) -> None:
        self.closed = True

    def _drain(self) -> None:
        while self.queue:
            self._round(self.queue.popleft())

    def _round(self, rounds: Rounds) -> None:
        for at in self.slots.values():
            if at.finished or self.mute:
                continue
            # How far the draft is right is the drafter's luck: as far as a hash of the text says.
            length = 1 if rounds.mode == "ar" else 1 + zlib.crc32(bytes([7, *at.request.prompt, *at.tokens])) % 8
            text = [*at.request.prompt, *at.tokens]
            new: list[int] = []
            for _ in range(length):
                new.append(following([*text, *new]))
            at.rounds += 1
            at.accepted += length
            at.histogram[length] += 1
            at.emit(new)


class Letters:
    """A tokenizer of one byte a token, so that a character of two bytes comes in two tokens."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def stream(self) -> Any:
        import codecs

        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return SimpleNamespace(
            push=lambda ids: decoder.decode(bytes(ids)), finish=lambda: decoder.decode(b"", final=True)
        )
