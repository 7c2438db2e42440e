// SPDX-License-Identifier: Apache-2.0
//
// The middle step of verify_mla's absorb mode is a call of verify_attn in the same library.
#ifndef KDTREE_CORE_VERIFY_MLA_ABSORB_H
#define KDTREE_CORE_VERIFY_MLA_ABSORB_H

#include "core/error.h"
#include "kdtree/kdtree.h"

namespace kdt {

// That call's params, but for q_nope, out and its workspace, which verify_mla owns.
inline kdt_verify_attn_params absorbed_attention(const kdt_verify_mla_params& p) {
    kdt_verify_attn_params attn = {};
    attn.struct_size = sizeof(attn);
    attn.q_pe = p.q_pe;
    attn.kv_cache = p.kv_cache;
    attn.block_table = p.block_table;
    attn.seq_lens = p.seq_lens;
    attn.tree_mask = p.tree_mask;
    attn.num_nodes = p.num_nodes;
    attn.lse = p.lse;
    attn.status = p.status;
    attn.batch = p.batch;
    attn.max_nodes = p.max_nodes;
    attn.num_qo_heads = p.num_qo_heads;
    attn.kv_lora_rank = p.kv_lora_rank;
    attn.qk_rope_head_dim = p.qk_rope_head_dim;
    attn.num_pages = p.num_pages;
    attn.page_size = p.page_size;
    attn.max_pages_per_seq = p.max_pages_per_seq;
    attn.softmax_scale = p.softmax_scale;
    attn.stream = p.stream;
    return attn;
}

// A failure of that call is this one's, with its own sentence.
inline void require(kdt_status status) {
    if (status != KDT_OK) fail(status, "%s", kdt_last_error());
}

}  // namespace kdt

#endif  // KDTREE_CORE_VERIFY_MLA_ABSORB_H
