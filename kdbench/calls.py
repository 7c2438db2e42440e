# SPDX-License-Identifier: Apache-2.0
"""Prepared native calls: arrays checked, outputs allocated and params filled once, then launched as often as one likes.

``kdbench.kernels`` prepares and launches; ``kdbench.timing`` prepares once and times the launches.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

from kdbench import native
from kdbench.abi import ATTN_PATHS
from kdbench.arrays import BF16, MASK_WORD, Array, itemsize, view
from kdbench.call_builder import Call, CallBuilder, in_range, of_type, output_record
from kdbench.errors import InvalidArgument
from kdbench.tree import Acceptance, DraftTopk, DraftTree

__all__ = [
    "Call",
    "prepare_draft_topk",
    "prepare_kv_compact",
    "prepare_merge_attn_states",
    "prepare_tree_accept",
    "prepare_tree_build",
    "prepare_verify_attn",
]

# What a cache may hold: rows are moved as bytes.
KV_DTYPES = (*BF16, "float16", "float32", "uint8", "int8", "float8_e4m3fn", "float8_e5m2")
_ROW_ALIGNMENT = 16
KV_WIDTH = native.KV_LORA_RANK + native.QK_ROPE_HEAD_DIM
_OptionalArrays = dict[str, Array | None]


def prepare_tree_build(
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
    library: native.Library | None = None,
) -> Call:
    """A prepared ``kdbench.tree_build``; values are not looked at, and ``library`` overrides the installed one."""
    call = CallBuilder()
    out = output_record(out, DraftTree)
    budget = in_range("tree_budget", tree_budget, 0, native.MAX_TREE_BUDGET)
    call.read("topk_log_probs", topk_log_probs, ("B", "D", "K"), "float32")
    call.read("topk_token_ids", topk_token_ids, ("B", "D", "K"), "int32")
    call.read("root_token_ids", root_token_ids, ("B",), "int32")
    call.read("seq_lens", seq_lens, ("B",), "int32")
    batch = call.shapes["B"]
    horizon = in_range("draft_horizon D", call.shapes["D"], 0, native.MAX_DRAFT_HORIZON)
    topk = in_range("topk K", call.shapes["K"], 1, native.MAX_TOPK)
    if out is not None and (out.tree_budget, out.draft_horizon) != (budget, horizon):
        raise InvalidArgument(
            f"out is a tree of tree_budget {out.tree_budget} and draft_horizon {out.draft_horizon}, "
            f"and {budget} and {horizon} are expected"
        )
    wanted = {"dfs_order": dfs_order, "expected_lengths": expected_lengths}
    for name in [name for name in wanted if wanted[name]]:
        if out is not None and getattr(out, name) is None:
            raise InvalidArgument(f"{name} is wanted, and out has none: build out with {name}=True")
    given: _OptionalArrays = out.arrays() if out else {}
    nodes = budget + 1
    for name in ("token_ids", "parents", "depths", "positions", "first_child", "next_sibling"):
        call.write(name, given.get(name), (batch, nodes), "int32")
    call.write("tree_mask", given.get("tree_mask"), (batch, nodes, -(-nodes // 64)), MASK_WORD)
    call.write("scores", given.get("scores"), (batch, nodes), "float32")
    call.write("num_nodes", given.get("num_nodes"), (batch,), "int32")
    call.write("status", given.get("status"), (batch,), "int32")
    if dfs_order or "dfs_order" in given:
        call.write("dfs_order", given.get("dfs_order"), (batch, nodes), "int32")
    if expected_lengths or "expected_lengths" in given:
        call.write("expected_lengths", given.get("expected_lengths"), (batch, nodes), "float32")
    sizes = {"batch": batch, "draft_horizon": horizon, "topk": topk, "tree_budget": budget}
    return call.finish("kdt_tree_build", backend, library, stream, **sizes)


def prepare_tree_accept(
    tree: DraftTree,
    target_tokens: Array,
    seq_lens: Array | None = None,
    *,
    backend: str | None = None,
    stream: Any = None,
    out: Acceptance | None = None,
    library: native.Library | None = None,
) -> Call:
    """A prepared ``kdbench.tree_accept``; ``library`` overrides the installed one."""
    call = CallBuilder()
    tree, out = of_type("tree", tree, DraftTree), output_record(out, Acceptance)
    if out is not None and (out.source_slots is None) != (seq_lens is None):
        found = "seq_lens are given, and out has no source_slots"
        if seq_lens is None:
            found = "out has source_slots, and no seq_lens are given"
        raise InvalidArgument(f"{found}: both or neither are expected")
    call.read("token_ids", tree.token_ids, ("B", "N"), "int32")
    call.read("parents", tree.parents, ("B", "N"), "int32")
    call.read("num_nodes", tree.num_nodes, ("B",), "int32")
    call.read("target_tokens", target_tokens, ("B", "N"), "int32")
    batch = call.shapes["B"]
    nodes = in_range("the number of nodes N", call.shapes["N"], 1, native.MAX_TREE_BUDGET + 1)
    horizon = in_range("draft_horizon", tree.draft_horizon, 0, native.MAX_DRAFT_HORIZON)
    call.write("accepted_path", out.accepted_path if out else None, (batch, horizon + 1), "int32")
    for name in ("acceptance_length", "bonus_token", "status"):
        call.write(name, getattr(out, name) if out else None, (batch,), "int32")
    if seq_lens is not None:
        call.read("seq_lens", seq_lens, ("B",), "int32")
        call.write("source_slots", out.source_slots if out else None, (batch, horizon + 1), "int32")
    sizes = {"batch": batch, "max_nodes": nodes, "draft_horizon": horizon}
    return call.finish("kdt_tree_accept", backend, library, stream, **sizes)


def prepare_verify_attn(
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
    library: native.Library | None = None,
) -> Call:
    """A prepared ``kdbench.verify_attn``; ``library`` overrides the installed one."""
    call = CallBuilder()
    element = call.read("q_nope", q_nope, ("B", "N", "H", native.KV_LORA_RANK), BF16).dtype
    call.read("q_pe", q_pe, ("B", "N", "H", native.QK_ROPE_HEAD_DIM), BF16)
    call.read("kv_cache", kv_cache, ("num_pages", "page_size", KV_WIDTH), BF16)
    call.read("block_table", block_table, ("B", "max_pages_per_seq"), "int32")
    call.read("seq_lens", seq_lens, ("B",), "int32")
    batch, heads = call.shapes["B"], in_range("num_qo_heads H", call.shapes["H"], 1, native.MAX_NUM_QO_HEADS)
    nodes = in_range("the number of nodes N", call.shapes["N"], 1, native.MAX_TREE_BUDGET + 1)
    call.read("tree_mask", tree_mask, ("B", "N", -(-nodes // 64)), MASK_WORD)
    if num_nodes is not None:
        call.read("num_nodes", num_nodes, ("B",), "int32")
    paging = ("num_pages", "page_size", "max_pages_per_seq")
    sizes = {name: in_range(name, call.shapes[name], 1, 2**31 - 1) for name in paging}
    scale = _single(softmax_scale)
    given = (None, None) if out is None else _pair(out)
    call.write("out", given[0], (batch, nodes, heads, native.KV_LORA_RANK), element)
    call.write("lse", given[1], (batch, nodes, heads), "float32")
    if status is not None:
        call.write("status", status, (batch,), "int32")
    sizes |= {"batch": batch, "max_nodes": nodes, "num_qo_heads": heads}
    sizes |= {"kv_lora_rank": native.KV_LORA_RANK, "qk_rope_head_dim": native.QK_ROPE_HEAD_DIM}
    if path not in ATTN_PATHS:
        raise InvalidArgument(f"path is {path!r}, wanted one of {', '.join(map(repr, ATTN_PATHS))}")
    sizes |= {"tail_only": in_range("tail_only", tail_only, 0, 1), "path": ATTN_PATHS[path]}
    return call.finish("kdt_verify_attn", backend, library, stream, **sizes, softmax_scale=scale)


def prepare_merge_attn_states(
    out_a: Array,
    lse_a: Array,
    out_b: Array,
    lse_b: Array,
    *,
    backend: str | None = None,
    stream: Any = None,
    out: tuple[Array, Array] | None = None,
    library: native.Library | None = None,
) -> Call:
    """A prepared ``kdbench.merge_attn_states``; ``library`` overrides the installed one."""
    call = CallBuilder()
    leading = view("out_a", out_a).shape[:-1]
    element = call.read("out_a", out_a, (*leading, "head_dim"), BF16).dtype
    call.read("lse_a", lse_a, leading, "float32")
    call.read("out_b", out_b, (*leading, "head_dim"), BF16)
    call.read("lse_b", lse_b, leading, "float32")
    head_dim = in_range("head_dim", call.shapes["head_dim"], 8, native.KV_LORA_RANK)
    if head_dim % 8:
        raise InvalidArgument(f"head_dim is {head_dim}, and a multiple of 8 is expected")
    given = (None, None) if out is None else _pair(out)
    call.write("out", given[0], (*leading, head_dim), element)
    call.write("lse", given[1], leading, "float32")
    rows = in_range("the number of rows", math.prod(leading), 0, 2**31 - 1)
    return call.finish("kdt_merge_attn_states", backend, library, stream, rows=rows, head_dim=head_dim)


def prepare_draft_topk(
    logits: Array,
    k: int,
    *,
    backend: str | None = None,
    stream: Any = None,
    out: DraftTopk | None = None,
    library: native.Library | None = None,
) -> Call:
    """A prepared ``kdbench.draft_topk``; ``library`` overrides the installed one."""
    call = CallBuilder()
    out = output_record(out, DraftTopk)
    leading = view("logits", logits).shape[:-1]
    element = call.read("logits", logits, (*leading, "vocab_size"), ("float32", *BF16)).dtype
    vocab_size = in_range("vocab_size", call.shapes["vocab_size"], 1, 2**31 - 1)
    topk = in_range("k", k, 1, min(native.MAX_TOPK, vocab_size))
    call.write("topk_log_probs", out.log_probs if out else None, (*leading, topk), "float32")
    call.write("topk_token_ids", out.token_ids if out else None, (*leading, topk), "int32")
    call.write("status", out.status if out else None, leading, "int32")
    sizes = {"rows": in_range("the number of rows", math.prod(leading), 0, 2**31 - 1), "vocab_size": vocab_size}
    sizes |= {"topk": topk, "logits_dtype": native.DTYPE_F32 if element == "float32" else native.DTYPE_BF16}
    return call.finish("kdt_draft_topk", backend, library, stream, **sizes)


def prepare_kv_compact(
    kv_cache: Array,
    block_table: Array,
    seq_lens: Array,
    accepted_path: Array,
    *,
    backend: str | None = None,
    stream: Any = None,
    status: Array | None = None,
    library: native.Library | None = None,
) -> Call:
    """A prepared ``kdbench.kv_compact``; ``library`` overrides the installed one."""
    call = CallBuilder()
    one_layer = len(view("kv_cache", kv_cache).shape) == 3
    shape = ("num_pages", "page_size", "row") if one_layer else ("num_layers", "num_pages", "page_size", "row")
    seen = call.change("kv_cache", kv_cache, shape, KV_DTYPES)
    call.read("block_table", block_table, ("B", "max_pages_per_seq"), "int32")
    call.read("seq_lens", seq_lens, ("B",), "int32")
    call.read("accepted_path", accepted_path, ("B", "D+1"), "int32")
    horizon = in_range("draft_horizon D", call.shapes["D+1"] - 1, 0, native.MAX_DRAFT_HORIZON)
    paging = ("num_pages", "page_size", "max_pages_per_seq")
    sizes = {name: in_range(name, call.shapes[name], 1, 2**31 - 1) for name in paging}
    row_bytes = in_range("the size of a row in bytes", call.shapes["row"] * itemsize(seen.dtype), 0, 2**31 - 1)
    if row_bytes % _ROW_ALIGNMENT or not row_bytes:
        raise InvalidArgument(
            f"a row of kv_cache has {row_bytes} bytes, and a multiple of {_ROW_ALIGNMENT} is expected"
        )
    call.write("status", status, (call.shapes["B"],), "int32")
    layers = 1 if one_layer else in_range("num_layers", call.shapes["num_layers"], 0, 2**31 - 1)
    sizes |= {"batch": call.shapes["B"], "draft_horizon": horizon, "num_layers": layers, "row_bytes": row_bytes}
    return call.finish("kdt_kv_compact", backend, library, stream, **sizes)


def _single(softmax_scale: float) -> float:
    # The library holds a float32, in which 1e300 is inf and 1e-50 is 0.
    try:
        scale = ctypes.c_float(softmax_scale).value
    except OverflowError:
        scale = math.inf
    except (TypeError, ValueError, RuntimeError):
        raise InvalidArgument(f"softmax_scale is a {type(softmax_scale).__name__}, and a number is expected") from None
    if not (math.isfinite(scale) and scale > 0):
        raise InvalidArgument(f"softmax_scale is {scale} as a float32, and a finite number above 0 is expected")
    return scale


def _pair(out: Any) -> tuple[Array, Array]:
    if not isinstance(out, tuple | list):
        raise InvalidArgument(f"out is a {type(out).__name__}, and a tuple (out, lse) is expected")
    if len(out) != 2 or any(array is None for array in out):
        raise InvalidArgument("out is not a pair of arrays, and a tuple (out, lse) is expected")
    return out[0], out[1]
