# SPDX-License-Identifier: Apache-2.0
"""Attention in float64 for a few (request, node, head) rows: golden outputs of shapes that no oracle could do whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdbench.workload_inputs import KV_LORA_RANK, Bits

Array = NDArray[Any]

_TARGET_ROWS = 32
_CHUNK = 8192  # slots at once: 38 MB of float64


def sample_rows(seed: int, num_nodes: Array, heads: int) -> Array:
    """i64[R, 3] of distinct (request, node, head): each request's first and last node, and others up to 32 rows."""
    bits = Bits(seed + 2_000_000)
    batch = len(num_nodes)
    first = [(b, 0, int(bits.below(heads, 1)[0])) for b in range(batch)]
    last = [(b, int(num_nodes[b]) - 1, int(bits.below(heads, 1)[0])) for b in range(batch)]
    rows = dict.fromkeys([*first, *last])
    for _ in range(4 * _TARGET_ROWS):
        if len(rows) >= _TARGET_ROWS:
            break
        b = int(bits.below(batch, 1)[0])
        rows[b, int(bits.below(int(num_nodes[b]), 1)[0]), int(bits.below(heads, 1)[0])] = None
    return np.array(sorted(rows), np.int64)


def attend(
    arrays: Mapping[str, Array], rows: Array, softmax_scale: float, *, tail_only: bool = False
) -> tuple[Array, Array]:
    """The oracle's out f64[R, 512] and natural-log lse f64[R] for ``rows``; ``arrays`` are verify_attn's inputs."""
    query = np.concatenate([arrays[name][tuple(rows.T)] for name in ("q_nope", "q_pe")], axis=1)
    return attend_queries(arrays, rows, _wide(query), softmax_scale, tail_only=tail_only)


def attend_queries(
    arrays: Mapping[str, Array], rows: Array, queries: Array, softmax_scale: float, *, tail_only: bool = False
) -> tuple[Array, Array]:
    """The same for f64[R, 576] ``queries`` of the ``rows``, whatever they were made from."""
    out = np.zeros((len(rows), KV_LORA_RANK))
    lse = np.zeros(len(rows))
    for request in np.unique(rows[:, 0]):
        chosen = np.flatnonzero(rows[:, 0] == request)
        parts = [queries[chosen] @ part.T for part in _latents(arrays, request)]
        scores = np.concatenate(parts, axis=1) * softmax_scale
        scores[~_visible(arrays, request, rows[chosen, 1], tail_only)] = -np.inf
        top = scores.max(axis=1, keepdims=True)
        weights = np.exp(scores - top)
        total = weights.sum(axis=1, keepdims=True)
        lse[chosen] = (top + np.log(total))[:, 0]
        at = 0
        for part in _latents(arrays, request):
            out[chosen] += weights[:, at : at + len(part)] @ part[:, :KV_LORA_RANK]
            at += len(part)
        out[chosen] /= total
    return out, lse


def _latents(arrays: Mapping[str, Array], request: int) -> Any:
    """Latents of one request's slots in order, f64[<= _CHUNK, 576] at a time."""
    cache, table = arrays["kv_cache"], arrays["block_table"][request]
    slots = np.arange(int(arrays["seq_lens"][request]) + int(arrays["num_nodes"][request]))
    size = cache.shape[1]
    for start in range(0, len(slots), _CHUNK):
        part = slots[start : start + _CHUNK]
        yield _wide(cache[table[part // size], part % size])


def _visible(arrays: Mapping[str, Array], request: int, nodes: Array, tail_only: bool) -> Array:
    prefix, count = int(arrays["seq_lens"][request]), int(arrays["num_nodes"][request])
    words = arrays["tree_mask"][request, nodes]
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :count].astype(bool)
    return np.concatenate([np.full((len(nodes), prefix), not tail_only), bits], axis=1)


def _wide(words: Array) -> Array:
    """bf16 words as float64."""
    return (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
