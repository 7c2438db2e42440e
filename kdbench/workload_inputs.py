# SPDX-License-Identifier: Apache-2.0
"""Inputs of the workloads, made from raw random bits and exact arithmetic.

A frozen workload must give the same bytes on every machine and under every NumPy. So nothing here uses
``numpy.random.Generator``, whose streams may change: only the raw output of PCG64, which is promised not to, and
operations that IEEE 754 rounds in one way. The one exception, exp and log of a log-softmax, is done in float64 and
rounded to float32. Inputs of gigabytes come from ``kdbench.counter_bits`` instead, on the device that reads them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdbench import counter_bits

Array = NDArray[Any]

VOCAB_SIZE = 163840
# Log-softmax rows are made over a smaller vocabulary: the tree only ever sees the top of it.
_SMALL_VOCAB = 2048
# bf16 words made of random sign and mantissa bits and a random lowest exponent bit: these are the other exponent bits.
_KV_EXPONENT = 0x3F00  # +-[0.5, 2)
_Q_EXPONENT = 0x3E00  # +-[0.125, 0.5): scores then spread by about 1.3, so no softmax is flat and none is one-hot
KV_LORA_RANK = 512
QK_ROPE_HEAD_DIM = 64


class Bits:
    """A stream of random bits from a literal seed."""

    def __init__(self, seed: int) -> None:
        self._source = np.random.PCG64(seed)

    def raw(self, dtype: str, *shape: int) -> Array:
        """Uniform unsigned integers of ``dtype`` (little-endian)."""
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        return self.words(-(-count * kind.itemsize // 8)).view(kind)[:count].reshape(shape)

    def words(self, count: int) -> Array:
        """``count`` 64-bit words, little-endian."""
        return np.asarray(self._source.random_raw(count), "<u8")

    def below(self, bound: int, *shape: int) -> Array:
        """int64 in [0, bound)."""
        return (self.raw("<u4", *shape).astype(np.int64) * bound) >> 32

    def bell(self, *shape: int) -> Array:
        """float64 of a bell-shaped law with standard deviation 1.15, every value its own (multiples of 2^-22)."""
        octets = self.raw("u1", *shape, 4).sum(axis=-1, dtype=np.int64) - 510
        values: Array = octets / 128.0 + self.raw("<u2", *shape) * 2.0**-22
        return values


def draft_log_probs(seed: int, *, batch: int, horizon: int, topk: int, form: str) -> dict[str, Array]:
    """What a drafter hands to tree_build.

    Args:
        seed: literal seed.
        batch, horizon, topk: B, D, K.
        form: "sharp" (a confident drafter), "flat" (nearly uniform), "tied" (sharp, from bf16 logits: many exact ties).

    Returns:
        topk_log_probs f32[B, D, K] (tops of a log-softmax, descending), topk_token_ids i32[B, D, K] (distinct in a
        row), root_token_ids i32[B], seq_lens i32[B].
    """
    bits = Bits(seed)
    logits = bits.bell(batch, horizon, _SMALL_VOCAB)
    if form == "flat":
        logits *= 0.25
    else:
        # Candidates above the crowd, less sure with every level; the crowd's own logsumexp is about 8.3.
        heights = np.array([10.5, 8.0, 6.75, 6.0, 5.5, 5.25, 5.0, 4.75])
        fade = 1.0 - 0.25 * np.arange(horizon) / max(1, horizon)
        peaks = heights * fade[:, None] + 0.5 * bits.bell(batch, horizon, len(heights))
        places = np.arange(len(heights)) * 251 + bits.below(251, batch, horizon, len(heights))
        np.put_along_axis(logits, places, peaks, axis=-1)
    row = logits.astype(np.float32)
    if form == "tied":
        row = (row.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    order = np.argsort(-row, axis=-1, kind="stable")[..., :topk]
    wide = row.astype(np.float64)
    top = wide.max(axis=-1, keepdims=True)
    logsumexp = (top + np.log(np.exp(wide - top).sum(axis=-1, keepdims=True))).astype(np.float32)
    return {
        "topk_log_probs": np.take_along_axis(row, order, axis=-1) - logsumexp,
        # 79 keeps the ids distinct and spreads them over the real vocabulary.
        "topk_token_ids": (order * 79 + 11).astype(np.int32),
        "root_token_ids": bits.below(VOCAB_SIZE, batch).astype(np.int32),
        "seq_lens": (1000 + bits.below(4000, batch)).astype(np.int32),
    }


def random_tree(
    bits: Bits, *, batch: int, nodes: int, horizon: int, form: str, even: bool = False
) -> tuple[Array, Array, Array]:
    """Valid trees with ragged sizes.

    Args:
        bits: where the randomness comes from.
        batch, nodes, horizon: B, N, D.
        form: "chain", or "bushy" (early nodes have many children, as in best-first trees, and a spine reaches the
        horizon).
        even: every tree has N nodes.

    Returns:
        parents i32[B, N] (-1 for root and pads), depths i32[B, N], num_nodes i32[B]; request 0 always has N nodes.
    """
    parents = np.full((batch, nodes), -1, np.int32)
    depths = np.zeros((batch, nodes), np.int32)
    everyone = np.arange(batch)
    early = np.minimum(bits.raw("<u4", batch, nodes), bits.raw("<u4", batch, nodes)).astype(np.int64)
    spine = bits.below(4, batch, nodes) == 0
    deepest = np.zeros(batch, np.int64)
    for node in range(1, nodes):
        above = (early[:, node] * node) >> 32
        above = np.where(spine[:, node], deepest, above) if form == "bushy" else np.full(batch, node - 1)
        full = depths[everyone, above] == horizon
        above = np.where(full, parents[everyone, above], above)
        parents[:, node] = above
        depths[:, node] = depths[everyone, above] + 1
        deepest = np.where(depths[:, node] > depths[everyone, deepest], node, deepest)
    num_nodes = np.full(batch, nodes, np.int32)
    if form == "bushy" and not even:
        num_nodes[1:] -= 1 + bits.below(max(1, nodes // 4), batch - 1).astype(np.int32)
    pads = np.arange(nodes) >= num_nodes[:, None]
    parents[pads], depths[pads] = -1, 0
    return parents, depths, num_nodes


def tree_to_accept(seed: int, *, batch: int, nodes: int, horizon: int, form: str, accepted: str) -> dict[str, Array]:
    """Draft trees and the target's tokens for tree_accept.

    Args:
        seed: literal seed.
        batch, nodes, horizon: B, N, D.
        form: as in ``random_tree``.
        accepted: "full" (the target follows the tree to one of its deepest nodes), "half" (half of that path), "none".

    Returns:
        token_ids, parents, target_tokens i32[B, N]; num_nodes i32[B].
    """
    bits = Bits(seed)
    parents, depths, num_nodes = random_tree(bits, batch=batch, nodes=nodes, horizon=horizon, form=form)
    # 613 has no factor in common with the vocabulary size: all tokens of a tree are distinct.
    tokens = (np.arange(nodes) * 613 + bits.below(VOCAB_SIZE, batch, 1)) % VOCAB_SIZE
    # A token of the same tree that is never a child's, since children come later: the walk compares, and stops.
    earlier = (bits.raw("<u4", batch, nodes).astype(np.int64) * (np.arange(nodes) + 1)) >> 32
    targets = np.take_along_axis(tokens, earlier, axis=1)
    for b in range(batch):
        node = int(depths[b, : num_nodes[b]].argmax())
        length = int(depths[b, node])
        keep = {"full": length, "half": length // 2, "none": 0}[accepted]
        while node > 0:
            above = int(parents[b, node])
            if depths[b, node] <= keep:
                targets[b, above] = tokens[b, node]
            node = above
    pads = np.arange(nodes) >= num_nodes[:, None]
    tokens[pads] = 0
    return {
        "token_ids": tokens.astype(np.int32),
        "parents": parents,
        "num_nodes": num_nodes,
        "target_tokens": targets.astype(np.int32),
    }


def tree_mask(parents: Array, num_nodes: Array) -> Array:
    """u64[B, N, ceil(N/64)]: bit j of row i says that i attends j, its ancestors and itself; no bits in pads."""
    batch, nodes = parents.shape
    mask = np.zeros((batch, nodes, -(-nodes // 64)), np.uint64)
    for node in range(nodes):
        real = np.flatnonzero(node < num_nodes)
        if node:
            mask[real, node] = mask[real, parents[real, node]]
        mask[real, node, node >> 6] |= np.uint64(1 << (node & 63))
    return mask


def attention_sizes(
    seed: int, *, batch: int, nodes: int, prefix: int, horizon: int, even: bool = False
) -> dict[str, Array]:
    """The part of ``attention`` that says how much work there is: seq_lens, num_nodes i32[B] and tree_mask."""
    bits = Bits(seed)
    parents, _, num_nodes = random_tree(bits, batch=batch, nodes=nodes, horizon=horizon, form="bushy", even=even)
    seq_lens = np.full(batch, prefix, np.int32)
    if not even:
        seq_lens[1:] -= bits.below(prefix // 4 + 1, batch - 1).astype(np.int32)
    return {"seq_lens": seq_lens, "tree_mask": tree_mask(parents, num_nodes), "num_nodes": num_nodes}


def attention(
    seed: int,
    *,
    batch: int,
    nodes: int,
    heads: int,
    prefix: int,
    page_size: int,
    horizon: int,
    even: bool = False,
    hashed: bool = False,
    xp: Any = np,
) -> dict[str, Any]:
    """Everything verify_attn reads, bf16 as uint16 words.

    Lengths are ragged (request 0 has the whole prefix), pages are scattered, and all values are random: zeros would
    draw less power and run faster than real data.

    Args:
        seed: literal seed.
        batch, nodes, heads, prefix, page_size, horizon: B, N, H, P, page_size, D.
        even: every request has the whole prefix and N nodes, as in tables of other libraries.
        hashed: q and the cache come from ``kdbench.counter_bits``.
        xp: numpy or cupy, whose arrays are returned; the bytes are the same.

    Returns:
        q_nope u16[B, N, H, 512], q_pe u16[B, N, H, 64], kv_cache u16[pages, page_size, 576],
        block_table i32[B, pages per request], seq_lens i32[B], tree_mask u64[B, N, W], num_nodes i32[B].
    """
    sizes = attention_sizes(seed, batch=batch, nodes=nodes, prefix=prefix, horizon=horizon, even=even)
    bits = Bits(seed + 1_000_000)
    pages = -(-(prefix + nodes) // page_size)
    scattered = np.argsort(bits.raw("<u8", batch * pages), kind="stable")
    shapes = {
        "q_nope": (_Q_EXPONENT, (batch, nodes, heads, KV_LORA_RANK)),
        "q_pe": (_Q_EXPONENT, (batch, nodes, heads, QK_ROPE_HEAD_DIM)),
        "kv_cache": (_KV_EXPONENT, (batch * pages, page_size, KV_LORA_RANK + QK_ROPE_HEAD_DIM)),
    }
    if hashed:
        values = {
            name: counter_bits.bf16_words(seed * 16 + at, exponent, shape, xp)
            for at, (name, (exponent, shape)) in enumerate(shapes.items())
        }
    else:
        values = {name: _bf16(bits, exponent, *shape) for name, (exponent, shape) in shapes.items()}
    arrays = {**values, "block_table": scattered.reshape(batch, pages).astype(np.int32), **sizes}
    return {name: xp.asarray(array) for name, array in arrays.items()}


def accepted_paths(seed: int, *, batch: int, horizon: int, nodes: int, prefix: int) -> dict[str, Array]:
    """The part of ``accepted_rows`` that says how much moves: seq_lens i32[B] and accepted_path i32[B, D+1].

    Lengths are ragged (request 0 has the whole prefix and a path of D + 1). All nodes but the root stand beyond the
    horizon, so that no target is a source: the same call again moves the same rows.
    """
    bits = Bits(seed)
    path = np.full((batch, horizon + 1), -1, np.int32)
    path[:, 0] = 0
    lengths = horizon - bits.below(horizon // 2 + 1, batch)
    lengths[0] = horizon
    for b, length in enumerate(lengths.tolist()):
        beyond = np.argsort(bits.raw("<u8", nodes - horizon - 1), kind="stable")[:length]
        path[b, 1 : length + 1] = horizon + 1 + np.sort(beyond)
    seq_lens = np.full(batch, prefix, np.int32)
    seq_lens[1:] -= bits.below(prefix // 4 + 1, batch - 1).astype(np.int32)
    return {"seq_lens": seq_lens, "accepted_path": path}


def accepted_rows(
    seed: int,
    *,
    layers: int,
    batch: int,
    horizon: int,
    nodes: int,
    prefix: int,
    page_size: int,
    hashed: bool = False,
    xp: Any = np,
) -> dict[str, Any]:
    """Everything kv_compact reads, bf16 as uint16 words; pages are scattered.

    A ``hashed`` cache comes from ``kdbench.counter_bits``; ``xp`` is numpy or cupy.

    Returns:
        kv_cache u16[layers, pages, page_size, 576], block_table i32[B, pages per request], and ``accepted_paths``.
    """
    bits = Bits(seed + 1_000_000)
    pages = -(-(prefix + nodes) // page_size)
    scattered = np.argsort(bits.raw("<u8", batch * pages), kind="stable")
    shape = (layers, batch * pages, page_size, KV_LORA_RANK + QK_ROPE_HEAD_DIM)
    cache = counter_bits.bf16_words(seed * 16, _KV_EXPONENT, shape, xp) if hashed else _bf16(bits, _KV_EXPONENT, *shape)
    arrays = {
        "kv_cache": cache,
        "block_table": scattered.reshape(batch, pages).astype(np.int32),
        **accepted_paths(seed, batch=batch, horizon=horizon, nodes=nodes, prefix=prefix),
    }
    return {name: xp.asarray(array) for name, array in arrays.items()}


def attention_states(seed: int, *, batch: int, nodes: int, heads: int, xp: Any = np) -> dict[str, Any]:
    """Two sides of merge_attn_states, like a prefix's and a tree's: log-sum-exps a few apart, bf16 as uint16 words.

    The last head of every third row has seen nothing on side b, whose out holds NaN there. ``xp`` is numpy or cupy.

    Returns:
        out_a, out_b u16[B, N, H, 512] and lse_a, lse_b f32[B, N, H].
    """
    bits = Bits(seed)
    out_a, out_b = (_bf16(bits, _KV_EXPONENT, batch, nodes, heads, KV_LORA_RANK) for _ in range(2))
    lse_a, lse_b = ((6.0 + 2.0 * bits.bell(batch, nodes, heads)).astype(np.float32) for _ in range(2))
    out_b[:, ::3, -1] = 0x7FC0
    lse_b[:, ::3, -1] = -np.inf
    arrays = {"out_a": out_a, "lse_a": lse_a, "out_b": out_b, "lse_b": lse_b}
    return {name: xp.asarray(array) for name, array in arrays.items()}


def draft_logits(seed: int, *, rows: int, dtype: str, hashed: bool = False, xp: Any = np) -> dict[str, Any]:
    """Logits of a drafter: f32 or bf16 words [rows, VOCAB_SIZE], bell-shaped, standard deviation 4.6.

    ``hashed`` ones, which are bf16, come from ``kdbench.counter_bits``; ``xp`` is numpy or cupy.
    """
    if hashed:
        return {"logits": counter_bits.bell_bf16(seed, (rows, VOCAB_SIZE), xp)}
    logits = (Bits(seed).bell(rows, VOCAB_SIZE) * 4).astype(np.float32)
    return {"logits": xp.asarray(logits if dtype == "f32" else (logits.view(np.uint32) >> 16).astype(np.uint16))}


def _bf16(bits: Bits, exponent: int, *shape: int) -> Array:
    count = int(np.prod(shape, dtype=np.int64))
    words = bits.words(-(-count // 4))
    # In place and eight bytes at a time: a long prefix is more than half a gigabyte.
    words &= np.uint64(0x80FF80FF80FF80FF)
    words |= np.uint64(exponent * 0x0001000100010001)
    return words.view("<u2")[:count].reshape(shape)
