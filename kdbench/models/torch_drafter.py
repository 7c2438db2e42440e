# SPDX-License-Identifier: Apache-2.0
"""The DFlash drafter in PyTorch (arXiv 2602.06036; tensor names of z-lab/dflash): a block of tokens in one forward.

A block is [root, MASK, ..., MASK]. Its queries see the context, which is the target's own hidden states of the
committed tokens, projected, and the whole block, in both directions. Row k of the result predicts the token k places
behind the root through the target's lm_head; the embedding is the target's as well.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from kdbench.models.checkpoint import load_drafter
from kdbench.models.config import DrafterConfig
from kdbench.models.torch_layers import GatedMlp, RmsNorm, Rotary, linear, load_weights, turn_halves


class BlockAttention(nn.Module):
    """Grouped-query attention of block rows over context rows and block rows, with normed queries and keys."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        hidden, size = config.hidden_size, config.head_dim
        self.q_proj = linear(hidden, config.num_attention_heads * size)
        self.k_proj = linear(hidden, config.num_key_value_heads * size)
        self.v_proj = linear(hidden, config.num_key_value_heads * size)
        self.o_proj = linear(config.num_attention_heads * size, hidden)
        self.q_norm = RmsNorm(size, config.rms_norm_eps)
        self.k_norm = RmsNorm(size, config.rms_norm_eps)

    def keys_values(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys (normed, rotated) and values, [B, KV heads, T, head_dim], of context rows or block rows alike."""
        size = self.config.head_dim
        key = self.k_norm(self.k_proj(x).unflatten(-1, (-1, size))).transpose(1, 2)
        value = self.v_proj(x).unflatten(-1, (-1, size)).transpose(1, 2)
        return turn_halves(key, turns[0][:, None], turns[1][:, None]).to(value.dtype), value

    def forward(
        self,
        x: Tensor,
        turns: tuple[Tensor, Tensor],
        context: Tensor,
        context_turns: tuple[Tensor, Tensor],
        visible: Tensor | None,
    ) -> Tensor:
        """[B, Q, hidden] to the same; ``visible`` bool [B, 1, Q, C + Q] or None for all."""
        query = self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.config.head_dim))).transpose(1, 2)
        old_key, old_value = self.keys_values(context, context_turns)
        new_key, new_value = self.keys_values(x, turns)
        query = turn_halves(query, turns[0][:, None], turns[1][:, None]).to(new_value.dtype)
        shared = self.config.num_attention_heads // self.config.num_key_value_heads
        key = torch.cat((old_key, new_key), 2).repeat_interleave(shared, 1)
        value = torch.cat((old_value, new_value), 2).repeat_interleave(shared, 1)
        mixed = functional.scaled_dot_product_attention(query, key, value, visible)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(-2))
        return out


class DrafterLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to the stream."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = BlockAttention(config)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMlp(config.hidden_size, config.intermediate_size)

    def forward(
        self,
        x: Tensor,
        turns: tuple[Tensor, Tensor],
        context: Tensor,
        context_turns: tuple[Tensor, Tensor],
        visible: Tensor | None,
    ) -> Tensor:
        """[B, Q, hidden] to the same."""
        x = x + self.self_attn(self.input_layernorm(x), turns, context, context_turns, visible)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class TorchDrafter(nn.Module):
    """A DFlash drafter; embedding and lm_head are its target's."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = linear(len(config.target_layer_ids) * config.hidden_size, config.hidden_size)
        self.hidden_norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(DrafterLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = Rotary(config.rope, config.head_dim)

    @classmethod
    def from_directory(cls, directory: Path | str, dtype: torch.dtype = torch.float32) -> TorchDrafter:
        """The checked checkpoint in ``directory``, ready to evaluate."""
        checkpoint = load_drafter(directory)
        assert isinstance(checkpoint.config, DrafterConfig)
        model = cls(checkpoint.config)
        load_weights(model, checkpoint, dtype)
        return model

    def context(self, features: Tensor) -> Tensor:
        """The target's features [B, T, layers * hidden] as context rows [B, T, hidden]: one per committed token."""
        rows: Tensor = self.hidden_norm(self.fc(features))
        return rows

    def forward(
        self,
        embedded: Tensor,
        positions: Tensor,
        context: Tensor,
        context_positions: Tensor,
        visible: Tensor | None = None,
    ) -> Tensor:
        """One pass over blocks.

        Args:
            embedded: [B, Q, hidden], the target's embedding of the block's tokens (several blocks side by side need
                ``visible``).
            positions: i64[B, Q].
            context: [B, C, hidden], from ``context``.
            context_positions: i64[B, C].
            visible: bool[B, 1, Q, C + Q]: what each row sees of context and block; None is everything.

        Returns:
            [B, Q, hidden] behind the last norm, for the target's lm_head.
        """
        turns, context_turns = self.rotary(positions), self.rotary(context_positions)
        x = embedded
        for layer in self.layers:
            x = layer(x, turns, context, context_turns, visible)
        out: Tensor = self.norm(x)
        return out
