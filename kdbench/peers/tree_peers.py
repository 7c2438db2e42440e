# SPDX-License-Identifier: Apache-2.0
"""Who else builds trees: the Python heap of the paper, and SGLang's builder with the selection before it."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from kdbench.arrays import to_numpy
from kdbench.baselines import heap_builder
from kdbench.peers.adapter import (
    LOG_PROBS_TO_TREE,
    LOGITS_TO_TREE,
    WALL,
    HostOutputs,
    Outputs,
    Peer,
    Prepared,
    Unsuitable,
)
from kdbench.peers.eagle_layout import candidates, restored
from kdbench.peers.inputs import Inputs
from kdbench.peers.libraries import Libraries, torch_missing, torch_version
from kdbench.peers.ours import host_outputs
from kdbench.tree import DraftTree

# sgl-kernel's tree mask as bool[B, N, N], without the prefix.
_QLEN_ONLY = 1
# Its builder has a thread a node and one block a request.
_MOST_THREADS = 1024


class HeapFromLogProbs(Peer):
    """The heap from log-probs to a tree; on a GPU both lie there, and are copied to the host and back."""

    name = "Python heap"
    kernel = "tree_build"
    scope = LOG_PROBS_TO_TREE
    clock = WALL
    backends = ("cpu", "cuda")

    def missing(self, libraries: Libraries) -> str | None:
        """Never: a GPU's comparison has Torch anyway."""
        return None

    def version(self, libraries: Libraries) -> str:
        """It is part of kdbench."""
        return "kdbench.baselines.heap_builder"

    def prepare(self, inputs: Inputs) -> Prepared:
        """Nothing to prepare: the copies are part of a round."""
        budget, arrays = int(inputs.workload.shape["budget"]), inputs.arrays
        if inputs.backend == "cpu":
            return Prepared(lambda: heap_builder.build(**arrays, tree_budget=budget).arrays(), host_outputs)
        roots, lengths = inputs.host["root_token_ids"], inputs.host["seq_lens"]

        def launch() -> Outputs:
            log_probs, token_ids = (arrays[name].cpu().numpy() for name in ("topk_log_probs", "topk_token_ids"))
            return _on_gpu(heap_builder.build(log_probs, token_ids, roots, lengths, budget))

        return Prepared(launch, host_outputs, "copy to host, heap, copy back; waited for")


class HeapFromLogits(Peer):
    """End to end: top-k and logsumexp where the logits are, the heap on the host, the tree back beside the logits."""

    name = "Python heap"
    kernel = "tree_build"
    scope = LOGITS_TO_TREE
    clock = WALL
    backends = ("cpu", "cuda")

    def missing(self, libraries: Libraries) -> str | None:
        """Torch takes the top k."""
        return torch_missing("cpu")

    def version(self, libraries: Libraries) -> str:
        """The heap is part of kdbench."""
        return f"kdbench.baselines.heap_builder, {torch_version()}"

    def prepare(self, inputs: Inputs) -> Prepared:
        """Nothing to prepare: every copy between device and host is part of a round."""
        logits = inputs.torch("logits")
        topk, budget = int(inputs.workload.shape["topk"]), int(inputs.workload.shape["budget"])
        roots, lengths = inputs.host["root_token_ids"], inputs.host["seq_lens"]

        def launch() -> Outputs:
            wide = logits.float()
            top = wide.topk(topk, dim=-1)
            log_probs = (top.values - wide.logsumexp(-1, keepdim=True)).cpu().numpy()
            token_ids = top.indices.cpu().numpy().astype(np.int32)
            tree = heap_builder.build(log_probs, token_ids, roots, lengths, budget)
            there = tree.arrays() if inputs.backend == "cpu" else _on_gpu(tree)
            return {"topk_log_probs": log_probs, "topk_token_ids": token_ids, **there}

        return Prepared(launch, host_outputs, "top-k and logsumexp, copy to host, heap, copy back; waited for")


class SglangLink(Peer):
    """build_tree_kernel_efficient alone: links and mask of nodes that somebody has chosen."""

    name = "SGLang link"
    kernel = "tree_build"
    scope = LOG_PROBS_TO_TREE
    selects = False

    def missing(self, libraries: Libraries) -> str | None:
        """sgl-kernel."""
        return libraries.missing("sgl_kernel")

    def version(self, libraries: Libraries) -> str:
        """sgl-kernel's."""
        return libraries.version("sgl_kernel")

    def prepare(self, inputs: Inputs) -> Prepared:
        """Our tree in SGLang's candidate lists; see ``kdbench.peers.eagle_layout``."""
        torch = importlib.import_module("torch")
        ops = torch.ops.sgl_kernel
        budget = int(inputs.workload.shape["budget"])
        tree = inputs.shared.get("tree") or heap_builder.build(**inputs.host, tree_budget=budget)
        inputs.shared["tree"] = tree
        batch, nodes = tree.parents.shape
        if nodes > _MOST_THREADS:
            raise Unsuitable(f"SGLang's builder has a thread a node, at most {_MOST_THREADS}, and N is {nodes}")
        if int(tree.num_nodes.min()) < nodes:
            raise Unsuitable("SGLang's builder knows no pads, and a request of this workload has some")
        made = candidates(tree)
        parent_list, kept, scores = (inputs.device(a) for a in (made.parent_list, made.selected_index, made.scores))
        lengths = inputs.device(inputs.host["seq_lens"].astype(np.int64))
        mask = inputs.device(np.zeros((batch, nodes, nodes), bool))
        positions, index = (inputs.device(np.zeros((batch, nodes), np.int64)) for _ in range(2))
        links = inputs.device(np.zeros((2, batch, nodes), np.int64))
        sizes = (made.topk, made.depth, nodes, _QLEN_ONLY)

        def launch() -> Outputs:
            chosen = _select(torch, scores, nodes - 1) if self.selects else kept
            # It links into what it finds, and -1 says that there is nothing yet.
            links.fill_(-1)
            ops.build_tree_kernel_efficient(
                parent_list, chosen, lengths, mask, positions, index, links[0], links[1], *sizes
            )
            return {"positions": positions, "tree_mask": mask, "links": links}

        def to_host(outputs: Outputs) -> HostOutputs:
            positions, links, mask = (to_numpy(outputs[name]) for name in ("positions", "links", "tree_mask"))
            return restored(positions, links, mask, made.order)

        chosen_from = f"topk, sort and gather of {scores.shape[1]} candidates; " if self.selects else ""
        return Prepared(launch, to_host, f"{chosen_from}one fill of the link arrays, which it needs, included")


class SglangSelectAndLink(SglangLink):
    """The selection before it as well: topk over all candidates' scores, sort, gather."""

    name = "SGLang select + link"
    selects = True


def _select(torch: Any, scores: Any, count: int) -> Any:
    """Codes i64[B, count] of the best candidates, ascending; their tokens are gathered, as a draft round needs them."""
    best = torch.topk(scores, count, dim=-1).indices
    codes = torch.sort(best, dim=-1).values
    torch.gather(scores, 1, codes)
    return codes


def _on_gpu(tree: DraftTree) -> Outputs:
    torch = importlib.import_module("torch")
    # Mask words travel as int64: Torch copies uint64 too, but computes nothing with it.
    signed = {n: a.view(np.int64) if a.dtype == np.uint64 else a for n, a in tree.arrays().items()}
    return {name: torch.from_numpy(array).to("cuda") for name, array in signed.items()}
