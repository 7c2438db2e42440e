# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding: frequencies, plain or YaRN's (arXiv 2309.00071), as DeepSeek-V3 uses them.

A pair of values at position ``p`` turns by the f32 angle ``f32(p) * inv_freq[i]``; cos and sin are multiplied by
``cos_sin_scale`` and the attention's softmax scale by ``softmax_mscale`` squared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kdbench.errors import ModelError
from kdbench.models.config_fields import Fields


@dataclass(frozen=True)
class Yarn:
    """YaRN's parameters: config.json's ``rope_scaling`` (or ``rope_parameters``) of type "yarn"."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0


@dataclass(frozen=True)
class Rope:
    """``theta`` and, if the context was stretched, YaRN's parameters."""

    theta: float
    yarn: Yarn | None = None

    @property
    def softmax_mscale(self) -> float:
        """What queries times keys are multiplied by twice; 1 without YaRN."""
        return 1.0 if self.yarn is None or not self.yarn.mscale_all_dim else _grown(self.yarn, self.yarn.mscale_all_dim)

    @property
    def cos_sin_scale(self) -> float:
        """The factor of cos and sin; 1 without YaRN and wherever mscale equals mscale_all_dim."""
        return 1.0 if self.yarn is None else _grown(self.yarn, self.yarn.mscale) / self.softmax_mscale

    def inv_freq(self, dim: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """f32[dim / 2]: angle per position of each rotated pair."""
        powers = self.theta ** (np.arange(0, dim, 2) / dim)
        kept = 1.0 / powers
        if self.yarn is None:
            return kept.astype(np.float32)
        low = max(math.floor(self._pair_that_turns(self.yarn.beta_fast, dim)), 0)
        high = min(math.ceil(self._pair_that_turns(self.yarn.beta_slow, dim)), dim - 1)
        # Pairs that turn often within the original context keep their frequency, those that hardly turn are slowed.
        slowed = np.clip((np.arange(dim // 2) - low) / (high - low if high != low else 0.001), 0.0, 1.0)
        return (kept / self.yarn.factor * slowed + kept * (1.0 - slowed)).astype(np.float32)

    def _pair_that_turns(self, rotations: float, dim: int) -> float:
        """Which pair makes so many rotations over the original context."""
        assert self.yarn is not None
        length = self.yarn.original_max_position_embeddings
        return dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(self.theta))


def read_rope(fields: Fields) -> Rope:
    """RoPE of a config: ``rope_theta`` and ``rope_scaling``, or both in ``rope_parameters`` as transformers 5 has it.

    Raises:
        ModelError: a scaling of another type than "yarn", or a field out of range.
    """
    new_style = fields.has("rope_parameters")
    scaled = new_style or fields.has("rope_scaling")
    inner = fields.inner("rope_parameters" if new_style else "rope_scaling") if scaled else None
    theta_in = inner if inner is not None and inner.has("rope_theta") else fields
    theta = theta_in.number("rope_theta", above=1.0, default=10000.0)
    if inner is None:
        return Rope(theta)
    kind_name = "rope_type" if inner.has("rope_type") else "type"
    kind = inner.values.get(kind_name, "default")
    if kind == "default":
        return Rope(theta)
    if kind != "yarn":
        raise inner.refuse(kind_name, '"yarn" or "default"')
    yarn = Yarn(
        factor=inner.number("factor", above=1.0, or_equal=True),
        original_max_position_embeddings=inner.integer("original_max_position_embeddings"),
        beta_fast=inner.number("beta_fast", default=32.0),
        beta_slow=inner.number("beta_slow", default=1.0),
        mscale=inner.number("mscale", default=1.0, or_equal=True),
        mscale_all_dim=inner.number("mscale_all_dim", default=0.0, or_equal=True),
    )
    if yarn.beta_fast < yarn.beta_slow:
        raise ModelError(
            f"{inner.where}: beta_fast {yarn.beta_fast:g} is below beta_slow {yarn.beta_slow:g}; wanted it at or above"
        )
    return Rope(theta, yarn)


def _grown(yarn: Yarn, mscale: float) -> float:
    return 1.0 if yarn.factor <= 1 else 0.1 * mscale * math.log(yarn.factor) + 1.0
