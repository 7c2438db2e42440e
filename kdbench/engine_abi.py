# SPDX-License-Identifier: Apache-2.0
"""kdtree/engine.h in Python: its constants, structs and functions; ``kdbench.engine`` calls them."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Any

from kdbench.abi import MAX_DRAFT_HORIZON, Params

MAX_TARGET_FEATURES = 16
MAX_STOP_TOKENS = 8

_p, _i, _f, _u64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_float, ctypes.c_uint64
_u32, _i64, _text = ctypes.c_uint32, ctypes.c_int64, ctypes.c_char_p


class DecodeMode(IntEnum):
    """How a round proposes tokens (``kdt_decode_mode``)."""

    AR = 0
    CHAIN = 1
    DDTREE = 2


class Stage(IntEnum):
    """Parts of a round that are timed by themselves (``kdt_stage``)."""

    DRAFT = 0
    TREE_BUILD = 1
    VERIFY = 2
    TREE_ACCEPT = 3
    COMMIT = 4


class ExpertScores(IntEnum):
    """What a router makes of its logits (``kdt_expert_scores``)."""

    SIGMOID = 0
    SOFTMAX = 1


class Tensor(ctypes.Structure):
    """``kdt_tensor``."""

    _fields_ = [("name", _text), ("data", _p), ("dtype", _i), ("rank", _i), ("shape", _i64 * 2)]


def _sized(*fields: tuple[str, Any]) -> list[tuple[str, Any]]:
    """Fields of a struct that knows its size."""
    return [("struct_size", _u32), *fields]


def _ints(names: str) -> list[tuple[str, Any]]:
    return [(name, _i) for name in names.split()]


class TargetParams(Params):
    """``kdt_target_config``."""

    _fields_ = _sized(
        *_ints("vocab_size hidden_size num_layers num_heads q_lora_rank intermediate_size tie_word_embeddings"),
        ("rms_norm_eps", _f),
        ("softmax_scale", _f),
        ("rope_scale", _f),
        ("inv_freq", _p),
        *_ints(
            "first_dense_layers n_routed_experts num_experts_per_tok n_shared_experts moe_intermediate_size n_group"
            " topk_group norm_topk_prob expert_scores"
        ),
        ("routed_scaling_factor", _f),
    )


class DrafterParams(Params):
    """``kdt_drafter_config``."""

    _fields_ = _sized(
        *_ints("num_layers num_heads num_kv_heads head_dim intermediate_size block_size mask_token_id num_features"),
        ("target_layer_ids", _i * MAX_TARGET_FEATURES),
        ("rms_norm_eps", _f),
        ("rope_scale", _f),
        ("inv_freq", _p),
    )


class EngineParams(Params):
    """``kdt_engine_params``."""

    _fields_ = _sized(
        ("target", ctypes.POINTER(TargetParams)),
        ("drafter", ctypes.POINTER(DrafterParams)),
        ("tensors", ctypes.POINTER(Tensor)),
        *_ints("num_tensors dtype max_batch max_seq_len max_tree_budget page_size num_pages prefill_chunk"),
        ("blas_library", _text),
        ("random_seed", _u64),
    )


class RequestParams(Params):
    """``kdt_engine_request``."""

    _fields_ = _sized(
        ("prompt", _p),
        *_ints("prompt_length max_new_tokens"),
        ("stop_tokens", _p),
        ("num_stop_tokens", _i),
        ("temperature", _f),
        ("seed", _u64),
        ("golden_tokens", _p),
        ("num_golden_tokens", _i),
    )


class RoundsParams(Params):
    """``kdt_engine_rounds``."""

    _fields_ = _sized(
        *_ints("rounds mode tree_budget topk block_size"),
        ("simulated_accept", _f),
        ("profile", _i),
    )


class ProgressParams(Params):
    """``kdt_engine_progress``, an answer."""

    _fields_ = _sized(
        *_ints("finished num_tokens rounds rounds_done"),
        ("accepted", _i64),
        ("status", _i),
        ("histogram", _i * (MAX_DRAFT_HORIZON + 2)),
    )


class RoundClockParams(Params):
    """``kdt_round_clock``, an answer."""

    _fields_ = _sized(
        ("rounds", _i64),
        ("gaps", _i64),
        ("busy_seconds", ctypes.c_double),
        ("idle_seconds", ctypes.c_double),
        ("stage_rounds", _i64),
        ("draft_topk_seconds", ctypes.c_double),
        ("stamp_seconds", ctypes.c_double),
    )


STRUCTS: dict[str, type[ctypes.Structure]] = {
    "kdt_tensor": Tensor,
    "kdt_target_config": TargetParams,
    "kdt_drafter_config": DrafterParams,
    "kdt_engine_params": EngineParams,
    "kdt_engine_request": RequestParams,
    "kdt_engine_rounds": RoundsParams,
    "kdt_engine_progress": ProgressParams,
    "kdt_round_clock": RoundClockParams,
}
# Arguments of each function; all but kdt_engine_destroy answer a kdt_status.
FUNCTIONS: dict[str, list[Any]] = {
    "kdt_engine_create": [ctypes.POINTER(EngineParams), ctypes.POINTER(_p)],
    "kdt_engine_destroy": [_p],
    "kdt_engine_admit": [_p, ctypes.POINTER(RequestParams), ctypes.POINTER(_i)],
    "kdt_engine_release": [_p, _i],
    "kdt_engine_run": [_p, ctypes.POINTER(RoundsParams)],
    "kdt_engine_progress_of": [_p, _i, _i, ctypes.POINTER(ProgressParams), _p, _i, _i],
    "kdt_engine_stage_seconds": [_p, ctypes.POINTER(ctypes.c_double), ctypes.POINTER(_i64)],
    "kdt_engine_round_clock": [_p, ctypes.POINTER(RoundClockParams)],
    "kdt_engine_logits": [_p, _i, _p, _i64, ctypes.POINTER(_i)],
    "kdt_engine_info": [_p, _text, ctypes.c_size_t],
}
# Those that came later: a library without them is an engine all the same.
LATER = frozenset({"kdt_engine_round_clock"})
