# SPDX-License-Identifier: Apache-2.0
"""The two architectures that are decoded, as their config.json tells them: DeepSeek-V3 targets and DFlash drafters.

Field names are Hugging Face's. What a config may ask for and the engine does not do is refused by name, never ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kdbench.errors import ModelError
from kdbench.models.config_fields import Fields
from kdbench.models.rope import Rope, read_rope

# kimi_k2 is DeepSeek-V3 with other sizes.
_TARGET_TYPES = ("deepseek_v3", "kimi_k2")


@dataclass(frozen=True)
class MixtureConfig:
    """DeepSeek-V3's mixture of experts: sigmoid scores, a bias that only chooses, top-k inside the best groups."""

    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    n_group: int
    topk_group: int
    norm_topk_prob: bool
    routed_scaling_factor: float


@dataclass(frozen=True)
class TargetConfig:
    """A DeepSeek-V3 model (arXiv 2412.19437).

    Attributes:
        q_lora_rank: None where queries are projected at once (q_proj instead of q_a_proj and q_b_proj).
        first_k_dense_replace: layers below it have a dense MLP, those from it on ``mixture``; clipped to the depth.
        mixture: None if every layer is dense.
        num_nextn_predict_layers: multi-token-prediction layers stored behind the last one; they are not read.
        eos_token_ids: tokens that end a text, maybe none.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: Rope
    first_k_dense_replace: int
    mixture: MixtureConfig | None
    num_nextn_predict_layers: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    @property
    def qk_head_dim(self) -> int:
        """Width of a head's query and key."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def softmax_scale(self) -> float:
        """The attention's scale, YaRN's mscale inside."""
        return float(self.qk_head_dim**-0.5 * self.rope.softmax_mscale**2)

    def is_dense(self, layer: int) -> bool:
        """True for a layer without experts."""
        return self.mixture is None or layer < self.first_k_dense_replace

    @classmethod
    def from_directory(cls, directory: Path | str) -> TargetConfig:
        """Read ``directory``/config.json.

        Raises:
            ModelError: it is missing, is no DeepSeek-V3, or has a field that is missing, odd or not supported.
        """
        fields = Fields.of_directory(directory)
        if fields.values.get("model_type") not in _TARGET_TYPES:
            raise fields.refuse("model_type", " or ".join(f'"{kind}"' for kind in _TARGET_TYPES))
        fields.only("hidden_act", "silu")
        fields.only("attention_bias", False)
        fields.only("tie_word_embeddings", False)
        fields.only("rope_interleave", True)
        fields.only("quantization_config", None)
        vocab_size = fields.integer("vocab_size")
        layers = fields.integer("num_hidden_layers")
        rope_dim = fields.integer("qk_rope_head_dim", 2)
        if rope_dim % 2:
            raise fields.refuse("qk_rope_head_dim", "an even integer: RoPE turns pairs")
        # Nothing of a mixture has a default: what other readers of the file assume is theirs, and differs.
        first_moe = fields.integer("first_k_dense_replace", 0) if fields.has("n_routed_experts") else layers
        has_experts = first_moe < layers
        return cls(
            vocab_size=vocab_size,
            hidden_size=fields.integer("hidden_size"),
            intermediate_size=fields.integer("intermediate_size"),
            num_hidden_layers=layers,
            num_attention_heads=fields.integer("num_attention_heads"),
            q_lora_rank=fields.integer("q_lora_rank") if fields.has("q_lora_rank") else None,
            kv_lora_rank=fields.integer("kv_lora_rank"),
            qk_nope_head_dim=fields.integer("qk_nope_head_dim"),
            qk_rope_head_dim=rope_dim,
            v_head_dim=fields.integer("v_head_dim"),
            max_position_embeddings=fields.integer("max_position_embeddings"),
            rms_norm_eps=fields.number("rms_norm_eps"),
            rope=read_rope(fields),
            first_k_dense_replace=min(first_moe, layers) if has_experts else layers,
            mixture=_read_mixture(fields) if has_experts else None,
            num_nextn_predict_layers=fields.integer("num_nextn_predict_layers", 0, default=0),
            bos_token_id=fields.integer("bos_token_id", 0, vocab_size - 1) if fields.has("bos_token_id") else None,
            eos_token_ids=_eos_token_ids(fields, vocab_size),
        )


