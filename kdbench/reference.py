# SPDX-License-Identifier: Apache-2.0
"""NumPy oracles of the kernels: same names and results, written to be read beside arXiv 2604.12989, not to be fast."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from kdbench.abi import FIXED_POINT_BITS, RequestStatus
from kdbench.arrays import bf16_to_f32
from kdbench.best_first import Ranks, select
from kdbench.expected_length import expected_lengths as prefix_masses
from kdbench.tree import Acceptance, DraftTopk, DraftTree, blank_tree
from kdbench.tree_invariants import preorder

_Array = np.ndarray[Any, Any]


def tree_build(
    topk_log_probs: _Array,
    topk_token_ids: _Array,
    root_token_ids: _Array,
    seq_lens: _Array,
    tree_budget: int,
    *,
    dfs_order: bool = False,
    expected_lengths: bool = False,
) -> DraftTree:
    """``kdbench.tree_build`` in integers; takes and returns NumPy arrays."""
    batch, horizon, topk = topk_log_probs.shape
    tree = blank_tree(
        root_token_ids, seq_lens, tree_budget, horizon, dfs_order=dfs_order, expected_lengths=expected_lengths
    )
    for b in range(batch):
        refusal = (RequestStatus.NAN if np.isnan(topk_log_probs[b]).any() else RequestStatus(0)) | (
            RequestStatus.POSITIVE if (topk_log_probs[b] > 0).any() else RequestStatus(0)
        )
        if refusal:
            tree.status[b] = refusal
            continue
        node_of: dict[Ranks, int] = {(): 0}
        truncated = False
        costs = [0]
        for node, (ranks, score) in enumerate(select(topk_log_probs[b], tree_budget), start=1):
            depth, rank, parent = len(ranks), ranks[-1], node_of[ranks[:-1]]
            node_of[ranks] = node
            tree.token_ids[b, node] = topk_token_ids[b, depth - 1, rank]
            tree.parents[b, node] = parent
            tree.depths[b, node] = depth
            tree.positions[b, node] = seq_lens[b] + depth
            if rank == 0:
                tree.first_child[b, parent] = node
            else:
                tree.next_sibling[b, node_of[(*ranks[:-1], rank - 1)]] = node
            tree.tree_mask[b, node] = tree.tree_mask[b, parent]
            tree.tree_mask[b, node, node >> 6] |= np.uint64(1 << (node & 63))
            tree.scores[b, node] = np.float32(score * 2.0**-FIXED_POINT_BITS)
            costs.append(-score)
            # A node of rank r at depth d needs r + d - 1 others first: the column beyond the last might have mattered.
            truncated |= rank == topk - 1 and topk - 1 < tree_budget - depth
        count = len(node_of)
        tree.num_nodes[b] = count
        tree.status[b] = (RequestStatus.SHORT_TREE if count <= tree_budget else RequestStatus(0)) | (
            RequestStatus.TRUNCATED if truncated else RequestStatus(0)
        )
        if tree.dfs_order is not None:
            tree.dfs_order[b, :count] = preorder(tree.first_child[b], tree.next_sibling[b])
        if tree.expected_lengths is not None:
            tree.expected_lengths[b] = prefix_masses(costs, tree_budget + 1)
    return tree


def tree_accept(tree: DraftTree, target_tokens: _Array, seq_lens: _Array | None = None) -> Acceptance:
    """``kdbench.tree_accept`` by walking parents; takes and returns NumPy arrays."""
    batch, nodes = tree.token_ids.shape
    horizon = tree.draft_horizon
    answer = Acceptance(
        accepted_path=np.full((batch, horizon + 1), -1, np.int32),
        acceptance_length=np.zeros(batch, np.int32),
        bonus_token=np.full(batch, -1, np.int32),
        status=np.zeros(batch, np.int32),
        source_slots=None if seq_lens is None else np.full((batch, horizon + 1), -1, np.int32),
    )
    for b in range(batch):
        placed = seq_lens is None or 0 <= int(seq_lens[b]) <= 2**31 - 1 - nodes
        count, parents = int(tree.num_nodes[b]), tree.parents[b]
        path, status = [0], RequestStatus(0)
        if not 1 <= count <= nodes:
            status = RequestStatus.BAD_COUNT
            path = [0] if count > nodes else []
        elif not placed:
            status = RequestStatus.BAD_LENGTH
        elif any(not 0 <= parents[node] < node for node in range(1, count)):
            status = RequestStatus.BAD_TREE
        else:
            walk = walk_parents(tree.token_ids[b, :count], parents[:count], target_tokens[b])
            if len(walk) - 1 > horizon:
                status = RequestStatus.TOO_DEEP
            else:
                path = walk
        answer.status[b] = status
        answer.acceptance_length[b] = len(path)
        if path:
            answer.accepted_path[b, : len(path)] = path
            answer.bonus_token[b] = target_tokens[b, path[-1]]
        if answer.source_slots is not None and seq_lens is not None and placed:
            answer.source_slots[b, : len(path)] = [int(seq_lens[b]) + node for node in path]
    return answer


def walk_parents(token_ids: Sequence[int] | _Array, parents: Sequence[int] | _Array, target: _Array) -> list[int]:
    """The accepted path of one request: the lowest-index child that the target agrees with, again and again."""
    path = [0]
    while True:
        here = path[-1]
        matches = [n for n in range(1, len(parents)) if parents[n] == here and token_ids[n] == target[here]]
        if not matches:
            return path
        path.append(matches[0])


def walk_children(token_ids: Sequence[int] | _Array, parents: Sequence[int] | _Array, target: _Array) -> list[int]:
    """The same path through one dictionary a node, as the paper's code does, but keeping the first duplicate."""
    child_maps: list[dict[int, int]] = [{} for _ in parents]
    for node in range(1, len(parents)):
        child_maps[parents[node]].setdefault(int(token_ids[node]), node)
    path = [0]
    while (child := child_maps[path[-1]].get(int(target[path[-1]]))) is not None:
        path.append(child)
    return path


