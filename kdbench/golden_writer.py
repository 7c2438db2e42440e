# SPDX-License-Identifier: Apache-2.0
"""``python -m kdbench.golden_writer``: golden outputs of new workloads, from the oracles.

Entries are only ever added to golden.json; one that is there never changes.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np

from kdbench import golden, reference, sampled_attention, verify_mla_workloads, workloads
from kdbench.tree import DraftTree


def golden_entry(workload: workloads.Workload) -> dict[str, Any]:
    """The entry that the oracles give: digest of the inputs, cost, and the outputs' digest or sketch."""
    arrays = workload.inputs()
    cost = workload.computed_cost()
    return {
        "kernel": workload.kernel,
        "inputs": golden.digest(arrays),
        "bytes_moved": cost.bytes_moved,
        "flops": cost.flops,
        "outputs": _oracle(workload, arrays),
    }


def _oracle(workload: workloads.Workload, arrays: dict[str, Any]) -> dict[str, Any]:
    if workload.kernel == "tree_build":
        return golden.exact(reference.tree_build(**arrays, tree_budget=workload.shape["budget"]).arrays())
    if workload.kernel == "tree_accept":
        tree = DraftTree.from_parents(
            arrays["token_ids"],
            arrays["parents"],
            arrays["num_nodes"],
            arrays["num_nodes"] * 0,
            workload.shape["horizon"],
        )
        return golden.exact(reference.tree_accept(tree, arrays["target_tokens"]).arrays())
    if workload.kernel == "verify_attn":
        rows = sampled_attention.sample_rows(workload.seed, arrays["num_nodes"], workload.shape["heads"])
        tail_only = workload.shape.get("tail_only", False)
        out, lse = sampled_attention.attend(arrays, rows, workloads.SOFTMAX_SCALE, tail_only=tail_only)
        return golden.attention_sketch(arrays["num_nodes"], rows, out, lse)
    if workload.kernel == "kv_compact":
        status = reference.kv_compact(**arrays)
        return golden.exact({"kv_cache": arrays["kv_cache"], "status": status})
    if workload.kernel == "merge_attn_states":
        num_nodes = np.full(workload.shape["batch"], workload.shape["nodes"])
        rows = sampled_attention.sample_rows(workload.seed, num_nodes, workload.shape["heads"])
        out, lse = reference.merge_attn_states(
            *(arrays[name][tuple(rows.T)] for name in ("out_a", "lse_a", "out_b", "lse_b"))
        )
        return golden.attention_sketch(num_nodes, rows, out, lse)
    if workload.kernel == "verify_mla":
        rows = sampled_attention.sample_rows(workload.seed, arrays["num_nodes"], workload.shape["heads"])
        out, lse = verify_mla_workloads.attend(arrays, rows, workloads.SOFTMAX_SCALE)
        return golden.attention_sketch(arrays["num_nodes"], rows, out, lse)
    answer = reference.draft_topk(arrays["logits"], workload.shape["topk"])
    return golden.topk_sketch(answer.log_probs, answer.token_ids, answer.status)


def write_golden() -> list[str]:
    """Add entries for workloads that have none to golden.json; returns their names."""
    entries = dict(golden.load()) if golden.PATH.exists() else {}
    added = [workload for workload in workloads.every() if workload.name not in entries]
    for workload in added:
        print(f"{workload.kernel} {workload.name}", file=sys.stderr)
        entries[workload.name] = golden_entry(workload)
    lines = [f"{json.dumps(name)}: {json.dumps(entry, allow_nan=False)}" for name, entry in entries.items()]
    text = f'{{"schema": "{golden.SCHEMA}", "workloads": {{\n' + ",\n".join(lines) + "\n}}\n"
    temporary = golden.PATH.with_suffix(".tmp")
    temporary.write_text(text, "utf-8")
    os.replace(temporary, golden.PATH)
    golden.load.cache_clear()
    return [workload.name for workload in added]


if __name__ == "__main__":
    print(f"{len(write_golden())} golden outputs added to {golden.PATH}")
