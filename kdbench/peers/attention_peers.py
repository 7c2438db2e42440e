# SPDX-License-Identifier: Apache-2.0
"""Who else verifies trees in MLA: cascades of a prefix kernel and a tail, SGLang's Triton kernel, Torch in float32.

Beside them each engine runs without any mask over prefix and tree. That does less than a tree needs, and is the upper
competitor: what its authors would reach if the mask cost nothing.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from kdbench import kernels
from kdbench.abi import KV_LORA_RANK
from kdbench.arrays import to_numpy
from kdbench.peers.adapter import NO_MASK, TREE_MASK, HostOutputs, Outputs, Peer, Prepared, Unsuitable
from kdbench.peers.attention_engines import Engine, Paging
from kdbench.peers.inputs import Inputs
from kdbench.peers.libraries import Libraries
from kdbench.sglang_layout import unpack_mask
from kdbench.workloads import SOFTMAX_SCALE


class Unmasked(Peer):
    """An engine over prefix and tree slots alike, every row seeing all of its request."""

    kernel = "verify_attn"
    scope = NO_MASK

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.name = engine.name

    def missing(self, libraries: Libraries) -> str | None:
        """The engine's."""
        return self.engine.missing(libraries)

    def version(self, libraries: Libraries) -> str:
        """The engine's."""
        return libraries.version(self.engine.library)

    def prepare(self, inputs: Inputs) -> Prepared:
        """One plan over all slots."""
        host = inputs.host
        lens = (host["seq_lens"] + host["num_nodes"]).astype(np.int32)
        run = self.engine.plan(inputs, _whole(inputs, lens), f"{self.name} unmasked")
        return _prepared(inputs, run, self.engine.rows_first, "no mask: does less than a tree needs")


class Cascade(Peer):
    """An engine over the prefix, a tail over the tree, and their merge by lse: the way to a tree without our kernel.

    The tail is our own (``verify_attn`` with tail_only), or, as SGLang does it, the engine again with every node as a
    request of its own over its ancestors' slots.
    """

    kernel = "verify_attn"
    scope = TREE_MASK

    def __init__(self, engine: Engine, own_tail: bool) -> None:
        self.engine = engine
        self.own_tail = own_tail
        self.name = f"{engine.name} + {'kdtree tail' if own_tail else 'ancestor lists'} + merge"

    def missing(self, libraries: Libraries) -> str | None:
        """The engine's, or the tail's or the merge's."""
        if reason := self.engine.missing(libraries):
            return reason
        if self.own_tail:
            return _own_tail_missing()
        if libraries.missing("sgl_kernel") is None or _own_tail_missing() is None:
            return None
        return f"nothing here merges two results by lse: {libraries.missing('sgl_kernel')}"

    def version(self, libraries: Libraries) -> str:
        """The engine's, and who merges."""
        return f"{libraries.version(self.engine.library)}, {self._merger(libraries)}"

    def prepare(self, inputs: Inputs) -> Prepared:
        """Two plans and a merge."""
        lens = inputs.host["seq_lens"]
        if int(lens.min()) == 0:
            raise Unsuitable("a request of this workload has no prefix, and so nothing to cascade")
        rows = int(inputs.workload.shape["nodes"])
        prefix = self.engine.plan(inputs, _whole(inputs, lens), f"{self.name} prefix")
        tail = _own_tail(inputs) if self.own_tail else self._ancestors(inputs)
        merge = _own_merge if self._merger(inputs.libraries) == "kdtree merge" else _sgl_merge

        def run() -> tuple[Any, Any]:
            out, lse = prefix()
            return merge(out, self.engine.rows_first(lse, rows), *tail())

        return _prepared(
            inputs, run, lambda lse, _: lse, "prefix, tail and merge in one graph; plans outside the clock"
        )

    def _merger(self, libraries: Libraries) -> str:
        # SGLang's cascade is measured with SGLang's merge where that is at hand.
        if not self.own_tail and libraries.missing("sgl_kernel") is None:
            return f"merge_state_v2 of {libraries.version('sgl_kernel')}"
        return "kdtree merge"

    def _ancestors(self, inputs: Inputs) -> Callable[[], tuple[Any, Any]]:
        if not self.engine.any_page:
            raise Unsuitable(f"{self.engine.name} cannot read single slots, which ancestor lists are made of")
        run = self.engine.plan(inputs, _ancestor_slots(inputs), f"{self.name} tail")

        def tail() -> tuple[Any, Any]:
            out, lse = run()
            return out, self.engine.rows_first(lse, 1)

        return tail


