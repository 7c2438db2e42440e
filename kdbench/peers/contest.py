# SPDX-License-Identifier: Apache-2.0
"""One workload, everybody who can do it: prepared, compared with ours, and timed in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from kdbench.golden import DigestMismatch
from kdbench.native import Library
from kdbench.peers import gpu_facts
from kdbench.peers.adapter import (
    GRAPH,
    LOG_PROBS_TO_TREE,
    LOGITS_TO_TOPK,
    LOGITS_TO_TREE,
    NO_MASK,
    OURS,
    TARGETS_TO_PATH,
    TREE_MASK,
    WALL,
    HostOutputs,
    Peer,
    Prepared,
    Unsuitable,
)
from kdbench.peers.check import WrongOutput, check
from kdbench.peers.inputs import Inputs
from kdbench.peers.libraries import Libraries
from kdbench.peers.ours import OURS_BY_KERNEL, attention_call, launching
from kdbench.peers.samplers import GraphSampler, Sampler, WallSampler, flusher, interleave, l2_bytes, waiter
from kdbench.timing import MeasuringError, refuse_impossible
from kdbench.workloads import Workload

# Scopes that are timed in turns with one another.
_CONTESTS = {
    "tree_build": ((LOG_PROBS_TO_TREE,), (LOGITS_TO_TREE,)),
    "tree_accept": ((TARGETS_TO_PATH,),),
    "verify_attn": ((TREE_MASK, NO_MASK),),
    "draft_topk": ((LOGITS_TO_TOPK,),),
}
# Attention finds nothing in L2: copies of its inputs outgrow it this many times, within reason.
_L2_FACTOR = 3
_MOST_COPIES = 64
_MOST_COPIED = 8 << 30
# Logits of the whole vocabulary for every row of every request; they are checked in host memory.
_MOST_LOGIT_ROWS = 512


@dataclass(frozen=True)
class Timed:
    """What one implementation took.

    Attributes:
        samples: seconds a launch, one a round; samples of one contest belong together by their place.
        mode: "hot" or "cold".
        error: how far its output is from ours: 0 where it must be equal.
        sm_clock_mhz: the GPU's, right after the last round.
    """

    workload: Workload
    implementation: str
    scope: str
    clock: str
    mode: str
    samples: tuple[float, ...]
    error: float
    version: str
    note: str
    sm_clock_mhz: float | None


@dataclass(frozen=True)
class PassedOver:
    """An implementation without a time.

    Attributes:
        status: "skipped" (not here, or not for this workload), "wrong" (refused for its output) or "failed".
    """

    workload: Workload
    implementation: str
    scope: str
    status: str
    reason: str


Outcome = Timed | PassedOver


@dataclass(frozen=True)
class _Entrant:
    peer: Peer
    clock: str
    error: float
    note: str
    launches: list[Prepared]


def run(
    workload: Workload, backend: str, library: Library, libraries: Libraries, peers: Sequence[Peer], rounds: int
) -> Iterator[Outcome]:
    """Every implementation's time on one workload, or why it has none; contest by contest, ours first.

    Args:
        workload: one that runs on ``backend``.
        library: our native library of that backend.
        peers: the others, of this workload's kernel.
        rounds: samples of each.

    Raises:
        DigestMismatch: our own kernel is wrong.
    """
    inputs: Inputs | None = None
    for scopes in _CONTESTS[workload.kernel]:
        rivals = []
        for peer in (peer for peer in peers if peer.scope in scopes):
            reason = _absent(peer, backend, libraries) or _beyond_memory(peer.scope, workload)
            if reason:
                yield PassedOver(workload, peer.name, peer.scope, "skipped", reason)
            else:
                rivals.append(peer)
        if rivals:
            inputs = inputs or Inputs.of(workload, backend, library, libraries)
            here = inputs.with_logits() if scopes == (LOGITS_TO_TREE,) else inputs
            yield from _contest(here, scopes, rivals, rounds)


def _absent(peer: Peer, backend: str, libraries: Libraries) -> str | None:
    if backend not in peer.backends:
        return f"it runs on {' and '.join(peer.backends)} only"
    return peer.missing(libraries)


def _beyond_memory(scope: str, workload: Workload) -> str | None:
    if scope == LOGITS_TO_TREE and (rows := workload.shape["batch"] * workload.shape["horizon"]) > _MOST_LOGIT_ROWS:
        return f"{rows} rows of logits over the whole vocabulary: at most {_MOST_LOGIT_ROWS} are made"
    return None


def _contest(inputs: Inputs, scopes: tuple[str, ...], rivals: Sequence[Peer], rounds: int) -> Iterator[Outcome]:
    workload = inputs.workload
    wanted: dict[str, HostOutputs] = {}
    entrants: list[_Entrant] = []
    ours = [peer for peer in OURS_BY_KERNEL[workload.kernel] if peer.scope in scopes]
    for peer in [*_once_a_clock(ours, rivals, inputs.backend), *rivals]:
        try:
            prepared = peer.prepare(inputs)
            outputs = _outputs_of(prepared, inputs)
            if peer.name == OURS and peer.scope != LOGITS_TO_TREE:
                workload.check(outputs)
            if peer.name == OURS:
                wanted.setdefault(peer.scope, outputs)
            elif peer.scope == NO_MASK and NO_MASK not in wanted:
                wanted[NO_MASK] = _unmasked(inputs)
            apart = check(peer.scope, outputs, wanted[peer.scope], inputs)
        except Exception as error:  # a foreign library may raise anything, and others must still be timed
            yield _passed_over(peer, workload, error)
            continue
        clock = WALL if inputs.backend == "cpu" else peer.clock
        entrants.append(_Entrant(peer, clock, apart, prepared.note, [prepared]))
    if any(entrant.peer.name != OURS for entrant in entrants):
        yield from _time(inputs, entrants, wanted, rounds)


def _once_a_clock(ours: Sequence[Peer], rivals: Sequence[Peer], backend: str) -> list[Peer]:
    """On a CPU there is one clock; on a GPU ours is read by the wall clock only beside a rival that has no other."""
    if backend == "cpu":
        return list(ours[:1])
    clocks = {GRAPH, *(rival.clock for rival in rivals)}
    return [peer for peer in ours if peer.clock in clocks]


def _outputs_of(prepared: Prepared, inputs: Inputs) -> HostOutputs:
    raw = prepared.launch()
    waiter(inputs.backend)()
    return prepared.to_host(raw)


def _unmasked(inputs: Inputs) -> HostOutputs:
    """What attention gives when every real row sees every real slot: our kernel takes any mask."""
    mask = inputs.host["tree_mask"]
    real = np.arange(mask.shape[1]) < inputs.host["num_nodes"][:, None]
    bits = np.zeros((*mask.shape[:2], 64 * mask.shape[2]), bool)
    bits[..., : mask.shape[1]] = real[:, :, None] & real[:, None, :]
    words = np.packbits(bits, axis=-1, bitorder="little").view("<u8")
    dense = inputs.device(words) if inputs.backend == "cuda" else words
    return _outputs_of(launching([attention_call(inputs, dense)], inputs.backend), inputs)


def _passed_over(peer: Peer, workload: Workload, error: Exception) -> PassedOver:
    if peer.name == OURS and isinstance(error, DigestMismatch):
        raise error
    if isinstance(error, Unsuitable):
        return PassedOver(workload, peer.name, peer.scope, "skipped", str(error))
    if isinstance(error, WrongOutput):
        return PassedOver(workload, peer.name, peer.scope, "wrong", str(error))
    if peer.name == OURS:
        raise error
    words = (str(error).strip().splitlines() or [""])[0][:300]
    return PassedOver(workload, peer.name, peer.scope, "failed", f"{type(error).__name__}: {words}")


def _time(
    inputs: Inputs, entrants: Sequence[_Entrant], wanted: dict[str, HostOutputs], rounds: int
) -> Iterator[Outcome]:
    workload = inputs.workload
    cold = workload.kernel == "verify_attn" and inputs.backend == "cuda"
    copies = _copies(inputs) if cold else []
    flush = flusher(2 * l2_bytes()) if copies else None
    samplers: list[tuple[_Entrant, Sampler]] = []
    for entrant in entrants:
        try:
            entrant.launches.extend(entrant.peer.prepare(copy) for copy in copies)
            sampler = _sampler(inputs, entrant, flush)
            sampler.warm_up()
            samplers.append((entrant, sampler))
        except Exception as error:  # capture is where a foreign library that synchronises fails
            yield _passed_over(entrant.peer, workload, error)
    times = interleave([sampler for _, sampler in samplers], rounds)
    clock_mhz = gpu_facts.sm_clock_mhz() if inputs.backend == "cuda" else None
    for (entrant, sampler), samples in zip(samplers, times, strict=True):
        try:
            written = entrant.launches[0].to_host(sampler.last_outputs())
            check(entrant.peer.scope, written, wanted[entrant.peer.scope], inputs)
            if entrant.peer.scope != LOGITS_TO_TREE:
                refuse_impossible(workload, gpu_facts.name(inputs.backend), "cold" if cold else "hot", median(samples))
        except (WrongOutput, MeasuringError) as error:
            yield PassedOver(workload, entrant.peer.name, entrant.peer.scope, "wrong", f"when timed: {error}")
            continue
        yield Timed(
            workload=workload,
            implementation=entrant.peer.name,
            scope=entrant.peer.scope,
            clock=entrant.clock,
            mode="cold" if cold else "hot",
            samples=tuple(samples),
            error=entrant.error,
            version=entrant.peer.version(inputs.libraries),
            note=entrant.note,
            sm_clock_mhz=clock_mhz,
        )


def _sampler(inputs: Inputs, entrant: _Entrant, flush: Callable[[], None] | None) -> Sampler:
    launches = [prepared.launch for prepared in entrant.launches]
    if entrant.clock == WALL:
        return WallSampler(launches[0], waiter(inputs.backend))
    # With copies that do not outgrow the cache, none of them may be met twice in a graph.
    enough = len(launches) * inputs.touched_bytes >= _L2_FACTOR * l2_bytes()
    return GraphSampler(launches, flush, 1 << 20 if enough or len(launches) == 1 else len(launches))


def _copies(inputs: Inputs) -> list[Inputs]:
    touched = inputs.touched_bytes
    wanted = _L2_FACTOR * l2_bytes() // touched + 1
    return [inputs.copy() for _ in range(max(0, min(wanted, _MOST_COPIES, _MOST_COPIED // touched) - 1))]
