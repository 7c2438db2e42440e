# SPDX-License-Identifier: Apache-2.0
"""Draft trees in the layout of SGLang's speculative kernels, its spelling included; host memory only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kdbench.tree import Acceptance, DraftTree

_Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class SglangTree:
    """What sgl-kernel's verify_tree_greedy and SGLang's attention backends read.

    Attributes:
        candidates: i64[B, N] token ids, the root first.
        retrive_index: i64[B, N] flat index b * N + node.
        retrive_next_token: i64[B, N] first child or -1.
        retrive_next_sibling: i64[B, N] next sibling or -1; here siblings are linked in ascending index.
        positions: i64[B * N].
    """

    candidates: _Array
    retrive_index: _Array
    retrive_next_token: _Array
    retrive_next_sibling: _Array
    positions: _Array


def to_sglang(tree: DraftTree) -> SglangTree:
    """The arrays of ``tree`` as SGLang names them."""
    host = tree.to_numpy()
    return SglangTree(
        candidates=host.token_ids.astype(np.int64),
        retrive_index=np.arange(host.token_ids.size, dtype=np.int64).reshape(host.token_ids.shape),
        retrive_next_token=host.first_child.astype(np.int64),
        retrive_next_sibling=host.next_sibling.astype(np.int64),
        positions=host.positions.astype(np.int64).reshape(-1),
    )


def unpack_mask(tree_mask: _Array) -> _Array:
    """Mask words u64[B, N, W] as bool[B, N, N] (SGLang's QLEN_ONLY layout, unflattened)."""
    batch, nodes, words = tree_mask.shape
    # Little-endian words: byte j >> 3 holds bit j at j & 7.
    octets = (
        np.ascontiguousarray(tree_mask).view(np.uint64).astype("<u8").view(np.uint8).reshape(batch, nodes, words * 8)
    )
    return np.unpackbits(octets, axis=-1, bitorder="little")[..., :nodes].astype(bool)


def full_mask(tree_mask: _Array, seq_lens: _Array) -> _Array:
    """SGLang's FULL layout: bool, request after request, N rows of seq_lens[b] + N columns; pads see nothing."""
    blocks = []
    for rows, prefix in zip(unpack_mask(tree_mask), seq_lens, strict=True):
        seen = np.repeat(rows.any(axis=1)[:, None], int(prefix), axis=1)
        blocks.append(np.concatenate([seen, rows], axis=1).reshape(-1))
    return np.concatenate(blocks) if blocks else np.zeros(0, bool)


def parents_from_links(next_token: _Array, next_sibling: _Array) -> _Array:
    """Parents i32[B, N] of SGLang's links, in whichever order they list siblings; -1 for the root and for pads.

    A node that is linked twice, or a cycle of links, is cut at its second visit.
    """
    parents = np.full(next_token.shape, -1, np.int32)
    for b, (children, siblings) in enumerate(zip(next_token, next_sibling, strict=True)):
        visited = {0}
        pending = [0]
        while pending:
            node = pending.pop()
            child = int(children[node])
            while child >= 0 and child not in visited:
                visited.add(child)
                parents[b, child] = node
                pending.append(child)
                child = int(siblings[child])
    return parents


def acceptance_from_sglang(predicts: _Array, accept_index: _Array, accept_token_num: _Array, nodes: int) -> Acceptance:
    """The Acceptance that verify_tree_greedy's results describe.

    Args:
        predicts: i32[B * nodes] accepted tokens at their flat indices, bonus included.
        accept_index: i32[B, S] flat indices of accepted nodes, then -1; S = draft_horizon + 1.
        accept_token_num: i32[B] accepted drafts, the bonus excluded.
        nodes: N, nodes of a request.
    """
    batch = len(accept_index)
    offset = (np.arange(batch) * nodes)[:, None]
    last = accept_index[np.arange(batch), accept_token_num]
    return Acceptance(
        accepted_path=np.where(accept_index >= 0, accept_index - offset, -1).astype(np.int32),
        acceptance_length=(accept_token_num + 1).astype(np.int32),
        bonus_token=predicts[last].astype(np.int32),
        status=np.zeros(batch, np.int32),
    )
