# SPDX-License-Identifier: Apache-2.0
"""Workloads: frozen, seeded inputs with a name, what they cost, and what must come out.

A workload is history: its name is an asv parameter, and its numbers are compared over years. The registry is
append-only, and nothing about an entry may change; a better workload gets a new name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kdbench import calls, golden, verify_mla_calls, verify_mla_workloads, workload_costs
from kdbench import workload_inputs as make
from kdbench.call_builder import Call
from kdbench.errors import KdbenchError
from kdbench.native import Library
from kdbench.tree import DraftTree

KERNELS = (
    "tree_build",
    "tree_accept",
    "verify_attn",
    "draft_topk",
    "kv_compact",
    "merge_attn_states",
    "verify_mla",
)
# softmax_scale of Kimi K2-0905/K2.5/K2.6: 192^-1/2 times the square of yarn's mscale at factor 64.
SOFTMAX_SCALE = 0.1446796258


@dataclass(frozen=True)
class Workload:
    """One frozen workload.

    Attributes:
        name: unique over all kernels.
        kernel: one of ``KERNELS``.
        seed: literal seed of the inputs.
        shape: the sizes and forms that the inputs are made from; which ones depends on the kernel.
        backends: where it is measured.
        tags: "quick" marks the short list that ``make bench`` runs on a CPU, "peak" those whose inputs are hundreds
            of megabytes.
        roofline: what bounds it on a data-centre GPU: "latency", "memory" or "compute".
    """

    name: str
    kernel: str
    seed: int
    shape: Mapping[str, Any]
    backends: tuple[str, ...]
    tags: frozenset[str]
    roofline: str

    def inputs(self, xp: Any = np) -> dict[str, Any]:
        """The input arrays, the same bytes each time: of numpy in host memory, or of ``xp`` = cupy on the device."""
        shape = dict(self.shape)
        if self.kernel == "verify_attn":
            shape.pop("tail_only", None)  # the same arrays: another kernel reads the prefix
            return make.attention(self.seed, **shape, xp=xp)
        if self.kernel == "merge_attn_states":
            return make.attention_states(self.seed, **shape, xp=xp)
        if self.kernel == "draft_topk":
            del shape["topk"], shape["vocab_size"]
            return make.draft_logits(self.seed, **shape, xp=xp)
        if self.kernel == "kv_compact":
            return make.accepted_rows(self.seed, **shape, xp=xp)
        if self.kernel == "tree_build":
            del shape["budget"]
            arrays = make.draft_log_probs(self.seed, **shape)
        elif self.kernel == "tree_accept":
            arrays = make.tree_to_accept(self.seed, **shape)
        else:
            arrays = verify_mla_workloads.inputs(self.seed, **shape)
        return {name: xp.asarray(array) for name, array in arrays.items()}

    def prepare(self, arrays: Mapping[str, Any], backend: str, library: Library | None = None) -> Call:
        """A call over ``arrays`` (``inputs()``, or copies of them in device memory), with fresh outputs."""
        if self.kernel == "tree_build":
            return calls.prepare_tree_build(
                **arrays, tree_budget=self.shape["budget"], backend=backend, library=library
            )
        if self.kernel == "tree_accept":
            tree = _tree_of(arrays, self.shape["horizon"])
            return calls.prepare_tree_accept(tree, arrays["target_tokens"], backend=backend, library=library)
        if self.kernel == "verify_attn":
            status = arrays["seq_lens"].copy()
            tail_only = self.shape.get("tail_only", False)
            return calls.prepare_verify_attn(
                **arrays,
                softmax_scale=SOFTMAX_SCALE,
                status=status,
                tail_only=tail_only,
                backend=backend,
                library=library,
            )
        if self.kernel == "kv_compact":
            return calls.prepare_kv_compact(**arrays, backend=backend, library=library)
        if self.kernel == "merge_attn_states":
            return calls.prepare_merge_attn_states(**arrays, backend=backend, library=library)
        if self.kernel == "verify_mla":
            return verify_mla_calls.prepare_verify_mla(
                **arrays,
                softmax_scale=SOFTMAX_SCALE,
                mode=self.shape["mode"],
                status=arrays["seq_lens"].copy(),
                backend=backend,
                library=library,
            )
        return calls.prepare_draft_topk(arrays["logits"], self.shape["topk"], backend=backend, library=library)

    def check(self, outputs: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Compare a call's outputs, in host memory, with the golden ones.

        Raises:
            DigestMismatch: they differ; the message names the workload and what is wrong.
            KdbenchError: there is no golden output for this workload.
        """
        entry = self.golden_entry["outputs"]
        try:
            if self.kernel in ("verify_attn", "merge_attn_states"):
                golden.check_attention(entry, outputs)
            elif self.kernel == "draft_topk":
                golden.check_topk(entry, outputs)
            elif self.kernel == "verify_mla":
                golden.check_mla(entry, outputs)
            else:
                golden.check_exact(entry, outputs)
        except golden.DigestMismatch as error:
            raise golden.DigestMismatch(f"{self.kernel} of workload {self.name}: {error}") from error

    @property
    def golden_entry(self) -> golden.Entry:
        """This workload's entry of golden.json."""
        try:
            return golden.load()[self.name]
        except KeyError:
            raise KdbenchError(
                f"workload {self.name} has no golden output: run python -m kdbench.golden_writer, and commit it"
            ) from None

    @property
    def bytes_moved(self) -> int:
        """Bytes that the call must read and write once."""
        return self._costs().bytes_moved

    @property
    def flops(self) -> int:
        """Floating-point operations of the useful work: what the tree mask leaves (0 for the tree kernels)."""
        return self._costs().flops

    def _costs(self) -> workload_costs.Cost:
        # The golden file pins them, so that discovery need not build trees.
        entry = golden.load().get(self.name)
        return workload_costs.Cost(entry["bytes_moved"], entry["flops"]) if entry else self.computed_cost()

    def computed_cost(self) -> workload_costs.Cost:
        """Bytes and FLOPs, from the shape (and for attention and kv_compact from the masks and paths themselves)."""
        sizes: Mapping[str, Any] = {}
        if self.kernel in ("verify_attn", "verify_mla"):
            read = ("batch", "nodes", "prefix", "horizon", "even")
            chosen = {name: self.shape[name] for name in read if name in self.shape}
            sizes = make.attention_sizes(self.seed, **chosen)
        if self.kernel == "kv_compact":
            chosen = {name: self.shape[name] for name in ("batch", "horizon", "nodes", "prefix")}
            sizes = make.accepted_paths(self.seed, **chosen)
        if self.kernel == "verify_mla":
            return verify_mla_workloads.cost(self.shape, sizes)
        return workload_costs.COSTS[self.kernel](self.shape, sizes)


