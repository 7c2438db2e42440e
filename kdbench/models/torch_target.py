# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V3 in PyTorch, written to be read (arXiv 2412.19437): the oracle of the native engine, and what is trained.

Parameters have Hugging Face's names, so a checkpoint loads as it is. Attention keeps keys and values of every head
(nothing absorbed); its cache holds latents, as the engine's does.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from kdbench.errors import InvalidArgument
from kdbench.models.checkpoint import load_target
from kdbench.models.config import MixtureConfig, TargetConfig
from kdbench.models.torch_layers import GatedMlp, RmsNorm, Rotary, linear, load_weights, turn_pairs


class TargetOutput(NamedTuple):
    """What a forward gives.

    Attributes:
        hidden: [B, T, hidden] behind the last norm; ``TorchTarget.lm_head`` of it are the logits.
        features: [B, T, len(feature_layers) * hidden], the outputs of the layers asked for, side by side.
    """

    hidden: Tensor
    features: Tensor


class LatentCache:
    """Per layer the latents and rotated keys of one request's tokens, [1, length, kv_lora_rank + qk_rope_head_dim]."""

    def __init__(self, layers: int) -> None:
        self.rows: list[Tensor | None] = [None] * layers

    @property
    def length(self) -> int:
        """Tokens held."""
        first = self.rows[0]
        return 0 if first is None else first.shape[1]

    def extend(self, layer: int, rows: Tensor) -> Tensor:
        """Append a layer's new rows; returns all of them."""
        held = self.rows[layer]
        both = rows if held is None else torch.cat((held, rows), 1)
        self.rows[layer] = both
        return both

    def keep(self, slots: list[int]) -> None:
        """Keep these slots, in this order, and no others: the prefix and an accepted path."""
        self.rows = [rows if rows is None else rows[:, slots] for rows in self.rows]


