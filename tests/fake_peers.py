# SPDX-License-Identifier: Apache-2.0
"""Other people's ops in plain Torch on a CPU, with the signatures and layouts that their sources document.

They stand where the real libraries would, so that an adapter's layouts are tested without a GPU.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

SGL_SCHEMAS = (
    "verify_tree_greedy(Tensor(a!) predicts, Tensor(b!) accept_index, Tensor(c!) accept_token_num, Tensor candidates, "
    "Tensor retrive_index, Tensor retrive_next_token, Tensor retrive_next_sibling, Tensor target_predict) -> ()",
    "build_tree_kernel_efficient(Tensor parent_list, Tensor selected_index, Tensor verified_seq_len, "
    "Tensor(a!) tree_mask, Tensor(b!) positions, Tensor(c!) retrive_index, Tensor(d!) retrive_next_token, "
    "Tensor(e!) retrive_next_sibling, int topk, int depth, int draft_token_num, int tree_mask_mode) -> ()",
    "merge_state_v2(Tensor v_a, Tensor s_a, Tensor v_b, Tensor s_b, Tensor(a!) v_merged, Tensor(b!) s_merged) -> ()",
    "dense_decode_fwd(Tensor q, Tensor kcache, int head_size_v, Tensor seqlens_k, Tensor block_table, "
    "float softmax_scale, bool is_causal, Tensor? tile_scheduler_metadata, Tensor? num_splits) "
    "-> (Tensor, Tensor, Tensor?, Tensor?)",
)
FA3_SCHEMA = (
    "fwd(Tensor q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v, Tensor? out, Tensor? cu_seqlens_q, "
    "Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? seqused_k, int max_seqlen_q, "
    "int max_seqlen_k, Tensor? block_table, Tensor? kv_batch_idx, Tensor? leftpad_k, Tensor? rotary_cos, "
    "Tensor? rotary_sin, Tensor? seqlens_rotary, Tensor? q_descale, Tensor? k_descale, Tensor? v_descale, "
    "float softmax_scale, bool causal, int window_left, int window_right, float softcap, bool rotary_interleaved, "
    "Tensor? scheduler_metadata, int num_splits, bool? pack_gqa, int sm_margin, Tensor? s_aux, int cp_world_size, "
    "int cp_rank, Tensor? cp_tot_seqused_k) -> (Tensor, Tensor, Tensor, Tensor)"
)

FA3_METADATA = (
    "get_scheduler_metadata(int batch_size, int max_seqlen_q, int max_seqlen_k, int num_heads, int num_heads_k, "
    "int headdim, int headdim_v, ScalarType qkv_dtype, Tensor seqused_k, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
    "Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? leftpad_k, int? page_size, int max_seqlen_k_new, "
    "bool is_causal, int window_size_left, int window_size_right, bool has_softcap, int num_splits, bool? pack_gqa, "
    "int sm_margin) -> Tensor"
)


@functools.cache
def register() -> list[torch.library.Library]:
    """Define the ops once a process; the returned objects keep them alive."""
    sgl, fa3 = torch.library.Library("sgl_kernel", "DEF"), torch.library.Library("_vllm_fa3_C", "DEF")
    for schema in SGL_SCHEMAS:
        sgl.define(schema)
    for function in (verify_tree_greedy, build_tree_kernel_efficient, merge_state_v2, dense_decode_fwd):
        sgl.impl(function.__name__, function, "CPU")
    fa3.define(FA3_SCHEMA)
    fa3.define(FA3_METADATA)
    fa3.impl("get_scheduler_metadata", lambda batch, *rest: torch.full((batch,), 7), "CPU")
    fa3.impl("fwd", fa3_fwd, "CPU")
    return [sgl, fa3]


def verify_tree_greedy(
    predicts: Any, accept_index: Any, accept_token_num: Any, candidates: Any, index: Any, child: Any, sibling: Any,
    target: Any,
) -> None:  # fmt: skip
    steps, flat_target = accept_index.shape[1], target.reshape(-1)
    for b in range(len(candidates)):
        last = int(index[b, 0])
        accept_index[b, 0] = last
        node, count = 0, 0
        for _ in range(1, steps):
            node = int(child[b, node])
            while node != -1 and candidates[b, node] != flat_target[last]:
                node = int(sibling[b, node])
            if node == -1:
                break
            predicts[last] = flat_target[last]
            count += 1
            last = int(index[b, node])
            accept_index[b, count] = last
        accept_token_num[b] = count
        predicts[last] = flat_target[last]


def build_tree_kernel_efficient(
    parent_list: Any, selected: Any, lens: Any, mask: Any, positions: Any, index: Any, child: Any, sibling: Any,
    topk: int, depth: int, count: int, mode: int,
) -> None:  # fmt: skip
    assert mode == 1
    assert parent_list.shape[1] == topk * (depth - 1) + 1
    for b in range(len(selected)):
        codes = selected[b].tolist()
        assert codes == sorted(codes)
        place = {code: at for at, code in enumerate(codes, start=1)}
        parent = [0] + [place[int(parent_list[b, code // topk])] if code // topk else 0 for code in codes]
        positions[b, 0], index[b] = lens[b], torch.arange(b * count, (b + 1) * count)
        for node in range(count - 1, 0, -1):
            # What stands there from before is believed, as the kernel does.
            if int(child[b, parent[node]]) != -1:
                sibling[b, node] = child[b, parent[node]]
            child[b, parent[node]] = node
        mask[b] = False
        mask[b, :, 0] = True
        for node in range(1, count):
            at, depth_of = node, 0
            while at:
                mask[b, node, at] = True
                at, depth_of = parent[at], depth_of + 1
            positions[b, node] = lens[b] + depth_of


def merge_state_v2(v_a: Any, s_a: Any, v_b: Any, s_b: Any, v_merged: Any, s_merged: Any) -> None:
    lse = torch.logaddexp(s_a, s_b)
    parts = [torch.exp(s - lse)[..., None] * v.float() for s, v in ((s_a, v_a), (s_b, v_b))]
    v_merged.copy_(parts[0].nan_to_num() + parts[1].nan_to_num())
    s_merged.copy_(lse)


def dense_decode_fwd(
    q: Any, cache: Any, width: int, lens: Any, table: Any, scale: float, causal: bool, metadata: Any, splits: Any
) -> tuple[Any, Any, Any, Any]:
    assert cache.shape[1:3] == (64, 1)
    assert not causal
    assert (metadata is None) == (splits is None)
    out, lse = attend(q, cache[:, :, 0], table, lens, scale, width)
    return out, lse.transpose(1, 2).contiguous(), torch.zeros(1), torch.zeros(1)


def fa3_fwd(q: Any, k: Any, v: Any, *rest: Any) -> tuple[Any, Any, Any, Any]:
    named = dict(zip([part.split()[-1] for part in FA3_SCHEMA[4:].split(") ->")[0].split(", ")][3:], rest, strict=True))
    assert not named["causal"]
    assert named["scheduler_metadata"].tolist() == [7] * len(named["seqused_k"])
    assert named["max_seqlen_k"] >= int(named["seqused_k"].max())
    rows = named["max_seqlen_q"]
    assert named["cu_seqlens_q"].diff().eq(rows).all()
    cache = torch.cat([v[:, :, 0], k[:, :, 0]], dim=-1)
    query = torch.cat([named["q_v"], q], dim=-1).unflatten(0, (-1, rows))
    lens, table = named["seqused_k"], named["block_table"]
    out, lse = attend(query, cache, table, lens, named["softmax_scale"], v.shape[-1])
    return out.flatten(0, 1), lse.flatten(0, 1).T.contiguous(), torch.zeros(1), torch.zeros(1)


class FlashInferModule:
    """plan and run of FlashInfer's compiled MLA module, fa3."""

    def plan(
        self, floats: Any, ints: Any, pinned: Any, qo: Any, kv: Any, lens: Any, heads: int, width: int, causal: bool
    ) -> Any:
        assert not causal
        assert width == 512
        return qo, kv, lens, heads

    def run(
        self, floats: Any, ints: Any, planned: Any, q_nope: Any, q_pe: Any, ckv: Any, kpe: Any, indices: Any, out: Any,
        lse: Any, mask: int, heads: int, page: int, scale: float, base_e: bool, *scales: float,
    ) -> None:  # fmt: skip
        qo, kv, lens, planned_heads = planned
        assert (mask, base_e, scales, heads) == (0, True, (1.0, 1.0), planned_heads)
        assert ckv.shape[1] == page
        query, cache = torch.cat([q_nope, q_pe], -1), torch.cat([ckv, kpe], -1)
        for b in range(len(lens)):
            table = indices[kv[b] : kv[b + 1]][None]
            rows = slice(int(qo[b]), int(qo[b + 1]))
            answer = attend(query[rows][None], cache, table, lens[b : b + 1], scale, ckv.shape[-1])
            out[rows], lse[rows] = answer[0][0], answer[1][0]


