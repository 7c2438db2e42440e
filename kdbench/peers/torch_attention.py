# SPDX-License-Identifier: Apache-2.0
"""verify_attn in plain Torch, float32: the truth that anybody can read, for small shapes."""

from __future__ import annotations

import importlib

import numpy as np

from kdbench.abi import KV_LORA_RANK
from kdbench.arrays import to_numpy
from kdbench.peers.adapter import TREE_MASK, HostOutputs, Outputs, Peer, Prepared, Unsuitable
from kdbench.peers.inputs import Inputs
from kdbench.peers.libraries import Libraries, torch_missing, torch_version
from kdbench.sglang_layout import unpack_mask
from kdbench.workloads import SOFTMAX_SCALE

# Scores of all rows and slots in float32, and the gathered latents. It is there to be read and to agree, and larger
# shapes would only keep everybody else waiting.
_MOST_BYTES = 128 << 20


class TorchAttention(Peer):
    """Gather, two products, a masked softmax, in float32 without TF32."""

    name = "torch fp32"
    kernel = "verify_attn"
    scope = TREE_MASK
    backends = ("cpu", "cuda")

    def missing(self, libraries: Libraries) -> str | None:
        """Torch."""
        return torch_missing("cpu")

    def version(self, libraries: Libraries) -> str:
        """Torch's."""
        return torch_version()

    def prepare(self, inputs: Inputs) -> Prepared:
        """The mask over all slots, and which cache row each slot is."""
        torch = importlib.import_module("torch")
        host = inputs.host
        batch, nodes, heads = inputs.shape("q_nope")[:3]
        slots = int((host["seq_lens"] + nodes).max())
        if 4 * batch * slots * (nodes * heads + 576) > _MOST_BYTES:
            raise Unsuitable(f"scores of more than {_MOST_BYTES >> 20} MiB in float32: it is for small shapes")
        visible = np.zeros((batch, nodes, slots), bool)
        for b, prefix in enumerate(host["seq_lens"]):
            seen = unpack_mask(host["tree_mask"])[b]
            visible[b, :, :prefix] = seen.any(axis=1)[:, None]
            visible[b, :, prefix : prefix + nodes] = seen[:, : slots - prefix]
        size = inputs.shape("kv_cache")[1]
        table = (host["block_table"].astype(np.int64)[:, :, None] * size + np.arange(size)).reshape(batch, -1)
        table = np.pad(table, ((0, 0), (0, max(0, slots - table.shape[1]))))[:, :slots]
        mask, rows = inputs.device(visible), inputs.device(table)
        used = inputs.device(np.any(visible, axis=1))
        cache = inputs.torch("kv_cache").view(-1, inputs.shape("kv_cache")[-1])
        nope, rope = inputs.torch("q_nope"), inputs.torch("q_pe")

        def launch() -> Outputs:
            # What nobody sees may hold anything, and 0 times NaN is NaN.
            latents = torch.where(used[..., None], cache[rows].float(), 0.0)
            query = torch.cat([nope, rope], dim=-1).float() * SOFTMAX_SCALE
            scores = torch.einsum("bnhc,bsc->bnhs", query, latents)
            scores = torch.where(mask[:, :, None], scores, -torch.inf)
            lse = torch.logsumexp(scores, dim=-1)
            weights = torch.where(mask[:, :, None], torch.exp(scores - lse[..., None]), 0.0)
            out = torch.einsum("bnhs,bsc->bnhc", weights, latents[..., :KV_LORA_RANK])
            return {"out": out.to(torch.bfloat16), "lse": lse}

        def to_host(outputs: Outputs) -> HostOutputs:
            return {name: to_numpy(array) for name, array in outputs.items()}

        return Prepared(launch, to_host, "gather, two products and a softmax in float32")
