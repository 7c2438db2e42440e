# SPDX-License-Identifier: Apache-2.0
"""Workloads of verify_mla: their inputs, what they cost, and the oracle's answers for a few rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdbench import sampled_attention
from kdbench import workload_inputs as make
from kdbench.abi import KV_LORA_RANK, QK_NOPE_HEAD_DIM, QK_ROPE_HEAD_DIM, V_HEAD_DIM
from kdbench.arrays import bf16_to_f32
from kdbench.workload_costs import Cost

Array = NDArray[Any]

# Exponents of random bf16 words: queries of +-[0.125, 0.5), weights of +-[2^-5, 2^-3). With latents of +-[0.5, 2) a
# key's values then have standard deviation 2, and scores spread by about 1.1.
_QUERY_EXPONENT = 0x3E00
_WEIGHT_EXPONENT = 0x3D00
_PROJECTION_FLOPS = 2 * KV_LORA_RANK * QK_NOPE_HEAD_DIM
_KEY = QK_NOPE_HEAD_DIM + QK_ROPE_HEAD_DIM


def inputs(seed: int, *, mode: str, **shape: Any) -> dict[str, Array]:
    """Everything verify_mla reads, bf16 as uint16 words: verify_attn's inputs of the same seed, but for q_nope.

    Args:
        seed: literal seed.
        mode: does not matter here: all modes compute the same from the same inputs.
        shape: as in ``workload_inputs.attention``.

    Returns:
        q_nope u16[B, N, H, 128], w_uk u16[H, 128, 512], w_uv u16[H, 512, 128], and the others of ``attention``.
    """
    batch, nodes, heads = shape["batch"], shape["nodes"], shape["heads"]
    bits = make.Bits(seed + 3_000_000)
    drawn = {
        "q_nope": _words(bits, _QUERY_EXPONENT, batch, nodes, heads, QK_NOPE_HEAD_DIM),
        "w_uk": _words(bits, _WEIGHT_EXPONENT, heads, QK_NOPE_HEAD_DIM, KV_LORA_RANK),
        "w_uv": _words(bits, _WEIGHT_EXPONENT, heads, KV_LORA_RANK, V_HEAD_DIM),
    }
    return make.attention(seed, **shape) | drawn


def cost(shape: Mapping[str, Any], sizes: Mapping[str, Any]) -> Cost:
    """Inputs and outputs once; FLOPs of the workload's mode (of the cheaper one for "auto") over visible slots."""
    prefix, nodes = sizes["seq_lens"].astype(np.int64), sizes["num_nodes"].astype(np.int64)
    visible = int(np.unpackbits(sizes["tree_mask"].view(np.uint8)).sum(dtype=np.int64)) + int((prefix * nodes).sum())
    heads, slots, rows = int(shape["heads"]), int((prefix + nodes).sum()), int(nodes.sum())
    weights = heads * KV_LORA_RANK * (QK_NOPE_HEAD_DIM + V_HEAD_DIM)
    moved = 2 * (slots * (KV_LORA_RANK + QK_ROPE_HEAD_DIM) + weights + rows * heads * (_KEY + V_HEAD_DIM))
    flops = {
        "absorb": 2 * rows * _PROJECTION_FLOPS + visible * 2 * (2 * KV_LORA_RANK + QK_ROPE_HEAD_DIM),
        "mha": 2 * slots * _PROJECTION_FLOPS + visible * 2 * (_KEY + V_HEAD_DIM),
    }
    return Cost(moved, heads * flops.get(shape["mode"], min(flops.values())))


def attend(arrays: Mapping[str, Array], rows: Array, softmax_scale: float) -> tuple[Array, Array]:
    """The oracle's out f64[R, 128] and natural-log lse f64[R] for ``rows``, i64[R, 3] of (request, node, head).

    In float64 absorbing the weights changes nothing that matters: 1e-15.
    """
    request, node, head = rows.T
    nope = _wide(arrays["q_nope"][request, node, head])
    weights = {h: (_wide(arrays["w_uk"][h]), _wide(arrays["w_uv"][h])) for h in np.unique(head)}
    absorbed = np.stack([query @ weights[h][0] for query, h in zip(nope, head, strict=True)])
    query = np.concatenate([absorbed, _wide(arrays["q_pe"][request, node, head])], axis=1)
    latent, lse = sampled_attention.attend_queries(arrays, rows, query, softmax_scale)
    return np.stack([row @ weights[h][1] for row, h in zip(latent, head, strict=True)]), lse


def _words(bits: make.Bits, exponent: int, *shape: int) -> Array:
    """bf16 words of random sign, mantissa and lowest exponent bit."""
    words = bits.raw("<u2", *shape)
    return (words & np.uint16(0x80FF)) | np.uint16(exponent)


def _wide(words: Array) -> Array:
    return bf16_to_f32(words).astype(np.float64)
