# SPDX-License-Identifier: Apache-2.0
"""What a workload must move and compute: the numerators of its roofline, useful work only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

_KV_ROW = 1152  # bytes of one cached token: (512 + 64) bf16
_QUERY_ROW = 2176  # bytes of one (node, head): q 576 and out 512 in bf16
_OUT_ROW = 1024  # bytes of its out alone
_FLOPS_PER_SCORE = 2 * (576 + 512)  # one visible (node, head, slot): the score and the value


@dataclass(frozen=True)
class Cost:
    """Bytes read and written once, and floating-point operations, of one call."""

    bytes_moved: int
    flops: int


def tree_build(shape: Mapping[str, Any], sizes: Mapping[str, Any]) -> Cost:
    """Candidates in (4 + 4 bytes each), tree fields out (28 bytes a node and its mask row)."""
    nodes = shape["budget"] + 1
    candidates = shape["horizon"] * shape["topk"] * 8
    return Cost(shape["batch"] * (candidates + nodes * (28 + 8 * -(-nodes // 64))), 0)


def tree_accept(shape: Mapping[str, Any], sizes: Mapping[str, Any]) -> Cost:
    """Tokens, parents and targets in, path, length, bonus and status out."""
    return Cost(shape["batch"] * (12 * shape["nodes"] + 4 * (shape["horizon"] + 1) + 12), 0)


def verify_attn(shape: Mapping[str, Any], sizes: Mapping[str, Any]) -> Cost:
    """Latents once a request, queries and outputs once; FLOPs over the slots that each real row may see."""
    prefix, nodes = sizes["seq_lens"].astype(np.int64), sizes["num_nodes"].astype(np.int64)
    if shape.get("tail_only", False):
        prefix = np.zeros_like(prefix)
    in_tree = int(np.unpackbits(sizes["tree_mask"].view(np.uint8)).sum(dtype=np.int64))
    visible = in_tree + int((prefix * nodes).sum())
    heads = int(shape["heads"])
    moved = int((prefix + nodes).sum()) * _KV_ROW + int(nodes.sum()) * heads * _QUERY_ROW
    return Cost(moved, heads * visible * _FLOPS_PER_SCORE)


def merge_attn_states(shape: Mapping[str, Any], sizes: Mapping[str, Any]) -> Cost:
    """Both sides in, the merged one out; what a side that saw nothing holds counts as read. No FLOPs to speak of."""
    rows = int(shape["batch"] * shape["nodes"] * shape["heads"])
    return Cost(rows * 3 * (_OUT_ROW + 4), 0)


def draft_topk(shape: Mapping[str, Any], sizes: Mapping[str, Any]) -> Cost:
    """Every logit in, K pairs a row out; the logsumexp is not counted as FLOPs."""
    element = 4 if shape["dtype"] == "f32" else 2
    return Cost(shape["rows"] * (shape["vocab_size"] * element + 8 * shape["topk"] + 4), 0)


def kv_compact(shape: Mapping[str, Any], sizes: Mapping[str, Any]) -> Cost:
    """Each row that moves read and written once a layer; paths, lengths, two pages a move in, status out."""
    path = sizes["accepted_path"]
    moves = int((path > np.arange(path.shape[1])).sum())
    return Cost(moves * (2 * _KV_ROW * int(shape["layers"]) + 8) + path.size * 4 + len(path) * 8, 0)


COSTS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Cost]] = {
    "tree_build": tree_build,
    "tree_accept": tree_accept,
    "verify_attn": verify_attn,
    "draft_topk": draft_topk,
    "kv_compact": kv_compact,
    "merge_attn_states": merge_attn_states,
}
