# SPDX-License-Identifier: Apache-2.0
"""PyTorch layers that target and drafter share: RMSNorm, the gated MLP, rotary embedding, weights from a checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from kdbench.models.checkpoint import Checkpoint
from kdbench.models.rope import Rope


class RmsNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (arXiv 1910.07467)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Any [..., width] to the same shape."""
        return functional.rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self.eps)


class GatedMlp(nn.Module):
    """SwiGLU (arXiv 2002.05202): down(silu(gate(x)) * up(x))."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_proj = linear(hidden, width)
        self.up_proj = linear(hidden, width)
        self.down_proj = linear(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] to [..., hidden]."""
        gated: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return gated


class Rotary(nn.Module):
    """cos and sin of each position: f32 [..., dim / 2], YaRN's factor inside."""

    def __init__(self, rope: Rope, dim: int) -> None:
        super().__init__()
        self.scale = rope.cos_sin_scale
        self.register_buffer("inv_freq", torch.from_numpy(rope.inv_freq(dim)), persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Positions i64[...] to (cos, sin)."""
        angles = positions[..., None].float() * self.inv_freq
        return angles.cos() * self.scale, angles.sin() * self.scale


def turn_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE of neighbours (x[2i], x[2i+1]), in place of them: DeepSeek's interleaved layout."""
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2).to(x.dtype)


def turn_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE of pairs (x[i], x[i + dim/2]): the "neox" layout of Qwen3 and DFlash."""
    low, high = x.float().chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1).to(x.dtype)


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A matrix without bias."""
    return nn.Linear(inputs, outputs, bias=False)


def to_torch(array: np.ndarray[Any, Any]) -> Tensor:
    """A checkpoint's array as a tensor of its own: uint16 words become bfloat16."""
    if array.dtype == np.uint16:
        return torch.from_numpy(array.astype(np.int16, copy=True)).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def load_weights(module: nn.Module, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
    """Copy a checkpoint's tensors into a module whose parameters have their names, and set it to evaluate.

    Parameters get ``dtype``; buffers (frequencies, correction biases) stay f32.
    """
    module.load_state_dict({name: to_torch(array) for name, array in checkpoint.tensors.items()}, strict=True)
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)
    module.eval().requires_grad_(False)
