# SPDX-License-Identifier: Apache-2.0
"""Weights of a Hugging Face directory, checked against its config: every tensor by name, shape and dtype.

The result is plain NumPy arrays that the native engine takes as they are: bf16 as uint16 bit patterns, the experts'
correction bias as float32.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kdbench.errors import ModelError
from kdbench.models.config import DrafterConfig, TargetConfig
from kdbench.models.safetensors_file import read_file

_Array = np.ndarray[Any, Any]
# How many names one message lists.
_NAMED = 6

Shapes = dict[str, tuple[int, ...]]
CORRECTION_BIAS = "mlp.gate.e_score_correction_bias"


@dataclass(frozen=True)
class Checkpoint:
    """A model's config and weights.

    Attributes:
        tensors: Hugging Face name to array; uint16 holds bf16, float32 the correction biases.
    """

    directory: Path
    config: TargetConfig | DrafterConfig
    tensors: dict[str, _Array]

    @property
    def num_parameters(self) -> int:
        """Weights in all."""
        return sum(array.size for array in self.tensors.values())


def load_target(directory: Path | str) -> Checkpoint:
    """The DeepSeek-V3 model in ``directory``.

    Raises:
        ModelError: config, a file or a tensor is missing, left over, of another shape or dtype; one message names all.
    """
    config = TargetConfig.from_directory(directory)
    prefixes = tuple(
        f"model.layers.{config.num_hidden_layers + extra}." for extra in range(config.num_nextn_predict_layers)
    )
    return Checkpoint(Path(directory), config, _load(Path(directory), target_shapes(config), unread=prefixes))


def load_drafter(directory: Path | str) -> Checkpoint:
    """The DFlash drafter in ``directory``; raises as ``load_target``."""
    config = DrafterConfig.from_directory(directory)
    return Checkpoint(Path(directory), config, _load(Path(directory), drafter_shapes(config), unread=()))


def target_shapes(config: TargetConfig) -> Shapes:
    """Name to shape of every tensor of a target, rows first: y = x @ W.T for each matrix."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    shapes: Shapes = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (config.vocab_size, hidden),
    }
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}"
        attention = f"{at}.self_attn"
        shapes[f"{at}.input_layernorm.weight"] = shapes[f"{at}.post_attention_layernorm.weight"] = (hidden,)
        if config.q_lora_rank is None:
            shapes[f"{attention}.q_proj.weight"] = (heads * config.qk_head_dim, hidden)
        else:
            shapes[f"{attention}.q_a_proj.weight"] = (config.q_lora_rank, hidden)
            shapes[f"{attention}.q_a_layernorm.weight"] = (config.q_lora_rank,)
            shapes[f"{attention}.q_b_proj.weight"] = (heads * config.qk_head_dim, config.q_lora_rank)
        latent = config.kv_lora_rank
        shapes[f"{attention}.kv_a_proj_with_mqa.weight"] = (latent + config.qk_rope_head_dim, hidden)
        shapes[f"{attention}.kv_a_layernorm.weight"] = (latent,)
        shapes[f"{attention}.kv_b_proj.weight"] = (heads * (config.qk_nope_head_dim + config.v_head_dim), latent)
        shapes[f"{attention}.o_proj.weight"] = (hidden, heads * config.v_head_dim)
        shapes |= dict(_mlp_shapes(config, layer))
    return shapes


