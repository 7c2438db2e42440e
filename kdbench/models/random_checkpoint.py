# SPDX-License-Identifier: Apache-2.0
"""Models of random weights as Hugging Face directories: seeded, so that any machine writes the same bytes.

For tests of the engine at any shape, and for step times at sizes whose trained weights do not fit a repository. The
words come from ``kdbench.counter_bits``: a bell-shaped law, scaled per tensor so that activations neither die nor
explode.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from kdbench import counter_bits
from kdbench.arrays import bf16_to_f32
from kdbench.models.checkpoint import CORRECTION_BIAS, Shapes, drafter_shapes, target_shapes
from kdbench.models.config import DrafterConfig, TargetConfig
from kdbench.models.safetensors_file import write_file

_Array = np.ndarray[Any, Any]

# The shipped model's shape, kept here so that training, tests and docs say one thing.
TINY_TARGET: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "first_k_dense_replace": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 64,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "num_nextn_predict_layers": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "use_cache": True,
}
TINY_DRAFTER: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "layer_types": ["full_attention", "full_attention"],
    "block_size": 8,
    "num_target_layers": 6,
    "dflash_config": {"mask_token_id": 2, "target_layer_ids": [1, 3, 4]},
    "bos_token_id": 0,
    "eos_token_id": 1,
}
# Additions that turn the last layers of a target into mixtures of experts.
MIXTURE: dict[str, Any] = {
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 128,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
}
# DeepSeek-V3's own stretch of its context.
YARN: dict[str, Any] = {
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "max_position_embeddings": 163840,
}


def write_target(directory: Path | str, seed: int = 0, **changes: Any) -> Path:
    """A target of random weights: ``TINY_TARGET`` with ``changes`` (``**MIXTURE``, ``**YARN``, any config field).

    Returns:
        the directory, which holds config.json and model.safetensors.
    """
    path = _write_config(Path(directory), TINY_TARGET | changes)
    write_file(path / "model.safetensors", _random(target_shapes(TargetConfig.from_directory(path)), seed))
    return path


def write_drafter(directory: Path | str, seed: int = 1, **changes: Any) -> Path:
    """A drafter of random weights: ``TINY_DRAFTER`` with ``changes``; returns the directory."""
    path = _write_config(Path(directory), TINY_DRAFTER | changes)
    write_file(path / "model.safetensors", _random(drafter_shapes(DrafterConfig.from_directory(path)), seed))
    return path


def random_tensor(name: str, shape: tuple[int, ...], seed: int) -> _Array:
    """The array that ``name`` has under ``seed``: uint16 words of bf16, or f32 for a correction bias.

    Matrices have entries of deviation 1/sqrt(columns), the embedding 1, norms lie near 1, biases within 0.1 of 0.
    """
    # crc32 of the name makes a tensor's words independent of which others a model has.
    values = bf16_to_f32(counter_bits.bell_bf16(seed << 32 | zlib.crc32(name.encode()), shape)) / np.float32(4.6)
    if name.endswith(CORRECTION_BIAS):
        return values * np.float32(0.05)
    if len(shape) == 1:
        values = np.float32(1) + values * np.float32(0.1)
    elif not name.endswith("embed_tokens.weight"):
        # lm_head is sharper: random logits then have a clear first, and ties by rounding are rare.
        values = values * np.float32((4.0 if name.startswith("lm_head") else 1.0) / shape[1] ** 0.5)
    return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def _random(shapes: Shapes, seed: int) -> dict[str, _Array]:
    return {name: random_tensor(name, shape, seed) for name, shape in shapes.items()}


def _write_config(path: Path, config: dict[str, Any]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return path
