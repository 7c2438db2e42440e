# SPDX-License-Identifier: Apache-2.0
"""The kernels of a DDTree round: draft_topk, tree_build, verify_attn (and merge_attn_states) or verify_mla,
tree_accept, kv_compact.

Arrays come from NumPy, CuPy or Torch (or anything with an array protocol), row-major; results are of the same kind.
Host arrays go to the CPU library and device arrays to the CUDA library, on the current stream of their framework
unless ``stream`` (an integer handle, a CuPy or a Torch stream) says otherwise. A device call returns before it is done.

Every function raises InvalidArgument for a wrong shape, dtype, device, order or range, BackendUnavailable when the
library is missing, and KernelError when the library refuses the call. What only the data shows is a status word per
request (``kdbench.native.RequestStatus``), and leaves the other requests of the batch right.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kdbench.abi import LOG_PROB_FLOOR
from kdbench.arrays import Array, to_numpy, view
from kdbench.calls import (
    Call,
    prepare_draft_topk,
    prepare_kv_compact,
    prepare_merge_attn_states,
    prepare_tree_accept,
    prepare_tree_build,
    prepare_verify_attn,
)
from kdbench.errors import InvalidArgument
from kdbench.tree import Acceptance, DraftTopk, DraftTree
from kdbench.verify_mla_calls import MlaPlan, prepare_verify_mla, verify_mla, verify_mla_plan

__all__ = [
    "Call",
    "MlaPlan",
    "draft_topk",
    "kv_compact",
    "merge_attn_states",
    "prepare_draft_topk",
    "prepare_kv_compact",
    "prepare_merge_attn_states",
    "prepare_tree_accept",
    "prepare_tree_build",
    "prepare_verify_attn",
    "prepare_verify_mla",
    "tree_accept",
    "tree_build",
    "verify_attn",
    "verify_mla",
    "verify_mla_plan",
]


def tree_build(
    topk_log_probs: Array,
    topk_token_ids: Array,
    root_token_ids: Array,
    seq_lens: Array,
    tree_budget: int,
    *,
    backend: str | None = None,
    stream: Any = None,
    out: DraftTree | None = None,
    dfs_order: bool = False,
    expected_lengths: bool = False,
) -> DraftTree:
    """The ``tree_budget`` most probable prefixes of each request, best first (arXiv 2604.12989, best-first heap).

    Nodes are taken by descending score, equal scores by ascending rank tuple. Scores are summed in units of 2^-40, so
    that CPU, CUDA and ``kdbench.reference`` agree in every bit. Log-probs below -64 count as -inf.

    Args:
        topk_log_probs: f32[B, D, K] natural log-probs of the K likeliest tokens at each depth, descending along K.
        topk_token_ids: i32[B, D, K] their token ids, distinct within a row.
        root_token_ids: i32[B] last committed token, the previous round's bonus token.
        seq_lens: i32[B] committed tokens: the position at which the root stands.
        tree_budget: draft nodes wanted, the root excluded; 0 to 1024.
        backend: "cpu", "cuda" or None for the one that the arrays belong to.
        stream: None, an integer handle, a CuPy or a Torch stream.
        out: a tree of the same shapes to write into; its dfs_order and expected_lengths are filled when it has them.
        dfs_order: also return the nodes' pre-order.
        expected_lengths: also return the acceptance_length the drafter expects of the tree cut after each node.

    Returns:
        The trees; status bits SHORT_TREE, TRUNCATED, or NAN and POSITIVE for a refused request, which is root-only.

    Raises:
        InvalidArgument: see the module; for host arrays also a row that is not descending or repeats a token.
    """
    call = prepare_tree_build(
        topk_log_probs,
        topk_token_ids,
        root_token_ids,
        seq_lens,
        tree_budget,
        backend=backend,
        stream=stream,
        out=out,
        dfs_order=dfs_order,
        expected_lengths=expected_lengths,
    )
    if view("topk_log_probs", topk_log_probs).on_host:
        _check_candidates(to_numpy(topk_log_probs), to_numpy(topk_token_ids))
    call.launch()
    horizon = int(call.params.draft_horizon)
    return out or DraftTree(**call.outputs, tree_budget=int(call.params.tree_budget), draft_horizon=horizon)


def tree_accept(
    tree: DraftTree,
    target_tokens: Array,
    seq_lens: Array | None = None,
    *,
    backend: str | None = None,
    stream: Any = None,
    out: Acceptance | None = None,
) -> Acceptance:
    """The longest path from the root on which the target agrees with the drafts, and the token that follows it.

    The walk is that of sgl-kernel's verify_tree_greedy, made from parents instead of links: of equal siblings the one
    with the lowest index is taken. Works for greedy targets and for targets sampled once a node alike.

    Args:
        tree: trees with i32 token_ids and parents [B, N] and num_nodes [B]; its other fields are not read.
        target_tokens: i32[B, N] the target's token after each node; entries of pads are ignored.
        seq_lens: i32[B] committed tokens P, when source_slots are wanted.
        backend, stream: see ``tree_build``.
        out: an Acceptance of the same shapes to write into.

    Returns:
        accepted_path i32[B, D+1], acceptance_length i32[B] (bonus included), bonus_token i32[B] and status i32[B]:
        BAD_COUNT, BAD_TREE or TOO_DEEP for a refused request, which accepts the root only. With seq_lens also
        source_slots i32[B, D+1]: the logical slots P + accepted_path, -1 behind the path; their latents belong in
        slots P, P + 1, ... (``kv_compact`` moves them). A P below 0, or so large that slots leave int32, is
        BAD_LENGTH, and has no slots.
    """
    call = prepare_tree_accept(tree, target_tokens, seq_lens, backend=backend, stream=stream, out=out)
    call.launch()
    return out or Acceptance(**call.outputs)


def verify_attn(
    q_nope: Array,
    q_pe: Array,
    kv_cache: Array,
    block_table: Array,
    seq_lens: Array,
    tree_mask: Array,
    num_nodes: Array | None,
    softmax_scale: float,
    *,
    backend: str | None = None,
    stream: Any = None,
    out: tuple[Array, Array] | None = None,
    status: Array | None = None,
    tail_only: bool = False,
    path: str = "best",
) -> tuple[Array, Array]:
    """Multi-head latent attention, weights absorbed, of every tree node over its prefix and its ancestors.

    Node i of request b attends logical slots 0 to seq_lens[b] - 1, and slot seq_lens[b] + j for every bit j of its mask
    row. A row without bits is a pad: out 0, lse -inf. Slots that nobody attends may hold anything, NaN included.

    Args:
        q_nope: bf16[B, N, H, 512], W_UK absorbed. bf16 is uint16 bit patterns or ml_dtypes.bfloat16 (NumPy), uint16
            (CuPy) or torch.bfloat16.
        q_pe: bf16[B, N, H, 64], RoPE applied.
        kv_cache: bf16[num_pages, page_size, 576]: per token 512 latent values, then 64 of k_pe.
        block_table: i32[B, max_pages_per_seq]; slot t is row t % page_size of page block_table[b, t / page_size].
        seq_lens: i32[B] committed tokens, the tree excluded.
        tree_mask: u64[B, N, ceil(N/64)] as in DraftTree.
        num_nodes: i32[B] or None, when an empty mask row alone marks a pad.
        softmax_scale: factor on the scores before the softmax, above 0.
        backend, stream: see ``tree_build``.
        out: (out, lse) to write into.
        status: i32[B] to receive BAD_COUNT, BAD_LENGTH or BAD_PAGE; a refused request is all pads.
        tail_only: leave the prefix out: node i attends the tree slots of its mask row alone. With the prefix's own
            result, of any kernel, ``merge_attn_states`` makes the whole of it. Pages of prefix slots are not looked at.
        path: "best", or the implementation by name, which the library and the GPU must have: "portable" or "hopper".

    Returns:
        out, of q_nope's kind and dtype, [B, N, H, 512], before W_UV; lse f32[B, N, H], natural log.
    """
    call = prepare_verify_attn(
        q_nope,
        q_pe,
        kv_cache,
        block_table,
        seq_lens,
        tree_mask,
        num_nodes,
        softmax_scale,
        backend=backend,
        stream=stream,
        out=out,
        status=status,
        tail_only=tail_only,
        path=path,
    )
    call.launch()
    return call.outputs["out"], call.outputs["lse"]


def merge_attn_states(
    out_a: Array,
    lse_a: Array,
    out_b: Array,
    lse_b: Array,
    *,
    backend: str | None = None,
    stream: Any = None,
    out: tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    """Attention over two disjoint sets of slots, from the attention over each: cascade attention's merge.

    lse = log(e^lse_a + e^lse_b), and each side's out counts by its share e^(lse_side - lse) (FlashInfer,
    arXiv 2501.01005). A side with lse -inf has seen nothing: its out is not used, whatever it holds, and two such sides
    give 0 and -inf. An lse of NaN or +inf makes its row NaN, lse included.

    Args:
        out_a, out_b: bf16[..., head_dim], head_dim a multiple of 8 up to 512; kinds of bf16 as in ``verify_attn``.
        lse_a, lse_b: f32[...], natural log; multiply one of base 2 by ln 2 first.
        backend, stream: see ``tree_build``.
        out: (out, lse) to write into; each may be side a's or side b's own array.

    Returns:
        out, of out_a's kind and dtype, [..., head_dim], and lse f32[...].
    """
    call = prepare_merge_attn_states(out_a, lse_a, out_b, lse_b, backend=backend, stream=stream, out=out)
    call.launch()
    return call.outputs["out"], call.outputs["lse"]


def draft_topk(
    logits: Array,
    k: int,
    *,
    backend: str | None = None,
    stream: Any = None,
    out: DraftTopk | None = None,
) -> DraftTopk:
    """The ``k`` largest log-softmax values of each row over the whole vocabulary, and their tokens.

    Args:
        logits: f32 or bf16 [..., V], natural-log units; -inf is ordinary.
        k: 1 to min(V, 1024).
        backend, stream: see ``tree_build``.
        out: a DraftTopk of the same shapes to write into.

    Returns:
        log_probs f32[..., k], descending, equal values by lowest token id; token_ids i32[..., k]; status i32[...]: NAN
        or POSITIVE (a logit of +inf) for a refused row, which is all NaN and -1.
    """
    call = prepare_draft_topk(logits, k, backend=backend, stream=stream, out=out)
    call.launch()
    values = call.outputs
    return out or DraftTopk(
        log_probs=values["topk_log_probs"], token_ids=values["topk_token_ids"], status=values["status"]
    )


def kv_compact(
    kv_cache: Array,
    block_table: Array,
    seq_lens: Array,
    accepted_path: Array,
    *,
    backend: str | None = None,
    stream: Any = None,
    status: Array | None = None,
) -> Array:
    """Move the cached rows of the accepted nodes behind the prefix, in place and in every layer.

    The row of logical slot P + accepted_path[b, k] goes to slot P + k, P = seq_lens[b], as if all rows of a request
    were read before one is written; slots P to P + acceptance_length - 1 are then committed. RoPE stays right, since a
    node at depth k was rotated for position P + k. It is the copy that SGLang's ``move_kv_cache`` makes after
    ``verify_tree_greedy``.

    Args:
        kv_cache: [num_pages, page_size, W] or [num_layers, num_pages, page_size, W] of bf16, fp8 or any other dtype of
            1, 2 or 4 bytes; a row of W must be a multiple of 16 bytes, and the array aligned to 16. It is changed.
        block_table: i32[B, max_pages_per_seq] as in ``verify_attn``; the same for all layers. What one request moves
            must lie in pages of its own.
        seq_lens: i32[B] committed tokens, the tree excluded.
        accepted_path: i32[B, D+1] as ``tree_accept`` gives it; all -1 moves nothing.
        backend, stream: see ``tree_build``.
        status: i32[B] to write into.

    Returns:
        status i32[B]: BAD_TREE (a path that is not 0, rising, then -1), BAD_LENGTH or BAD_PAGE for a refused request,
        of which nothing was moved.
    """
    call = prepare_kv_compact(
        kv_cache, block_table, seq_lens, accepted_path, backend=backend, stream=stream, status=status
    )
    call.launch()
    return call.outputs["status"]


def _check_candidates(log_probs: np.ndarray[Any, Any], token_ids: np.ndarray[Any, Any]) -> None:
    # A comparison with NaN is false, so that NaN is left to the request's status word.
    rising = np.argwhere(log_probs[..., 1:] > log_probs[..., :-1])
    if len(rising):
        b, d, k = (int(i) for i in rising[0])
        raise InvalidArgument(
            f"topk_log_probs[{b}, {d}] is not descending: {log_probs[b, d, k]} is before {log_probs[b, d, k + 1]}"
        )
    # Columns below the floor are never drafted, and callers may fill their ids with anything.
    filler = -(2**32) - np.arange(token_ids.shape[-1])
    ordered = np.sort(np.where(log_probs >= LOG_PROB_FLOOR, token_ids, filler), axis=-1)
    repeated = np.argwhere(ordered[..., 1:] == ordered[..., :-1])
    if len(repeated):
        b, d, k = (int(i) for i in repeated[0])
        raise InvalidArgument(f"topk_token_ids[{b}, {d}] holds token {ordered[b, d, k]} more than once")
