# SPDX-License-Identifier: Apache-2.0
"""Configs, requests and arrays -> the structs of kdtree/engine.h.

Structs hold bare addresses: each function appends what must outlive the call to ``keep``.
"""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from kdbench.abi import (
    DTYPE_BF16,
    DTYPE_F32,
    KV_LORA_RANK,
    MAX_TOPK,
    MAX_TREE_BUDGET,
    QK_NOPE_HEAD_DIM,
    QK_ROPE_HEAD_DIM,
    V_HEAD_DIM,
)
from kdbench.engine_abi import (
    MAX_STOP_TOKENS,
    MAX_TARGET_FEATURES,
    DecodeMode,
    DrafterParams,
    ExpertScores,
    RequestParams,
    RoundsParams,
    TargetParams,
    Tensor,
)
from kdbench.engine_types import MODES, Request, Rounds
from kdbench.errors import InvalidArgument

if TYPE_CHECKING:
    from kdbench.models.config import DrafterConfig, TargetConfig

_INT_MAX = 2**31 - 1
_WIDTHS = {
    "kv_lora_rank": KV_LORA_RANK,
    "qk_rope_head_dim": QK_ROPE_HEAD_DIM,
    "qk_nope_head_dim": QK_NOPE_HEAD_DIM,
    "v_head_dim": V_HEAD_DIM,
}