class TritonExtend(Peer):
    """SGLang's Triton extend kernel with a dense boolean mask: the one tree backend of its MLA path."""

    name = "SGLang Triton extend"
    kernel = "verify_attn"
    scope = TREE_MASK

    def missing(self, libraries: Libraries) -> str | None:
        """SGLang and Triton."""
        return libraries.missing("sglang")

    def version(self, libraries: Libraries) -> str:
        """SGLang's."""
        return libraries.version("sglang")

    def prepare(self, inputs: Inputs) -> Prepared:
        """Query and tree rows side by side, slot lists of one page a slot, and the mask over prefix and tree."""
        torch = importlib.import_module("torch")
        extend = inputs.libraries.module("sglang").extend_attention_fwd
        host, nodes = inputs.host, int(inputs.workload.shape["nodes"])
        batch, lens = len(host["seq_lens"]), host["seq_lens"].astype(np.int64)
        slots = _flat_slots(inputs)
        cache = inputs.torch("kv_cache").view(-1, 1, inputs.shape("kv_cache")[-1])
        query = torch.cat([inputs.torch("q_nope"), inputs.torch("q_pe")], dim=-1).flatten(0, 1)
        tree_slots = np.concatenate([slots[b, p : p + nodes] for b, p in enumerate(lens)])
        keys = cache[inputs.device(tree_slots)]
        out = torch.empty_like(query[..., :KV_LORA_RANK], memory_format=torch.contiguous_format)
        seen = unpack_mask(host["tree_mask"])
        # A row of pads sees the prefix here: a softmax over nothing would be NaN, which is theirs and not ours to time.
        mask = np.concatenate(
            [np.concatenate([np.ones((nodes, p), bool), seen[b]], 1).ravel() for b, p in enumerate(lens)]
        )
        starts = [np.arange(batch + 1) * nodes, np.concatenate([[0], np.cumsum(lens)])]
        starts.append(np.concatenate([[0], np.cumsum(nodes * (lens + nodes))]))
        qo, kv, masked = (inputs.device(start.astype(np.int64)) for start in starts)
        prefix_slots = inputs.device(np.concatenate([slots[b, :p] for b, p in enumerate(lens)]))
        visible = inputs.device(mask)

        def launch() -> Outputs:
            extend(
                query, keys, keys[..., :KV_LORA_RANK], out, cache, cache[..., :KV_LORA_RANK], qo, kv, prefix_slots,
                visible, True, masked, nodes, 1.0, 1.0, sm_scale=SOFTMAX_SCALE,
            )  # fmt: skip
            return {"out": out}

        shape = (batch, nodes, *query.shape[1:2], KV_LORA_RANK)
        return Prepared(launch, lambda o: {"out": to_numpy(o["out"]).reshape(shape)}, "keys of tree rows given apart")


def _prepared(
    inputs: Inputs, run: Callable[[], tuple[Any, Any]], rows_first: Callable[[Any, int], Any], note: str
) -> Prepared:
    shape = inputs.shape("q_nope")

    def launch() -> Outputs:
        out, lse = run()
        return {"out": out, "lse": lse}

    def to_host(outputs: Outputs) -> HostOutputs:
        lse = rows_first(outputs["lse"], shape[1])
        return {"out": to_numpy(outputs["out"]).reshape(shape), "lse": to_numpy(lse).reshape(shape[:3])}

    return Prepared(launch, to_host, note)


def _whole(inputs: Inputs, lens: np.ndarray[Any, Any]) -> Paging:
    host = inputs.host
    return Paging(int(inputs.workload.shape["nodes"]), lens, host["block_table"], inputs.shape("kv_cache")[1])


def _flat_slots(inputs: Inputs) -> np.ndarray[Any, Any]:
    """i64[B, slots]: where in the cache, seen as rows, each logical slot of a request stands."""
    table, size = inputs.host["block_table"].astype(np.int64), inputs.shape("kv_cache")[1]
    slots: np.ndarray[Any, Any] = table[:, :, None] * size + np.arange(size)
    return slots.reshape(len(table), -1)


def _ancestor_slots(inputs: Inputs) -> Paging:
    """Every node a request of one row over the slots that its mask row names."""
    seen, slots = unpack_mask(inputs.host["tree_mask"]), _flat_slots(inputs)
    batch, nodes = seen.shape[:2]
    lens = seen.sum(axis=2).reshape(-1).astype(np.int32)
    table = np.zeros((batch * nodes, max(1, int(lens.max()))), np.int32)
    for b, prefix in enumerate(inputs.host["seq_lens"]):
        for i in range(nodes):
            columns = np.flatnonzero(seen[b, i])
            table[b * nodes + i, : len(columns)] = slots[b, prefix + columns]
    return Paging(1, lens, table, 1)


def _own_tail_missing() -> str | None:
    if not hasattr(kernels, "merge_attn_states"):
        return "this kdbench has no merge_attn_states"
    if "tail_only" not in inspect.signature(kernels.verify_attn).parameters:
        return "verify_attn of this kdbench has no tail_only"
    return None


def _own_tail(inputs: Inputs) -> Callable[[], tuple[Any, Any]]:
    arrays: dict[str, Any] = {"tail_only": True, **inputs.arrays}

    def tail() -> tuple[Any, Any]:
        out, lse = kernels.verify_attn(**arrays, softmax_scale=SOFTMAX_SCALE)
        return out.flatten(0, 1), lse.flatten(0, 1)

    return tail


def _own_merge(*states: Any) -> tuple[Any, Any]:
    merged: tuple[Any, Any] = importlib.import_module("kdbench.kernels").merge_attn_states(*states)
    return merged


def _sgl_merge(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[Any, Any]:
    torch = importlib.import_module("torch")
    out, lse = torch.empty_like(out_a), torch.empty_like(lse_a)
    torch.ops.sgl_kernel.merge_state_v2(out_a, lse_a, out_b, lse_b, out, lse)
    return out, lse
