# SPDX-License-Identifier: Apache-2.0
"""Kimi K2's widths with few layers and random weights: step times at real sizes, and words without meaning.

Widths, heads, experts and vocabulary are those of moonshotai/Kimi-K2-Instruct's config.json; layers are what one GPU
holds. The drafter has one layer to the target's four (z-lab/Kimi-K2.5-DFlash: six to sixty-one).
"""

from __future__ import annotations

from kdbench.models.config import DrafterConfig, MixtureConfig, TargetConfig
from kdbench.models.rope import Rope, Yarn

_HIDDEN, _VOCAB, _POSITIONS = 7168, 163840, 131072
_YARN = Yarn(
    factor=32.0,
    original_max_position_embeddings=4096,
    beta_fast=1.0,
    beta_slow=1.0,
    mscale=1.0,
    mscale_all_dim=1.0,
)
_EXPERTS = MixtureConfig(
    n_routed_experts=384,
    n_shared_experts=1,
    num_experts_per_tok=8,
    moe_intermediate_size=2048,
    n_group=1,
    topk_group=1,
    norm_topk_prob=True,
    routed_scaling_factor=2.827,
)
# Model -> (layers, of them dense). A layer of experts is 34 GB in bf16.
_LAYERS = {"kimi-dense": (4, 4), "kimi-moe": (4, 2)}
MODELS = tuple(_LAYERS)


def target(model: str) -> TargetConfig:
    """The target of "kimi-dense" (every layer with K2's dense MLP) or "kimi-moe" (two layers of 384 experts)."""
    layers, dense = _LAYERS[model]
    return TargetConfig(
        vocab_size=_VOCAB,
        hidden_size=_HIDDEN,
        intermediate_size=18432,
        num_hidden_layers=layers,
        num_attention_heads=64,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        max_position_embeddings=_POSITIONS,
        rms_norm_eps=1e-6,
        rope=Rope(50000.0, _YARN),
        first_k_dense_replace=dense,
        mixture=_EXPERTS if dense < layers else None,
        num_nextn_predict_layers=0,
        bos_token_id=None,
        eos_token_ids=(),
    )


def drafter(model: str) -> DrafterConfig:
    """A DFlash drafter of one layer for it."""
    layers, _ = _LAYERS[model]
    return DrafterConfig(
        vocab_size=_VOCAB,
        hidden_size=_HIDDEN,
        intermediate_size=18432,
        num_hidden_layers=1,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=_POSITIONS,
        rms_norm_eps=1e-6,
        rope=Rope(50000.0),
        block_size=8,
        num_target_layers=layers,
        mask_token_id=163838,
        target_layer_ids=tuple(range(layers - 1)),
    )
