# SPDX-License-Identifier: Apache-2.0
"""kdtree.h in Python: its constants, status words and params structs; ``kdbench.native`` loads libraries with them."""

from __future__ import annotations

import ctypes
from enum import IntEnum, IntFlag
from typing import Any

BACKENDS = ("cpu", "cuda")
ABI_VERSION = 1

MAX_TREE_BUDGET = 1024
MAX_DRAFT_HORIZON = 31
MAX_TOPK = 1024
MAX_NUM_QO_HEADS = 128
LOG_PROB_FLOOR = -64.0
FIXED_POINT_BITS = 40
KV_LORA_RANK = 512
QK_ROPE_HEAD_DIM = 64
QK_NOPE_HEAD_DIM = 128
V_HEAD_DIM = 128
DTYPE_F32 = 0
DTYPE_BF16 = 1
ATTN_PATHS = {"best": 0, "portable": 1, "hopper": 2}  # kdt_attn_path


class Status(IntEnum):
    """Return values of native calls (``kdt_status``)."""

    OK = 0
    INVALID_ARGUMENT = 1
    UNSUPPORTED = 2
    CUDA_ERROR = 3
    NO_DEVICE = 4
    INTERNAL = 5


class MlaMode(IntEnum):
    """How verify_mla computes its answer (``kdt_mla_mode``)."""

    AUTO = 0
    ABSORB = 1
    MHA = 2


class RequestStatus(IntFlag):
    """Status word of one request: the low eight bits inform, the others say that the request was refused."""

    SHORT_TREE = 1 << 0
    TRUNCATED = 1 << 1
    SLOW_PATH = 1 << 2
    NAN = 1 << 8
    POSITIVE = 1 << 9
    BAD_TREE = 1 << 10
    BAD_COUNT = 1 << 11
    TOO_DEEP = 1 << 12
    BAD_LENGTH = 1 << 13
    BAD_PAGE = 1 << 14

    @property
    def refused(self) -> bool:
        """True when any error bit is set."""
        return int(self) & ~0xFF != 0


_p, _i, _f, _size = ctypes.c_void_p, ctypes.c_int32, ctypes.c_float, ctypes.c_size_t


def _fields(
    pointers: str,
    sizes: str,
    scalars: tuple[tuple[str, Any], ...] = (),
    *,
    appended_pointers: str = "",
    appended_sizes: str = "",
) -> list[tuple[str, Any]]:
    """The order of every params struct: struct_size, pointers, sizes, scalars, stream, workspace, appended fields."""
    return [
        ("struct_size", ctypes.c_uint32),
        *((name, _p) for name in pointers.split()),
        *((name, _i) for name in sizes.split()),
        *scalars,
        ("stream", _p),
        ("workspace", _p),
        ("workspace_size", _size),
        *((name, _p) for name in appended_pointers.split()),
        *((name, _i) for name in appended_sizes.split()),
    ]


class Params(ctypes.Structure):
    """Base of the params structs: fills struct_size and refuses names that the struct does not have."""

    def __init__(self, **values: Any) -> None:
        known = {field[0] for field in self._fields_}
        if unknown := sorted(values.keys() - known):
            raise TypeError(f"{type(self).__name__} has no field {unknown[0]!r}")
        super().__init__(struct_size=ctypes.sizeof(type(self)), **values)


class DraftTopkParams(Params):
    """``kdt_draft_topk_params``: shapes and dtypes stand in kdtree.h."""

    _fields_ = _fields("logits topk_log_probs topk_token_ids status", "rows vocab_size topk logits_dtype")


class TreeBuildParams(Params):
    """``kdt_tree_build_params``: shapes and dtypes stand in kdtree.h."""

    _fields_ = _fields(
        "topk_log_probs topk_token_ids root_token_ids seq_lens token_ids parents depths positions first_child"
        " next_sibling tree_mask scores num_nodes status dfs_order",
        "batch draft_horizon topk tree_budget",
        appended_pointers="expected_lengths",
    )


class TreeAcceptParams(Params):
    """``kdt_tree_accept_params``: shapes and dtypes stand in kdtree.h."""

    _fields_ = _fields(
        "token_ids parents num_nodes target_tokens accepted_path acceptance_length bonus_token status",
        "batch max_nodes draft_horizon",
        appended_pointers="seq_lens source_slots",
    )


class VerifyAttnParams(Params):
    """``kdt_verify_attn_params``: shapes and dtypes stand in kdtree.h."""

    _fields_ = _fields(
        "q_nope q_pe kv_cache block_table seq_lens tree_mask num_nodes out lse status",
        "batch max_nodes num_qo_heads kv_lora_rank qk_rope_head_dim num_pages page_size max_pages_per_seq",
        (("softmax_scale", _f),),
        appended_sizes="tail_only path",
    )


class KvCompactParams(Params):
    """``kdt_kv_compact_params``: shapes and dtypes stand in kdtree.h."""

    _fields_ = _fields(
        "kv_cache block_table seq_lens accepted_path status",
        "batch draft_horizon num_layers num_pages page_size max_pages_per_seq row_bytes",
    )


class MergeAttnStatesParams(Params):
    """``kdt_merge_attn_states_params``: shapes and dtypes stand in kdtree.h."""

    _fields_ = _fields("out_a lse_a out_b lse_b out lse", "rows head_dim")


class VerifyMlaParams(Params):
    """``kdt_verify_mla_params``: shapes and dtypes stand in kdtree.h."""

    _fields_ = _fields(
        "q_nope q_pe w_uk w_uv kv_cache block_table seq_lens tree_mask num_nodes out lse status",
        "batch max_nodes num_qo_heads qk_nope_head_dim qk_rope_head_dim kv_lora_rank v_head_dim"
        " num_pages page_size max_pages_per_seq mode",
        (("softmax_scale", _f),),
    )


class VerifyMlaCosts(ctypes.Structure):
    """``kdt_verify_mla_costs``, an answer: the mode that runs, and what each would cost."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("mode", _i),
        *((f"{mode}_{unit}", ctypes.c_double) for mode in ("absorb", "mha") for unit in ("flops", "bytes", "seconds")),
    ]


PARAMS: dict[str, type[Params]] = {
    "kdt_draft_topk": DraftTopkParams,
    "kdt_tree_build": TreeBuildParams,
    "kdt_tree_accept": TreeAcceptParams,
    "kdt_verify_attn": VerifyAttnParams,
    "kdt_kv_compact": KvCompactParams,
    "kdt_merge_attn_states": MergeAttnStatesParams,
    "kdt_verify_mla": VerifyMlaParams,
}