class FlashInferWrapper:
    """flashinfer.mla.BatchMLAPagedAttentionWrapper around the module."""

    def __init__(self, workspace: Any, backend: str) -> None:
        assert backend == "fa3"
        assert workspace.dtype == torch.uint8

    def plan(
        self, qo_indptr: Any, kv_indptr: Any, kv_indices: Any, kv_len_arr: Any, num_heads: int, head_dim_ckv: int,
        head_dim_kpe: int, page_size: int, causal: bool, sm_scale: float, q_data_type: Any, kv_data_type: Any,
    ) -> None:  # fmt: skip
        assert (head_dim_kpe, q_data_type, kv_data_type) == (64, torch.bfloat16, torch.bfloat16)
        self.planned = FlashInferModule().plan(
            None, None, None, qo_indptr, kv_indptr, kv_len_arr, num_heads, head_dim_ckv, causal
        )
        self.rest = (kv_indices, num_heads, page_size, sm_scale)

    def run(self, q_nope: Any, q_pe: Any, ckv: Any, kpe: Any, *, return_lse: bool, return_lse_base_on_e: bool) -> Any:
        assert return_lse
        out, lse = torch.empty_like(q_nope), torch.empty(q_nope.shape[:2])
        indices, heads, page, scale = self.rest
        FlashInferModule().run(
            None, None, self.planned, q_nope, q_pe, ckv, kpe, indices, out, lse, 0, heads, page, scale,
            return_lse_base_on_e, 1.0, 1.0,
        )  # fmt: skip
        return out, lse