class LatentAttention(nn.Module):
    """Multi-head latent attention (MLA)."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.config = config
        hidden, heads, eps = config.hidden_size, config.num_attention_heads, config.rms_norm_eps
        if config.q_lora_rank is None:
            self.q_proj = linear(hidden, heads * config.qk_head_dim)
        else:
            self.q_a_proj = linear(hidden, config.q_lora_rank)
            self.q_a_layernorm = RmsNorm(config.q_lora_rank, eps)
            self.q_b_proj = linear(config.q_lora_rank, heads * config.qk_head_dim)
        self.kv_a_proj_with_mqa = linear(hidden, config.kv_lora_rank + config.qk_rope_head_dim)
        self.kv_a_layernorm = RmsNorm(config.kv_lora_rank, eps)
        self.kv_b_proj = linear(config.kv_lora_rank, heads * (config.qk_nope_head_dim + config.v_head_dim))
        self.o_proj = linear(heads * config.v_head_dim, hidden)

    def queries(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """(q_nope, q_pe), each [B, H, T, width], q_pe rotated."""
        config = self.config
        flat = self.q_proj(x) if config.q_lora_rank is None else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        by_head = flat.unflatten(-1, (config.num_attention_heads, config.qk_head_dim)).transpose(1, 2)
        nope, pe = by_head.split((config.qk_nope_head_dim, config.qk_rope_head_dim), -1)
        return nope, turn_pairs(pe, turns[0][:, None], turns[1][:, None])

    def latents(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """What is cached of each token: [B, T, kv_lora_rank + qk_rope_head_dim], normed latent and rotated key."""
        config = self.config
        latent, pe = self.kv_a_proj_with_mqa(x).split((config.kv_lora_rank, config.qk_rope_head_dim), -1)
        latent = self.kv_a_layernorm(latent)
        return torch.cat((latent, turn_pairs(pe, *turns).to(latent.dtype)), -1)

    def forward(
        self, x: Tensor, turns: tuple[Tensor, Tensor], visible: Tensor | None, cache: LatentCache | None, layer: int
    ) -> Tensor:
        """[B, T, hidden] to the same; ``visible`` bool [T, length + T], None where attention is causal over x alone."""
        config = self.config
        q_nope, q_pe = self.queries(x, turns)
        rows = self.latents(x, turns)
        if cache is not None:
            rows = cache.extend(layer, rows)
        latent, k_pe = rows.split((config.kv_lora_rank, config.qk_rope_head_dim), -1)
        expanded = self.kv_b_proj(latent).unflatten(-1, (config.num_attention_heads, -1)).transpose(1, 2)
        k_nope, value = expanded.split((config.qk_nope_head_dim, config.v_head_dim), -1)
        shared = k_pe[:, None].to(k_nope.dtype).expand(-1, config.num_attention_heads, -1, -1)
        query, key = torch.cat((q_nope, q_pe), -1), torch.cat((k_nope, shared), -1)
        # Fused attention wants one width: zero columns of the values stay zero and are dropped again.
        padded = functional.pad(value, (0, config.qk_head_dim - config.v_head_dim)) if self.training else value
        mixed = functional.scaled_dot_product_attention(
            query, key, padded, visible, is_causal=visible is None, scale=config.softmax_scale
        )
        out: Tensor = self.o_proj(mixed[..., : config.v_head_dim].transpose(1, 2).flatten(-2))
        return out


class Router(nn.Module):
    """DeepSeek-V3's choice of experts (arXiv 2412.19437, 2.1.2)."""

    def __init__(self, config: MixtureConfig, hidden: int) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.zeros(config.n_routed_experts, hidden))
        self.register_buffer("e_score_correction_bias", torch.zeros(config.n_routed_experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[T, hidden] to (expert ids i64[T, k], weights f32[T, k]); equal scores go to the lower id."""
        config = self.config
        scores = functional.linear(x.float(), self.weight.float()).sigmoid()
        # The bias balances load: it chooses experts and does not weigh them.
        choice = (scores + self.e_score_correction_bias.float()).unflatten(-1, (config.n_group, -1))
        group_scores = choice.topk(2, -1).values.sum(-1)
        kept = _largest(group_scores, config.topk_group)
        barred = torch.ones_like(group_scores, dtype=torch.bool).scatter(-1, kept, False)
        ids = _largest(choice.masked_fill(barred[..., None], float("-inf")).flatten(-2), config.num_experts_per_tok)
        weights = scores.gather(-1, ids)
        if config.norm_topk_prob:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return ids, weights * config.routed_scaling_factor


class Mixture(nn.Module):
    """Routed experts and the shared ones that every token passes."""

    def __init__(self, config: MixtureConfig, hidden: int) -> None:
        super().__init__()
        self.gate = Router(config, hidden)
        self.experts = nn.ModuleList(
            GatedMlp(hidden, config.moe_intermediate_size) for _ in range(config.n_routed_experts)
        )
        if config.n_shared_experts:
            self.shared_experts = GatedMlp(hidden, config.n_shared_experts * config.moe_intermediate_size)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, hidden] to the same."""
        flat = x.flatten(0, -2)
        ids, weights = self.gate(flat)
        out = torch.zeros_like(flat)
        for expert, mlp in enumerate(self.experts):
            token, place = torch.where(ids == expert)
            if len(token):
                out.index_add_(0, token, (mlp(flat[token]) * weights[token, place, None]).to(out.dtype))
        if hasattr(self, "shared_experts"):
            out = out + self.shared_experts(flat)
        return out.view_as(x)


class TargetLayer(nn.Module):
    """Attention, then an MLP or experts, each behind a norm and added to the stream."""

    def __init__(self, config: TargetConfig, layer: int, dropout: float) -> None:
        super().__init__()
        self.layer, self.dropout = layer, dropout
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = LatentAttention(config)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        if config.mixture is None or config.is_dense(layer):
            self.mlp: nn.Module = GatedMlp(config.hidden_size, config.intermediate_size)
        else:
            self.mlp = Mixture(config.mixture, config.hidden_size)

    def forward(
        self, x: Tensor, turns: tuple[Tensor, Tensor], visible: Tensor | None, cache: LatentCache | None
    ) -> Tensor:
        """[B, T, hidden] to the same: the residual stream behind this layer."""
        x = x + self._dropped(self.self_attn(self.input_layernorm(x), turns, visible, cache, self.layer))
        return x + self._dropped(self.mlp(self.post_attention_layernorm(x)))

    def _dropped(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training) if self.dropout else x


class TargetStack(nn.Module):
    """Embedding, layers, norm: what Hugging Face calls ``model``."""

    def __init__(self, config: TargetConfig, dropout: float) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(TargetLayer(config, layer, dropout) for layer in range(config.num_hidden_layers))
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)


class TorchTarget(nn.Module):
    """A DeepSeek-V3 language model.

    Args:
        dropout: share of each layer's additions dropped while training.
    """

    def __init__(self, config: TargetConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = config
        self.model = TargetStack(config, dropout)
        self.lm_head = linear(config.hidden_size, config.vocab_size)
        self.rotary = Rotary(config.rope, config.qk_rope_head_dim)

    @classmethod
    def from_directory(cls, directory: Path | str, dtype: torch.dtype = torch.float32) -> TorchTarget:
        """The checked checkpoint in ``directory``, ready to evaluate."""
        checkpoint = load_target(directory)
        assert isinstance(checkpoint.config, TargetConfig)
        model = cls(checkpoint.config)
        load_weights(model, checkpoint, dtype)
        return model

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor | None = None,
        *,
        visible: Tensor | None = None,
        cache: LatentCache | None = None,
        feature_layers: tuple[int, ...] = (),
    ) -> TargetOutput:
        """One pass over new tokens.

        Args:
            token_ids: i64[B, T].
            positions: i64[B, T]; None counts on from the cache's length.
            visible: bool[T, cache.length + T], what each new token attends; None is causal.
            cache: of one request (B = 1); the new tokens are appended to it.
            feature_layers: 0-based layers whose outputs are wanted.
        """
        length, count = (cache.length if cache is not None else 0), token_ids.shape[1]
        if positions is None:
            if length + count > self.config.max_position_embeddings:
                raise InvalidArgument(
                    f"{length + count} tokens; the model has positions for {self.config.max_position_embeddings}"
                )
            positions = torch.arange(length, length + count, device=token_ids.device)[None]
        if visible is None and length:
            visible = torch.ones(count, length + count, dtype=torch.bool, device=token_ids.device).tril(length)
        turns = self.rotary(positions)
        x = self.model.embed_tokens(token_ids)
        features = []
        for number, layer in enumerate(self.model.layers):
            x = layer(x, turns, visible, cache)
            if number in feature_layers:
                features.append(x)
        return TargetOutput(self.model.norm(x), torch.cat(features, -1) if features else x[..., :0])


def _largest(scores: Tensor, count: int) -> Tensor:
    """Indices of the ``count`` largest of each row, equal ones by lowest index (torch.topk promises no order)."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]
