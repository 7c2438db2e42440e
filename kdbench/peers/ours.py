# SPDX-License-Identifier: Apache-2.0
"""Our own kernels as implementations like any other."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from kdbench import calls
from kdbench.arrays import to_numpy
from kdbench.call_builder import Call
from kdbench.peers.adapter import (
    LOG_PROBS_TO_TREE,
    LOGITS_TO_TOPK,
    LOGITS_TO_TREE,
    OURS,
    TARGETS_TO_PATH,
    TREE_MASK,
    WALL,
    HostOutputs,
    Outputs,
    Peer,
    Prepared,
)
from kdbench.peers.inputs import Inputs
from kdbench.peers.libraries import Libraries
from kdbench.workloads import SOFTMAX_SCALE


class Ours(Peer):
    """One of our kernels, or a chain of two."""

    name = OURS
    backends = ("cpu", "cuda")

    def __init__(self, kernel: str, scope: str, clock: str | None = None) -> None:
        self.kernel = kernel
        self.scope = scope
        self.clock = clock or Peer.clock

    def missing(self, libraries: Libraries) -> str | None:
        """Never: without our own library there is nothing to compare with, and the run is refused before."""
        return None

    def version(self, libraries: Libraries) -> str:
        """The record's commit says it."""
        return OURS

    def prepare(self, inputs: Inputs) -> Prepared:
        """Calls with their outputs allocated, which launch on the current stream."""
        return launching(_CALLS[self.scope](inputs), inputs.backend)


OURS_BY_KERNEL = {
    "tree_build": (
        Ours("tree_build", LOG_PROBS_TO_TREE),
        Ours("tree_build", LOG_PROBS_TO_TREE, WALL),
        Ours("tree_build", LOGITS_TO_TREE),
        Ours("tree_build", LOGITS_TO_TREE, WALL),
    ),
    "tree_accept": (Ours("tree_accept", TARGETS_TO_PATH),),
    "draft_topk": (Ours("draft_topk", LOGITS_TO_TOPK),),
    "verify_attn": (Ours("verify_attn", TREE_MASK),),
}


def launching(chain: list[Call], backend: str) -> Prepared:
    """Calls one after the other as one launch."""
    outputs = {name: array for call in chain for name, array in call.outputs.items()}

    def launch() -> Outputs:
        stream = _current_stream() if backend == "cuda" else 0
        for call in chain:
            call.set_stream(stream)
            call.launch()
        return outputs

    return Prepared(launch, host_outputs)


def host_outputs(outputs: Outputs) -> HostOutputs:
    """Outputs that are ours already, in host memory; mask words unsigned again."""
    host = {name: to_numpy(array) for name, array in outputs.items()}
    return {name: array.view(np.uint64) if array.dtype == np.int64 else array for name, array in host.items()}


def _current_stream() -> int:
    return int(importlib.import_module("torch").cuda.current_stream().cuda_stream)


def _build(inputs: Inputs) -> list[Call]:
    names = ("topk_log_probs", "topk_token_ids", "root_token_ids", "seq_lens")
    return [_tree_build(inputs, {name: inputs.arrays[name] for name in names})]


def _build_from_logits(inputs: Inputs) -> list[Call]:
    topk = int(inputs.workload.shape["topk"])
    first = calls.prepare_draft_topk(inputs.arrays["logits"], topk, backend=inputs.backend, library=inputs.library)
    rows = {name: first.outputs[name] for name in ("topk_log_probs", "topk_token_ids")}
    return [first, _tree_build(inputs, {**rows, **{n: inputs.arrays[n] for n in ("root_token_ids", "seq_lens")}})]


def _tree_build(inputs: Inputs, arrays: Mapping[str, Any]) -> Call:
    budget = int(inputs.workload.shape["budget"])
    return calls.prepare_tree_build(**arrays, tree_budget=budget, backend=inputs.backend, library=inputs.library)


def _accept(inputs: Inputs) -> list[Call]:
    return [inputs.workload.prepare(inputs.arrays, inputs.backend, inputs.library)]


def _topk(inputs: Inputs) -> list[Call]:
    topk = int(inputs.workload.shape["topk"])
    return [calls.prepare_draft_topk(inputs.arrays["logits"], topk, backend=inputs.backend, library=inputs.library)]


def _attention(inputs: Inputs) -> list[Call]:
    return [attention_call(inputs, inputs.arrays["tree_mask"])]


def attention_call(inputs: Inputs, tree_mask: Any) -> Call:
    """verify_attn over the workload's arrays with any mask i64 or u64[B, N, W]."""
    given = {name: array for name, array in inputs.arrays.items() if name != "tree_mask"}
    return calls.prepare_verify_attn(
        **given, tree_mask=tree_mask, softmax_scale=SOFTMAX_SCALE, backend=inputs.backend, library=inputs.library
    )


_CALLS = {
    LOG_PROBS_TO_TREE: _build,
    LOGITS_TO_TREE: _build_from_logits,
    TARGETS_TO_PATH: _accept,
    LOGITS_TO_TOPK: _topk,
    TREE_MASK: _attention,
}
