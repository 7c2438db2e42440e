# SPDX-License-Identifier: Apache-2.0
"""What an implementation must offer to be compared: who it is, whether it is here, a launch, its outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kdbench.errors import KdbenchError
from kdbench.peers.inputs import Inputs
from kdbench.peers.libraries import Libraries

OURS = "kdtree"
# The slope between two CUDA graphs of a launch, or perf_counter around a call that is waited for.
GRAPH, WALL = "graph slope", "wall clock"

# What a time stands for. Implementations of one scope read and write the same things; NO_MASK does less than TREE_MASK.
LOG_PROBS_TO_TREE = "log-probs to tree"
LOGITS_TO_TREE = "logits to tree"
TARGETS_TO_PATH = "targets to path"
LOGITS_TO_TOPK = "logits to top-k"
TREE_MASK = "tree mask"
NO_MASK = "no mask"

Outputs = Mapping[str, Any]
HostOutputs = dict[str, np.ndarray[Any, Any]]


class Unsuitable(KdbenchError):  # noqa: N818 - what is the case, not what went wrong
    """An implementation cannot do this workload: the message says why."""


@dataclass(frozen=True)
class Prepared:
    """One implementation, ready to run on one set of inputs.

    Attributes:
        launch: one run on the current stream; returns the arrays that it writes, by the implementation's own names.
        to_host: those arrays in host memory, as our kernel would have written them.
        note: what a reader of its time should know.
    """

    launch: Callable[[], Outputs]
    to_host: Callable[[Outputs], HostOutputs]
    note: str = ""


class Peer(ABC):
    """One implementation of one kernel.

    Attributes:
        name: as tables show it.
        kernel: which of our kernels it is compared with.
        scope: what it does, one of the constants of this module.
        clock: how it is timed on a GPU; on a CPU everything is timed by the wall clock.
        backends: where it can run.
    """

    name: str
    kernel: str
    scope: str
    clock: str = GRAPH
    backends: tuple[str, ...] = ("cuda",)

    @abstractmethod
    def missing(self, libraries: Libraries) -> str | None:
        """Why it cannot run here, as a sentence, or None."""

    @abstractmethod
    def version(self, libraries: Libraries) -> str:
        """What was measured: a distribution and its version, or a file and its digest."""

    @abstractmethod
    def prepare(self, inputs: Inputs) -> Prepared:
        """Everything that is not timed: layouts, plans, metadata. Raises Unsuitable."""