def walk_links(token_ids: _Array, first_child: _Array, next_sibling: _Array, target: _Array) -> list[int]:
    """The same path along child and sibling links, as sgl-kernel's verify_tree_greedy does; -1 ends a list."""
    path = [0]
    child = first_child[0]
    while child >= 0:
        if token_ids[child] == target[path[-1]]:
            path.append(int(child))
            child = first_child[child]
        else:
            child = next_sibling[child]
    return path


def verify_attn(
    q_nope: _Array,
    q_pe: _Array,
    kv_cache: _Array,
    block_table: _Array,
    seq_lens: _Array,
    tree_mask: _Array,
    num_nodes: _Array | None,
    softmax_scale: float,
    *,
    tail_only: bool = False,
) -> tuple[_Array, _Array]:
    """``kdbench.verify_attn`` in float64 over gathered slots, for sound requests.

    Args:
        q_nope, q_pe, kv_cache: bf16 bit patterns (uint16 or ml_dtypes.bfloat16), or floats.

    Returns:
        out f64[B, N, H, R] and lse f64[B, N, H], natural log; 0 and -inf for pads.
    """
    latents, nope, pe = (_float64(array) for array in (kv_cache, q_nope, q_pe))
    batch, nodes, heads, rank = nope.shape
    page_size = latents.shape[1]
    out = np.zeros((batch, nodes, heads, rank))
    lse = np.full((batch, nodes, heads), -np.inf)
    for b in range(batch):
        prefix = int(seq_lens[b])
        real = nodes if num_nodes is None else int(num_nodes[b])
        for i in range(real):
            seen = [j for j in range(real) if int(tree_mask[b, i, j >> 6]) >> (j & 63) & 1]
            if not seen:
                continue
            slots = np.array([*range(0 if tail_only else prefix), *(prefix + j for j in seen)])
            rows = latents[block_table[b, slots // page_size], slots % page_size]
            scores = softmax_scale * (nope[b, i] @ rows[:, :rank].T + pe[b, i] @ rows[:, rank:].T)
            top = scores.max(axis=1, keepdims=True)
            weights = np.exp(scores - top)
            total = weights.sum(axis=1, keepdims=True)
            out[b, i] = weights @ rows[:, :rank] / total
            lse[b, i] = (top + np.log(total))[:, 0]
    return out, lse


def kv_compact(kv_cache: _Array, block_table: _Array, seq_lens: _Array, accepted_path: _Array) -> _Array:
    """``kdbench.kv_compact``: moves rows of ``kv_cache``, a NumPy array, in place and returns status i32[B]."""
    num_pages, page_size = kv_cache.shape[-3:-1]
    layers = kv_cache.reshape(-1, num_pages * page_size, kv_cache.shape[-1])
    status = np.zeros(len(seq_lens), np.int32)
    for b, entries in enumerate(accepted_path.tolist()):
        path = entries[: entries.index(-1)] if -1 in entries else entries
        rising = path[:1] in ([], [0]) and all(node > before for before, node in itertools.pairwise(path))
        if not rising or any(entry != -1 for entry in entries[len(path) :]):
            status[b] = RequestStatus.BAD_TREE
            continue
        prefix = int(seq_lens[b])
        moves = [(prefix + node, prefix + k) for k, node in enumerate(path) if node != k]
        if not moves:
            continue
        if prefix < 0 or prefix + path[-1] >= block_table.shape[1] * page_size:
            status[b] = RequestStatus.BAD_LENGTH
            continue
        slots = np.array(moves)
        pages = block_table[b, slots // page_size].astype(np.int64)
        if ((pages < 0) | (pages >= num_pages)).any():
            status[b] = RequestStatus.BAD_PAGE
            continue
        source, target = (pages * page_size + slots % page_size).T
        moved = layers[:, source]  # indexing copies: all rows are read before one is written
        for k, row in enumerate(target):
            layers[:, row] = moved[:, k]
    return status


def merge_attn_states(out_a: _Array, lse_a: _Array, out_b: _Array, lse_b: _Array) -> tuple[_Array, _Array]:
    """``kdbench.merge_attn_states`` in float64 (arXiv 2501.01005).

    Args:
        out_a, out_b: [..., head_dim] bf16 bit patterns (uint16 or ml_dtypes.bfloat16), or floats.
        lse_a, lse_b: floats [...], natural log.

    Returns:
        out f64[..., head_dim] and lse f64[...].
    """
    sides = [(_float64(out_a), lse_a.astype(np.float64)), (_float64(out_b), lse_b.astype(np.float64))]
    out, total = np.zeros(out_a.shape), np.zeros(lse_a.shape)
    top = np.maximum(sides[0][1], sides[1][1])  # NaN where either is
    for values, lse in sides:
        seen = ~np.isneginf(lse)
        with np.errstate(invalid="ignore"):
            weight = np.exp(lse[seen] - top[seen])  # NaN where lse is +inf
        out[seen] += weight[:, None] * values[seen]
        total[seen] += weight
    nothing = total == 0
    total[nothing] = 1.0
    return out / total[..., None], np.where(nothing, -np.inf, top + np.log(total))


def verify_mla(
    q_nope: _Array,
    q_pe: _Array,
    w_uk: _Array,
    w_uv: _Array,
    kv_cache: _Array,
    block_table: _Array,
    seq_lens: _Array,
    tree_mask: _Array,
    num_nodes: _Array | None,
    softmax_scale: float,
) -> tuple[_Array, _Array]:
    """``kdbench.verify_mla`` in float64 with keys and values of every head (nothing absorbed), for sound requests.

    Args:
        q_nope, q_pe, w_uk, w_uv, kv_cache: bf16 bit patterns (uint16 or ml_dtypes.bfloat16), or floats.

    Returns:
        out f64[B, N, H, V] and lse f64[B, N, H], natural log; 0 and -inf for pads.
    """
    latents, nope, pe, uk, uv = (_float64(array) for array in (kv_cache, q_nope, q_pe, w_uk, w_uv))
    batch, nodes, heads, _ = nope.shape
    page_size, rank = latents.shape[1], uk.shape[2]
    out = np.zeros((batch, nodes, heads, uv.shape[2]))
    lse = np.full((batch, nodes, heads), -np.inf)
    for b in range(batch):
        prefix = int(seq_lens[b])
        real = nodes if num_nodes is None else int(num_nodes[b])
        bits = np.unpackbits(np.ascontiguousarray(tree_mask[b]).view(np.uint8), axis=-1, bitorder="little")
        seen = bits[:real, :real].astype(bool)
        # Slots that nobody sees may hold NaN, and 0 * NaN is NaN.
        slots = np.array([*range(prefix), *(prefix + np.flatnonzero(seen.any(axis=0)))], int)
        visible = np.concatenate([np.ones((real, prefix), bool), seen[:, seen.any(axis=0)]], axis=1)
        rows = latents[block_table[b, slots // page_size], slots % page_size]
        for i in np.flatnonzero(seen.any(axis=1)):
            mine = rows[visible[i]]
            for h in range(heads):
                keys, values = mine[:, :rank] @ uk[h].T, mine[:, :rank] @ uv[h]
                scores = softmax_scale * (keys @ nope[b, i, h] + mine[:, rank:] @ pe[b, i, h])
                top = scores.max()
                weights = np.exp(scores - top)
                out[b, i, h] = weights @ values / weights.sum()
                lse[b, i, h] = top + np.log(weights.sum())
    return out, lse


def draft_topk(logits: _Array, k: int) -> DraftTopk:
    """``kdbench.draft_topk`` with float64 sums: f32(logit - logsumexp(row)), equal logits by lowest token id."""
    values = _float64(logits)
    rows = values.reshape(-1, values.shape[-1])
    log_probs = np.full((len(rows), k), np.nan, np.float32)
    token_ids = np.full((len(rows), k), -1, np.int32)
    status = np.zeros(len(rows), np.int32)
    for row, (logit, answer) in enumerate(zip(rows, log_probs, strict=True)):
        if np.isnan(logit).any():
            status[row] |= RequestStatus.NAN
        if (logit == np.inf).any():
            status[row] |= RequestStatus.POSITIVE
        if status[row]:
            continue
        order = np.argsort(-logit, kind="stable")[:k]
        top = logit.max()
        normaliser = top + np.log(np.exp(logit - top).sum()) if top > -np.inf else 0.0
        # Both sides in float32 first: the difference is then a multiple of 2^-40, and scores of trees are exact.
        answer[:] = logit[order].astype(np.float32) - np.float32(normaliser)
        token_ids[row] = order
    leading = values.shape[:-1]
    return DraftTopk(
        log_probs=log_probs.reshape(*leading, k),
        token_ids=token_ids.reshape(*leading, k),
        status=status.reshape(leading),
    )


def _float64(array: _Array) -> _Array:
    return (array if array.dtype.kind == "f" and array.dtype.name != "bfloat16" else bf16_to_f32(array)).astype(
        np.float64
    )