def attend(query: Any, cache: Any, table: Any, lens: Any, scale: float, width: int) -> tuple[Any, Any]:
    """out [B, N, H, width] of query's dtype and natural-log lse f32[B, N, H]: every row over its request's slots."""
    outs, lses = [], []
    for b, count in enumerate(lens.tolist()):
        rows = cache[table[b].long()].flatten(0, 1)[:count].float()
        scores = query[b].float() @ rows.T * scale
        lse = torch.logsumexp(scores, -1)
        outs.append(
            torch.exp(scores - lse[..., None]) @ rows[:, :width] if count else torch.zeros_like(query[b][..., :width])
        )
        lses.append(lse)
    return torch.stack(outs).to(query.dtype), torch.stack(lses)


def triton_extend(
    q: Any, k: Any, v: Any, out: Any, k_buffer: Any, v_buffer: Any, qo: Any, kv: Any, slots: Any, mask: Any,
    causal: bool, starts: Any, longest: int, k_scale: float, v_scale: float, sm_scale: float,
) -> None:  # fmt: skip
    """SGLang's extend_attention_fwd with a custom mask."""
    assert (k_scale, v_scale, causal) == (1.0, 1.0, True)
    for b in range(len(qo) - 1):
        rows, prefix = slice(int(qo[b]), int(qo[b + 1])), slots[kv[b] : kv[b + 1]]
        assert rows.stop - rows.start <= longest
        keys = torch.cat([k_buffer[prefix, 0], k[rows, 0]]).float()
        values = torch.cat([v_buffer[prefix, 0], v[rows, 0]]).float()
        seen = mask[starts[b] : starts[b + 1]].view(rows.stop - rows.start, -1).bool()
        seen[:, : len(prefix)] = True  # the mask over the prefix is skipped by default
        scores = (torch.einsum("nhc,sc->nhs", q[rows].float(), keys) * sm_scale).masked_fill(~seen[:, None], -torch.inf)
        out[rows] = torch.einsum("nhs,sc->nhc", torch.softmax(scores, -1), values).to(out.dtype)


def tail_of_ours(
    q_nope: Any,
    q_pe: Any,
    kv_cache: Any,
    block_table: Any,
    seq_lens: Any,
    tree_mask: Any,
    num_nodes: Any,
    softmax_scale: float,
    *,
    tail_only: bool = False,
) -> tuple[Any, Any]:
    """kdbench.verify_attn with tail_only, from the oracle, for Torch tensors on the host."""
    from kdbench import reference
    from kdbench.arrays import to_numpy
    from kdbench.sglang_layout import unpack_mask

    assert tail_only
    size, seen = kv_cache.shape[1], unpack_mask(np.asarray(tree_mask).view(np.uint64))
    slots = np.asarray(seq_lens)[:, None] + np.arange(seen.shape[1])
    table = np.take_along_axis(np.asarray(block_table), slots // size, axis=1)
    moved = to_numpy(kv_cache)[table, slots % size]  # one page a request, the tree alone in it
    pages = np.arange(len(moved), dtype=np.int32)[:, None]
    nothing = np.zeros(len(moved), np.int32)
    out, lse = reference.verify_attn(
        to_numpy(q_nope), to_numpy(q_pe), moved, pages, nothing, np.asarray(tree_mask).view(np.uint64),
        np.asarray(num_nodes), softmax_scale,
    )  # fmt: skip
    return torch.from_numpy(out).to(torch.bfloat16), torch.from_numpy(lse).float()


def merge_of_ours(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[Any, Any]:
    """kdbench.merge_attn_states for Torch tensors."""
    out, lse = torch.empty_like(out_a), torch.empty_like(lse_a)
    merge_state_v2(out_a, lse_a, out_b, lse_b, out, lse)
    return out, lse