def whole(name: str, value: SupportsIndex, low: int, high: int = _INT_MAX) -> int:
    """``value`` as an int of ``low`` to ``high``, since ctypes would cut bits off without a word."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{name} is {value!r}, and an integer is expected") from None
    if not low <= number <= high:
        raise InvalidArgument(f"{name} is {number}, and {low} to {high} is expected")
    return number


def target(config: TargetConfig, keep: list[Any]) -> Any:
    """A pointer to a ``kdt_target_config``; InvalidArgument for head widths that the kernels do not have."""
    for name, width in _WIDTHS.items():
        if getattr(config, name) != width:
            raise InvalidArgument(f"{name} is {getattr(config, name)}, and the kernels are made for {width}")
    experts = config.mixture
    params = TargetParams(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        q_lora_rank=config.q_lora_rank or 0,
        intermediate_size=config.intermediate_size,
        tie_word_embeddings=0,
        rms_norm_eps=config.rms_norm_eps,
        softmax_scale=config.softmax_scale,
        rope_scale=config.rope.cos_sin_scale,
        inv_freq=_address(config.rope.inv_freq(config.qk_rope_head_dim), keep),
        first_dense_layers=config.first_k_dense_replace if experts else config.num_hidden_layers,
        expert_scores=ExpertScores.SIGMOID,
    )
    if experts:
        for name in (
            "n_routed_experts",
            "num_experts_per_tok",
            "n_shared_experts",
            "moe_intermediate_size",
            "n_group",
            "topk_group",
            "norm_topk_prob",
            "routed_scaling_factor",
        ):
            setattr(params, name, getattr(experts, name))
    return _pointer(params, keep)


def drafter(config: DrafterConfig, keep: list[Any]) -> Any:
    """A pointer to a ``kdt_drafter_config``."""
    layers = config.target_layer_ids
    if len(layers) > MAX_TARGET_FEATURES:
        raise InvalidArgument(f"target_layer_ids are {len(layers)}, and {MAX_TARGET_FEATURES} at most are supported")
    params = DrafterParams(
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        block_size=config.block_size,
        mask_token_id=config.mask_token_id,
        num_features=len(layers),
        target_layer_ids=(ctypes.c_int32 * MAX_TARGET_FEATURES)(*layers),
        rms_norm_eps=config.rms_norm_eps,
        rope_scale=config.rope.cos_sin_scale,
        inv_freq=_address(config.rope.inv_freq(config.head_dim), keep),
    )
    return _pointer(params, keep)


def tensors(arrays: Mapping[str, np.ndarray[Any, Any]], keep: list[Any]) -> Any:
    """A ``kdt_tensor`` array in the order of ``arrays``; InvalidArgument for a dtype or rank that none has."""
    entries = (Tensor * len(arrays))()
    for entry, (name, array) in zip(entries, arrays.items(), strict=True):
        if array.dtype not in (np.uint16, np.float32) or array.ndim not in (1, 2):
            raise InvalidArgument(
                f"tensor {name} is {array.dtype} of {array.ndim} dimensions, and float32 or uint16 (bf16) of 1 or 2 "
                "is expected"
            )
        entry.name = name.encode()
        entry.data = _address(array, keep)
        entry.dtype = DTYPE_BF16 if array.dtype == np.uint16 else DTYPE_F32
        entry.rank = array.ndim
        entry.shape[:] = (*array.shape, *(1,) * (2 - array.ndim))
    keep.append(entries)
    return ctypes.cast(entries, ctypes.POINTER(Tensor))


def request(asked: Request, keep: list[Any]) -> RequestParams:
    """A ``kdt_engine_request``; what the engine cannot see, since it would not fit the struct, is refused here."""
    prompt, stops = _ids("prompt", asked.prompt), _ids("stop_tokens", asked.stop_tokens)
    golden = _ids("golden_tokens", asked.golden_tokens)
    if not len(prompt):
        raise InvalidArgument("the prompt has no tokens, and one at least is expected")
    if len(stops) > MAX_STOP_TOKENS:
        raise InvalidArgument(f"stop_tokens are {len(stops)}, and {MAX_STOP_TOKENS} at most are supported")
    if not (math.isfinite(asked.temperature) and asked.temperature >= 0):
        raise InvalidArgument(f"temperature is {asked.temperature}, and 0 or more is expected")
    return RequestParams(
        prompt=_address(prompt, keep),
        prompt_length=len(prompt),
        max_new_tokens=whole("max_new_tokens", asked.max_new_tokens, 1),
        stop_tokens=_address(stops, keep) if len(stops) else None,
        num_stop_tokens=len(stops),
        temperature=asked.temperature,
        seed=whole("seed", asked.seed, 0, 2**64 - 1),
        golden_tokens=_address(golden, keep) if len(golden) else None,
        num_golden_tokens=len(golden),
    )


def rounds(asked: Rounds, count: int, profile: int) -> RoundsParams:
    """A ``kdt_engine_rounds``; ranges that depend on the engine are its own to check."""
    if asked.mode not in MODES:
        raise InvalidArgument(f"mode is {asked.mode!r}, and one of {', '.join(MODES)} is expected")
    budget = whole("tree_budget", asked.tree_budget, 1, MAX_TREE_BUDGET)
    if not 0.0 <= asked.simulated_accept <= 1.0:
        raise InvalidArgument(f"simulated_accept is {asked.simulated_accept}, and 0 to 1 is expected")
    return RoundsParams(
        rounds=count,
        mode=DecodeMode[asked.mode.upper()],
        tree_budget=budget,
        topk=whole("topk", asked.topk, 0, MAX_TOPK),
        block_size=whole("block_size", asked.block_size, 0),
        simulated_accept=asked.simulated_accept,
        profile=int(profile),
    )


def _ids(name: str, values: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
    wide = np.asarray(values if len(values) else [], dtype=None if len(values) else np.int32)
    if wide.ndim != 1 or wide.dtype.kind not in "iu":
        raise InvalidArgument(f"{name} is {wide.dtype} of {wide.ndim} dimensions, and a row of token ids is expected")
    if len(wide) and (wide.min() < 0 or wide.max() > _INT_MAX):
        odd = next(int(value) for value in wide if not 0 <= int(value) <= _INT_MAX)
        raise InvalidArgument(f"{name} holds {odd}, which is no token id")
    return np.ascontiguousarray(wide, np.int32)


def _address(array: np.ndarray[Any, Any], keep: list[Any]) -> int:
    sound = np.ascontiguousarray(array)
    keep.append(sound)
    return sound.ctypes.data


def _pointer(params: ctypes.Structure, keep: list[Any]) -> Any:
    keep.append(params)
    return ctypes.pointer(params)