def drafter_shapes(config: DrafterConfig) -> Shapes:
    """Name to shape of every tensor of a drafter."""
    hidden, size = config.hidden_size, config.head_dim
    shapes: Shapes = {
        "fc.weight": (hidden, len(config.target_layer_ids) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for layer in range(config.num_hidden_layers):
        at = f"layers.{layer}"
        attention = f"{at}.self_attn"
        shapes[f"{at}.input_layernorm.weight"] = shapes[f"{at}.post_attention_layernorm.weight"] = (hidden,)
        shapes[f"{attention}.q_proj.weight"] = (config.num_attention_heads * size, hidden)
        shapes[f"{attention}.k_proj.weight"] = (config.num_key_value_heads * size, hidden)
        shapes[f"{attention}.v_proj.weight"] = (config.num_key_value_heads * size, hidden)
        shapes[f"{attention}.o_proj.weight"] = (hidden, config.num_attention_heads * size)
        shapes[f"{attention}.q_norm.weight"] = shapes[f"{attention}.k_norm.weight"] = (size,)
        shapes |= dict(_gated(f"{at}.mlp", hidden, config.intermediate_size))
    return shapes


def _mlp_shapes(config: TargetConfig, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    at, hidden, mixture = f"model.layers.{layer}.mlp", config.hidden_size, config.mixture
    if mixture is None or config.is_dense(layer):
        yield from _gated(at, hidden, config.intermediate_size)
        return
    yield f"{at}.gate.weight", (mixture.n_routed_experts, hidden)
    yield f"{at}.gate.e_score_correction_bias", (mixture.n_routed_experts,)
    for expert in range(mixture.n_routed_experts):
        yield from _gated(f"{at}.experts.{expert}", hidden, mixture.moe_intermediate_size)
    if mixture.n_shared_experts:
        yield from _gated(f"{at}.shared_experts", hidden, mixture.n_shared_experts * mixture.moe_intermediate_size)


def _gated(at: str, hidden: int, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{at}.gate_proj.weight", (width, hidden)
    yield f"{at}.up_proj.weight", (width, hidden)
    yield f"{at}.down_proj.weight", (hidden, width)


def _load(directory: Path, shapes: Shapes, unread: tuple[str, ...]) -> dict[str, _Array]:
    found: dict[str, tuple[str, _Array]] = {}
    twice: list[str] = []
    for path in _weight_files(directory):
        for name, tensor in read_file(path).items():
            if name in found:
                twice.append(name)
            found[name] = tensor
    extra = [name for name in found if name not in shapes and not (unread and name.startswith(unread))]
    complaints = [
        *_listed("missing", (name for name in shapes if name not in found)),
        *_listed("not of this architecture", extra),
        *_listed("in two files", twice),
        *_listed(
            "of another shape",
            (
                f"{name} is {list(found[name][1].shape)}, wanted {list(shape)}"
                for name, shape in shapes.items()
                if name in found and found[name][1].shape != shape
            ),
        ),
        *_listed(
            "of another dtype",
            (
                f"{name} is {found[name][0]}, wanted {' or '.join(_wanted(name))}"
                for name in shapes
                if name in found and found[name][0] not in _wanted(name)
            ),
        ),
    ]
    if complaints:
        raise ModelError(f"{directory}: tensors {'; '.join(complaints)}")
    return {name: _plain(name, *found[name]) for name in shapes}


def _wanted(name: str) -> tuple[str, ...]:
    return ("F32", "BF16") if name.endswith(CORRECTION_BIAS) else ("BF16",)


def _plain(name: str, dtype: str, array: _Array) -> _Array:
    if name.endswith(CORRECTION_BIAS) and dtype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def _listed(what: str, names: Iterable[str]) -> list[str]:
    some = list(names)
    if not some:
        return []
    rest = f" and {len(some) - _NAMED} more" if len(some) > _NAMED else ""
    return [f"{what}: {', '.join(some[:_NAMED])}{rest}"]


def _weight_files(directory: Path) -> list[Path]:
    """The one file, or those that the index of a sharded checkpoint names."""
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if not index.exists():
        raise ModelError(f"{directory} has neither model.safetensors nor model.safetensors.index.json")
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is no index of weights: wanted an object with weight_map") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise ModelError(f"{index} names the file {name!r}; wanted one in the same directory")
        if not (directory / name).exists():
            raise ModelError(f"{directory} lacks {name}, which its index names")
    return [directory / name for name in names]