def _tree_of(arrays: Mapping[str, Any], horizon: int) -> DraftTree:
    """A tree with the fields that tree_accept reads."""
    unread = dict.fromkeys(("depths", "positions", "first_child", "next_sibling", "tree_mask", "scores", "status"))
    read = {name: arrays[name] for name in ("token_ids", "parents", "num_nodes")}
    budget = arrays["token_ids"].shape[1] - 1
    return DraftTree(**read, **unread, tree_budget=budget, draft_horizon=horizon)


def get(name: str) -> Workload:
    """The workload of that name; KdbenchError names near misses."""
    try:
        return _registry()[name]
    except KeyError:
        close = [known for known in _registry() if known.startswith(name.split("-")[0] + "-")]
        hint = f"; some that begin alike: {', '.join(close[:5])}" if close else ""
        raise KdbenchError(f"there is no workload {name!r}{hint}") from None


def names(kernel: str, backend: str | None = None, tag: str | None = None) -> list[str]:
    """Names of a kernel's workloads in their fixed order, those of ``backend`` and with ``tag`` only."""
    return [
        workload.name
        for workload in _registry().values()
        if workload.kernel == kernel
        and (backend is None or backend in workload.backends)
        and (tag is None or tag in workload.tags)
    ]


def every() -> Iterable[Workload]:
    """All workloads in their fixed order."""
    return _registry().values()


def _registry() -> Mapping[str, Workload]:
    from kdbench.workload_table import REGISTRY  # the table is made of Workload objects

    return REGISTRY
