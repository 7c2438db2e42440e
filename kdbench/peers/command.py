# SPDX-License-Identifier: Apache-2.0
"""One comparison from start to end: which workloads, on which backend, what was measured, recorded and drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kdbench import native, workloads
from kdbench.errors import BackendUnavailable, KdbenchError
from kdbench.peers import contest, gpu_facts
from kdbench.peers.adapter import OURS
from kdbench.peers.libraries import Libraries, torch_missing
from kdbench.peers.records import Recorder
from kdbench.peers.roster import PEERS

if TYPE_CHECKING:
    import pandas as pd

# The kernels somebody else has as well.
KERNELS = tuple(PEERS)

# Without a selection: a few shapes that engines meet, small to large, within some minutes.
TYPICAL = {
    "tree_build": ("b64-d7-k16-n1-sharp", "b256-d15-k64-n1-tied", "b1024-d15-k64-n1-sharp"),
    "tree_accept": ("b64-d7-n1-full", "b256-d15-n32-half", "b1024-d15-n32-full"),
    "verify_attn": (
        "h8-n64-p1k-b8-ps1",
        "h16-n64-p4k-b1-ps64",
        "h16-n64-p4k-b8-ps64-even",
        "h64-n64-p4k-b8-ps64-even",
        "h8-n8-p64k-b1-ps64",
    ),
    "draft_topk": ("r7-k16-bf16", "r15-k64-bf16", "r120-k64-bf16"),
}
TYPICAL_ON_CPU = {
    "tree_build": ("b64-d7-k16-n1-sharp", "b256-d15-k64-n1-tied", "b1024-d15-k64-n1-sharp"),
    "tree_accept": ("b64-d7-n1-full", "b1024-d15-n32-full"),
    "verify_attn": ("h8-n8-p64-b1-ps64", "h8-n16-p128-b2-ps1"),
    "draft_topk": ("r7-k16-bf16",),
}


@dataclass(frozen=True)
class Comparison:
    """What a run found.

    Attributes:
        lines: the records of everything timed.
        passed_over: everything else, with reasons.
        path: the file that the records were appended to, None when none was.
        machine: what this machine is called.
    """

    lines: list[dict[str, Any]]
    passed_over: list[contest.PassedOver]
    path: Path | None
    machine: str

    @property
    def frame(self) -> pd.DataFrame:
        """The records as ``kdbench.peer_results.load`` would read them."""
        from kdbench import peer_results  # a GPU box without pandas can measure and record

        return peer_results.frame_of([peer_results.row_of(line) for line in self.lines])

    @property
    def sound(self) -> bool:
        """True when somebody beside us was timed, and nobody had to be refused."""
        others = any(line["implementation"] != OURS for line in self.lines)
        return others and all(item.status == "skipped" for item in self.passed_over)


def selected(kernels: Sequence[str], names: Sequence[str] | None, backend: str) -> list[workloads.Workload]:
    """The workloads to compare on: the named ones, or a typical few of each kernel.

    Raises:
        KdbenchError: a name is unknown, or not one of ``kernels`` or of ``backend``.
    """
    if names is None:
        typical = TYPICAL_ON_CPU if backend == "cpu" else TYPICAL
        return [workloads.get(name) for kernel in kernels for name in typical[kernel]]
    found = [workloads.get(name) for name in names]
    for workload in found:
        if workload.kernel not in KERNELS:
            raise KdbenchError(f"--workload {workload.name} is one of {workload.kernel}, which nobody else has")
        if workload.kernel not in kernels:
            raise KdbenchError(f"--workload {workload.name} is one of {workload.kernel}, which --kernel leaves out")
        if backend not in workload.backends:
            raise KdbenchError(f"--workload {workload.name} does not run on {backend}")
    return found


def compare(
    chosen: Sequence[workloads.Workload],
    backend: str,
    samples: int,
    libraries: Libraries,
    results_dir: Path | None,
    tell: Callable[[str], None],
) -> Comparison:
    """Measure, record and collect.

    Args:
        chosen: as from ``selected``.
        backend: "cpu" or "cuda".
        samples: rounds, and so samples of each implementation.
        libraries: other people's.
        results_dir: asv's results folder, or None to keep nothing.
        tell: gets a line of progress for each outcome.

    Raises:
        BackendUnavailable: there is no library of ours, no GPU, or no Torch to prepare others' inputs with.
        DigestMismatch: one of our own kernels is wrong.
    """
    library = _ready(backend)
    recorder = Recorder(results_dir, library, gpu_facts.name(backend))
    lines: list[dict[str, Any]] = []
    passed_over: list[contest.PassedOver] = []
    for workload in chosen:
        for outcome in contest.run(workload, backend, library, libraries, PEERS[workload.kernel], samples):
            if isinstance(outcome, contest.Timed):
                lines.append(recorder.record(outcome))
                said = f"{lines[-1]['seconds'] * 1e6:.2f} µs"
            else:
                passed_over.append(outcome)
                said = f"{outcome.status}: {outcome.reason}"
            tell(f"{workload.kernel} {workload.name} {outcome.implementation}, {outcome.scope}: {said}")
    return Comparison(lines, passed_over, recorder.path if lines else None, recorder.machine)


def _ready(backend: str) -> native.Library:
    if reason := native.available(backend):
        hint = "; kdbench peers --backend cpu compares what runs on a CPU" if backend == "cuda" else ""
        raise BackendUnavailable(f"nothing can be compared on {backend}: {reason}{hint}")
    if backend == "cuda" and (reason := torch_missing("cuda")):
        raise BackendUnavailable(
            f"other people's kernels are run through torch: {reason}; pip install 'kdbench[peers]'"
        )
    return native.load(backend)
