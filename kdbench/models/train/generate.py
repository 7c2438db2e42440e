# SPDX-License-Identifier: Apache-2.0
"""The target's own continuations of many prompts at once: what a drafter learns to foresee.

Attention is absorbed here (queries go into the latent space instead of keys out of it), so that a step reads 576 values
a cached token and hundreds of texts grow in one batch.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from kdbench.models.torch_target import LatentCache, TargetLayer, TorchTarget
from kdbench.models.train.schedule import half_precision


class Continuer:
    """Continues texts with a copy of ``target`` in the dtype that its device is fast in."""

    def __init__(self, target: TorchTarget) -> None:
        self.device = str(target.lm_head.weight.device)
        self.dtype = torch.bfloat16 if self.device.startswith("cuda") else torch.float32
        self.target = copy.deepcopy(target).eval()
        for parameter in self.target.parameters():
            parameter.data = parameter.data.to(self.dtype)
        config = target.config
        self.up = [
            layer.self_attn.kv_b_proj.weight.unflatten(0, (config.num_attention_heads, -1)).split(
                (config.qk_nope_head_dim, config.v_head_dim), 1
            )
            for layer in self.target.model.layers
        ]

    @torch.no_grad()
    def extend(self, prompts: Tensor, new_tokens: int, temperatures: Tensor, seed: int) -> Tensor:
        """Prompts i64[B, T] with ``new_tokens`` more of each.

        Args:
            temperatures: f32[B]; 0 is greedy.

        Returns:
            i64[B, T + new_tokens].
        """
        config, model = self.target.config, self.target.model
        generator = torch.Generator(self.device).manual_seed(seed)
        batch, length = prompts.shape
        filled = LatentCache(config.num_hidden_layers)
        hidden = self.target(prompts, cache=filled).hidden[:, -1]
        shape = (batch, length + new_tokens, config.kv_lora_rank + config.qk_rope_head_dim)
        cache = [torch.empty(shape, dtype=self.dtype, device=self.device) for _ in model.layers]
        for rows, old in zip(cache, filled.rows, strict=True):
            assert old is not None
            rows[:, :length] = old
        tokens = torch.empty(batch, length + new_tokens, dtype=torch.long, device=self.device)
        tokens[:, :length] = prompts
        for position in range(length, length + new_tokens):
            logits = self.target.lm_head(hidden).float()
            tokens[:, position] = _drawn(logits, temperatures, generator)
            if position + 1 == length + new_tokens:
                break
            x = model.embed_tokens(tokens[:, position : position + 1])
            turns = self.target.rotary(torch.full((1, 1), position, device=self.device))
            for layer, (w_uk, w_uv), rows in zip(model.layers, self.up, cache, strict=True):
                x = x + self._attend(layer, w_uk, w_uv, x, turns, rows, position)
                x = x + layer.mlp(layer.post_attention_layernorm(x))
            hidden = model.norm(x)[:, 0]
        return tokens

    def _attend(
        self,
        layer: TargetLayer,
        w_uk: Tensor,
        w_uv: Tensor,
        x: Tensor,
        turns: tuple[Tensor, Tensor],
        rows: Tensor,
        position: int,
    ) -> Tensor:
        attention, config = layer.self_attn, self.target.config
        normed = layer.input_layernorm(x)
        rows[:, position] = attention.latents(normed, turns)[:, 0].to(rows.dtype)
        q_nope, q_pe = attention.queries(normed, turns)
        absorbed = torch.einsum("bhd,hdr->bhr", q_nope[:, :, 0], w_uk)
        seen = rows[:, : position + 1]
        scores = torch.cat((absorbed, q_pe[:, :, 0]), -1) @ seen.transpose(1, 2)
        weights = (scores.float() * config.softmax_scale).softmax(-1).to(rows.dtype)
        mixed = weights @ seen[..., : config.kv_lora_rank]
        out: Tensor = attention.o_proj(torch.einsum("bhr,hvr->bhv", mixed, w_uv).flatten(1))[:, None]
        return out


@torch.no_grad()
def features_of(target: TorchTarget, tokens: Tensor, layers: tuple[int, ...], rows_at_once: int = 64) -> Tensor:
    """[B, T, len(layers) * hidden] in bf16 on a GPU (f32 on a CPU): outputs of ``layers`` for whole texts."""
    device = str(tokens.device)
    parts = []
    for part in tokens.split(rows_at_once):
        with half_precision(device):
            features = target(part, feature_layers=layers).features
        parts.append(features.to(torch.bfloat16) if device.startswith("cuda") else features)
    return torch.cat(parts)


def _drawn(logits: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """One token a row: argmax with Gumbel noise in proportion to the temperature, which is a draw at it."""
    uniform = torch.rand(logits.shape, device=logits.device, generator=generator).clamp_(1e-10, 1 - 1e-7)
    return (logits - temperatures[:, None] * (-uniform.log()).log()).argmax(-1)
