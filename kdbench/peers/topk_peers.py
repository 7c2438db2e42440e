# SPDX-License-Identifier: Apache-2.0
"""Who else takes the top k of a log-softmax: Torch as engines call it, and FlashInfer's radix selection."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from kdbench.arrays import to_numpy
from kdbench.peers.adapter import LOGITS_TO_TOPK, HostOutputs, Outputs, Peer, Prepared
from kdbench.peers.inputs import Inputs
from kdbench.peers.libraries import Libraries, torch_missing, torch_version


class TorchTopk(Peer):
    """float, topk, logsumexp, and the difference."""

    name = "torch"
    kernel = "draft_topk"
    scope = LOGITS_TO_TOPK
    backends = ("cpu", "cuda")

    def missing(self, libraries: Libraries) -> str | None:
        """Torch."""
        return torch_missing("cpu")

    def version(self, libraries: Libraries) -> str:
        """Torch's."""
        return torch_version()

    def prepare(self, inputs: Inputs) -> Prepared:
        """Nothing to prepare."""
        logits, topk = inputs.torch("logits"), int(inputs.workload.shape["topk"])

        def launch() -> Outputs:
            wide = logits.float()
            return _answer(wide, *wide.topk(topk, dim=-1))

        return Prepared(launch, _to_host, "float, topk, logsumexp and the difference")


class FlashInferTopk(Peer):
    """flashinfer.top_k, sorted, and Torch's logsumexp."""

    name = "FlashInfer top_k"
    kernel = "draft_topk"
    scope = LOGITS_TO_TOPK

    def missing(self, libraries: Libraries) -> str | None:
        """FlashInfer, of a release that has top_k."""
        reason = libraries.missing("flashinfer")
        if reason is None and not hasattr(libraries.module("flashinfer"), "top_k"):
            return f"{libraries.version('flashinfer')} has no top_k"
        return reason

    def version(self, libraries: Libraries) -> str:
        """FlashInfer's."""
        return libraries.version("flashinfer")

    def prepare(self, inputs: Inputs) -> Prepared:
        """Nothing to prepare."""
        top_k = inputs.libraries.module("flashinfer").top_k
        logits, topk = inputs.torch("logits"), int(inputs.workload.shape["topk"])

        def launch() -> Outputs:
            values, indices = top_k(logits, topk, sorted=True)
            return _answer(logits.float(), values.float(), indices)

        return Prepared(launch, _to_host, "top_k of the logits as they are, Torch's float and logsumexp")


def _answer(wide: Any, values: Any, indices: Any) -> Outputs:
    torch = importlib.import_module("torch")
    return {
        "topk_log_probs": values - torch.logsumexp(wide, -1, keepdim=True),
        "topk_token_ids": indices,
    }


def _to_host(outputs: Outputs) -> HostOutputs:
    ids = to_numpy(outputs["topk_token_ids"]).astype(np.int32)
    return {"topk_log_probs": to_numpy(outputs["topk_log_probs"]), "topk_token_ids": ids}