@dataclass(frozen=True)
class DrafterConfig:
    """A DFlash drafter (arXiv 2602.06036) in the layout of z-lab's checkpoints, which SGLang's DFLASH loads.

    Attributes:
        block_size: tokens of one block, the root included; a block may be cut shorter when it is run.
        mask_token_id: what stands for a token that is still to be drafted.
        target_layer_ids: target layers whose outputs (the residual stream behind the layer, 0-based) are the context.
        num_target_layers: depth of the target that it was trained for.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: Rope
    block_size: int
    num_target_layers: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]

    @property
    def draft_horizon(self) -> int:
        """Tokens that one block drafts."""
        return self.block_size - 1

    @classmethod
    def from_directory(cls, directory: Path | str) -> DrafterConfig:
        """Read ``directory``/config.json.

        Raises:
            ModelError: it is missing, is no DFlash drafter, or has a field that is missing, odd or not supported.
        """
        fields = Fields.of_directory(directory)
        if fields.values.get("architectures") != ["DFlashDraftModel"]:
            raise fields.refuse("architectures", '["DFlashDraftModel"]')
        fields.only("hidden_act", "silu")
        fields.only("attention_bias", False)
        fields.only("quantization_config", None)
        inner = fields.inner("dflash_config")
        heads, depth = fields.integer("num_attention_heads"), fields.integer("num_hidden_layers")
        kv_heads = fields.integer("num_key_value_heads", default=heads)
        if heads % kv_heads:
            raise fields.refuse("num_key_value_heads", f"a divisor of num_attention_heads {heads}")
        head_dim = fields.integer("head_dim", 2)
        if head_dim % 2:
            raise fields.refuse("head_dim", "an even integer: RoPE turns pairs")
        if fields.has("layer_types"):
            fields.only("layer_types", ["full_attention"] * depth)
        target_layers = fields.integer("num_target_layers")
        chosen = inner.integers("target_layer_ids", 0, target_layers - 1)
        if not chosen or list(chosen) != sorted(set(chosen)):
            raise inner.refuse("target_layer_ids", "ascending layer numbers, one at least")
        vocab_size = fields.integer("vocab_size")
        rope = read_rope(fields)
        if rope.yarn is not None:
            raise fields.refuse("rope_scaling" if fields.has("rope_scaling") else "rope_parameters", "no scaling")
        return cls(
            vocab_size=vocab_size,
            hidden_size=fields.integer("hidden_size"),
            intermediate_size=fields.integer("intermediate_size"),
            num_hidden_layers=depth,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            max_position_embeddings=fields.integer("max_position_embeddings"),
            rms_norm_eps=fields.number("rms_norm_eps"),
            rope=rope,
            block_size=(inner if inner.has("block_size") else fields).integer("block_size", 2),
            num_target_layers=target_layers,
            mask_token_id=inner.integer("mask_token_id", 0, vocab_size - 1),
            target_layer_ids=chosen,
        )

    def check_fits(self, target: TargetConfig) -> None:
        """Refuse a target that this drafter was not made for.

        Raises:
            ModelError: another width, vocabulary or depth; the drafter uses the target's embedding and lm_head.
        """
        pairs = (
            ("hidden_size", self.hidden_size, target.hidden_size),
            ("vocab_size", self.vocab_size, target.vocab_size),
            ("num_target_layers", self.num_target_layers, target.num_hidden_layers),
        )
        for name, ours, theirs in pairs:
            if ours != theirs:
                raise ModelError(f"the drafter's {name} is {ours} and the target has {theirs}; they must be equal")


def _read_mixture(fields: Fields) -> MixtureConfig:
    fields.only("scoring_func", "sigmoid")
    fields.only("topk_method", "noaux_tc")
    fields.only("moe_layer_freq", 1)
    experts = fields.integer("n_routed_experts")
    groups = fields.integer("n_group")
    if experts % groups or experts // groups < 2:
        raise fields.refuse(
            "n_group", f"a divisor of n_routed_experts {experts} that leaves two experts a group or more"
        )
    kept = fields.integer("topk_group", 1, groups)
    return MixtureConfig(
        n_routed_experts=experts,
        n_shared_experts=fields.integer("n_shared_experts", 0),
        num_experts_per_tok=fields.integer("num_experts_per_tok", 1, kept * (experts // groups)),
        moe_intermediate_size=fields.integer("moe_intermediate_size"),
        n_group=groups,
        topk_group=kept,
        norm_topk_prob=fields.flag("norm_topk_prob"),
        routed_scaling_factor=fields.number("routed_scaling_factor"),
    )


def _eos_token_ids(fields: Fields, vocab_size: int) -> tuple[int, ...]:
    if not fields.has("eos_token_id"):
        return ()
    if isinstance(fields.values["eos_token_id"], list):
        return fields.integers("eos_token_id", 0, vocab_size - 1)
    return (fields.integer("eos_token_id", 0, vocab_size - 1),)
