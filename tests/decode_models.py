# SPDX-License-Identifier: Apache-2.0
"""Random models small enough to decode hundreds of texts in seconds, and what their target says by itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kdbench.models import random_checkpoint

VOCAB_SIZE = 32
END, MASK = 1, 2
TARGET = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 2,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "q_lora_rank": 32,
    "max_position_embeddings": 512,
}
DRAFTER = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "layer_types": ["full_attention"],
    "num_target_layers": 2,
    "max_position_embeddings": 512,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 1]},
}


def write_pair(folder: Path, **changes: Any) -> Path:
    """``folder`` with target/ and drafter/; ``changes`` are the target's."""
    random_checkpoint.write_target(folder / "target", seed=3, **TARGET | changes)
    random_checkpoint.write_drafter(folder / "drafter", seed=4, **DRAFTER)
    return folder


@cache
def reference(target: Path) -> Any:
    """The PyTorch model of a directory, its cache rounded to bf16 as the engine's is."""
    import torch

    from kdbench.models.torch_target import LatentCache, TorchTarget

    class Rounded(LatentCache):
        def extend(self, layer: int, rows: Any) -> Any:
            return super().extend(layer, rows.to(torch.bfloat16).to(rows.dtype))

    model = TorchTarget.from_directory(target)

    @torch.no_grad()
    def logits(tokens: Sequence[int]) -> np.ndarray[Any, Any]:
        held = Rounded(model.config.num_hidden_layers)
        out = model.lm_head(model(torch.tensor([list(tokens)]), cache=held).hidden)
        return np.asarray(out[0].float().numpy())

    return logits


def greedy_gaps(target: Path, prompt: Sequence[int], tokens: Sequence[int]) -> np.ndarray[Any, Any]:
    """f32[len(tokens)]: how far below the reference's best logit each of ``tokens`` is, by the largest one."""
    logits = reference(target)([*prompt, *tokens])[len(prompt) - 1 : -1]
    said = logits[np.arange(len(tokens)), list(tokens)]
    return np.asarray((logits.max(1) - said) / np.abs(logits).max(1))


def prompts(count: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Prompts of 1 to 70 tokens, so that some are longer than a prefill's chunk."""
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(3, VOCAB_SIZE, int(rng.integers(1, 70))).tolist()) for _ in range(count)]
